"""What a package index shows: absolute links, complete metadata; and the files that a wheel must hold."""

import importlib.util
import re
import tomllib
import zipfile
from pathlib import Path

import pytest

import dinorankclip
from tests import typed_names
from tools import check_wheel

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def setup():
    """The module setup.py; it calls setuptools only when it is the program."""
    spec = importlib.util.spec_from_file_location("project_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_of_a_text_become_absolute(setup):
    text = "\n".join([
        "[a](docs/a.md#top) and [b](./LICENSE), ![p](docs/pictures/p.png)",
        "[kept](#here) [kept](https://example.org/x) [kept](mailto:a@b.c) `[code](docs/a.md)`",
        "```",
        "[code](docs/a.md)",
        "```",
        "[after](CHANGELOG.md)",
    ])  # fmt: skip
    at = setup.REPOSITORY
    assert setup.with_absolute_links(text, "v1").splitlines() == [
        f"[a]({at}/blob/v1/docs/a.md#top) and [b]({at}/blob/v1/LICENSE), ![p]({at}/raw/v1/docs/pictures/p.png)",
        "[kept](#here) [kept](https://example.org/x) [kept](mailto:a@b.c) `[code](docs/a.md)`",
        "```",
        "[code](docs/a.md)",
        "```",
        f"[after]({at}/blob/v1/CHANGELOG.md)",
    ]


def test_no_link_of_the_readme_stays_relative(setup):
    text = setup.with_absolute_links(README, "v9")
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(links) > 20 and all(link.startswith(("https://", "#")) for link in links)
    paths = [re.sub(r"#.*", "", link.split("/v9/")[1]) for link in links if "/v9/" in link]
    assert len(paths) > 10 and all((ROOT / path).exists() for path in paths)
    assert text.count("/raw/v9/") == README.count("](docs/pictures/") + README.count("/figures/")


def test_version_and_authors_are_the_stated_ones(setup):
    assert setup.read_version() == dinorankclip.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert all(f"name: {author['name']}" in cited for author in project["authors"])
    assert f"license: {project['license']}" in cited and (ROOT / "LICENSE").is_file()
    assert set(setup.project_urls("v1")) == {"Homepage", "Repository", "Documentation", "Changelog", "Issues"}
    assert len(project["keywords"]) >= 5 and "Typing :: Typed" in project["classifiers"]


def write_wheel(path, extra=(), left_out=(), urls=("Homepage, https://example.org/x",)):
    with zipfile.ZipFile(path, "w") as packed:
        for package in check_wheel.PACKAGES:
            for file in (ROOT / package).rglob("*"):
                name = file.relative_to(ROOT).as_posix()
                if file.is_file() and "__pycache__" not in name and name not in left_out:
                    packed.writestr(name, b"")
        for name in extra:
            packed.writestr(name, b"")
        head = [f"Version: {dinorankclip.__version__}", *(f"Project-URL: {url}" for url in urls)]
        packed.writestr("dinorankclip-1.dist-info/METADATA", "\n".join([*head, "", "long"]))
    return path


def test_files_that_a_wheel_lacks_are_named(tmp_path, monkeypatch):
    whole = write_wheel(tmp_path / "a.whl")
    assert check_wheel.file_faults(whole) == []
    typed, style = "dinorankclip_studies/py.typed", "dinorankclip/serve/assets/style.css"
    faults = check_wheel.file_faults(write_wheel(tmp_path / "b.whl", ["dinorankclip/old.py"], [typed, style]))
    assert faults == [
        f"{style} is not in the wheel",
        f"{typed} is not in the wheel",
        "dinorankclip/old.py is in the wheel and not in the tree: build it again",
        "dinorankclip_studies has no py.typed",
    ]
    monkeypatch.setattr(check_wheel, "MOST_BYTES", 1000)
    assert "at most 1,000 are wanted" in check_wheel.file_faults(whole)[0]


def test_what_must_not_be_published(tmp_path, monkeypatch):
    monkeypatch.delenv("GITHUB_REF_NAME", raising=False)
    placeholder = ["Homepage, https://github.com/OWNER/dinorankclip"]
    faults = check_wheel.release_faults(write_wheel(tmp_path / "a.whl", urls=placeholder))
    assert "the address of the repository is a placeholder: set REPOSITORY in setup.py" in faults
    monkeypatch.setenv("GITHUB_REF_NAME", "v99.0")
    faults = check_wheel.release_faults(write_wheel(tmp_path / "b.whl"))
    assert f"the tag is v99.0, and the version is {dinorankclip.__version__}" in faults
    monkeypatch.setattr(check_wheel, "ROOT", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("## 0.0.1\n", encoding="utf-8")
    assert f"CHANGELOG.md has no section '## {dinorankclip.__version__}'" in check_wheel.release_faults(
        tmp_path / "b.whl"
    )


def test_the_typed_names_are_those_that_run():
    """mypy reads tests/typed_names.py in `make lint`; here its losses run."""
    import torch

    torch.manual_seed(0)
    image, text, scale = torch.randn(6, 8), torch.randn(6, 8), torch.tensor(5.0)
    assert set(typed_names.the_loss(image, text, scale).terms) == {"rank_in", "rank_cross", "gate_l1"}
    assert all(value.isfinite().all() for value in typed_names.the_equations(image, text, scale))
    assert typed_names.the_rest()[0] == dinorankclip.__version__
