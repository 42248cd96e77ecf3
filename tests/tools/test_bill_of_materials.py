from tools.bill_of_materials import bill


def test_needed_packages_are_listed_with_their_versions():
    listed = {entry["name"]: entry for entry in bill()["components"]}
    assert {"torch", "numpy", "open-clip-torch", "safetensors", "pillow", "huggingface-hub"} <= listed.keys()
    assert listed["numpy"]["purl"] == f"pkg:pypi/numpy@{listed['numpy']['version']}"
    assert bill()["bomFormat"] == "CycloneDX"
