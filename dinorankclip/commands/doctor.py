"""`dinorankclip doctor`: check the machine, data, a run or what was written; each finding says what to do."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import tyro

from dinorankclip.config import CheckingSettings
from dinorankclip.run_files import CONFIG, is_run
from dinorankclip.types import Finding, UserError

MARKS = {"fine": "ok  ", "note": "note", "problem": "BAD "}
NEEDED = ("torch", "torchvision", "timm", "open_clip_torch", "webdataset", "simplejpeg", "safetensors")
LITTLE_DISK = 5e9  # bytes
SHOWN_RUNS = 8  # names of runs in a message


def doctor(
    path: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[PATH]")] = None,
    samples: int = 2000,
    reading: CheckingSettings = CheckingSettings(),  # noqa: B008 (frozen)
) -> None:
    """Check this machine (no PATH), a run, an export, a cache, or data. Exit status 1 if there is a problem.

    Examples:
      dinorankclip doctor
      dinorankclip doctor scenes
      dinorankclip doctor runs/quickstart
      dinorankclip doctor exported/first

    Args:
        path: A run, a model folder, a teacher cache or embeddings, whose bytes are compared with their hashes; or
            anything that --data of train takes.
        samples: Samples of each part to decode, at most.
        reading: How pairs are found, as in train. More damaged pairs than max-damaged are a problem.
    """
    problems = 0
    for finding in examine(path, samples, reading):
        print_finding(finding)
        problems += finding.level == "problem"
    print(f"\n{problems or 'no'} problem{'' if problems == 1 else 's'} found")
    if problems:
        sys.exit(1)


def print_finding(finding: Finding) -> None:
    print(f"{MARKS[finding.level]}  {finding.what}", flush=True)
    if finding.advice:
        print(f"      → {finding.advice}", flush=True)


def examine(path: str | None, samples: int, reading: CheckingSettings) -> Iterator[Finding]:
    """Yield findings on the machine (no path), a run, or data."""
    if path is None:
        yield from examine_machine()
        return
    if is_run(Path(path)):
        from dinorankclip.report.folder_findings import examine_checkpoints
        from dinorankclip.report.run_findings import examine_run

        yield from examine_run(Path(path))
        yield from examine_checkpoints(Path(path))
        return
    if Path(path).is_dir():
        from dinorankclip.report.folder_findings import examiner_of

        if (examine_folder := examiner_of(Path(path))) is not None:
            yield from examine_folder(Path(path))
            return
    if runs := sorted(file.parent.name for file in Path(path).glob(f"*/{CONFIG}") if is_run(file.parent)):
        shown = ", ".join(runs[:SHOWN_RUNS]) + (", …" if len(runs) > SHOWN_RUNS else "")
        raise UserError(f"{path} holds runs: {shown}; name one, e.g. dinorankclip doctor {Path(path) / runs[0]}")
    from dinorankclip.data.inspect import examine_data

    try:
        yield from examine_data(path, reading, samples)
    except UserError as error:
        if Path(path).exists():
            raise
        raise UserError(f"{error}\ndoctor takes pairs, a run folder, or nothing to check the machine") from None


def examine_machine() -> Iterator[Finding]:
    yield Finding("fine", f"Python {sys.version.split()[0]}")
    for package in NEEDED:
        try:
            yield Finding("fine", f"{package} {version(package)}")
        except PackageNotFoundError:
            advice = "make quickstart, or pip install -c constraints.txt -e ."
            yield Finding("problem", f"{package} is not installed", advice)
    import torch

    from dinorankclip.device import BF16_ON_CPU, announces_amx, choose, declare_missing

    if declare_missing():
        yield Finding("fine", "torchvision's compiled operators do not fit this torch; nothing here needs them")
    placement = choose()
    yield Finding("fine", f"{placement.reason}; {torch.get_num_threads()} threads on {os.cpu_count()} cores")
    if placement.device.type == "cpu":
        yield Finding("note", "no GPU", "presets scenes, flickr8k and finetune suit a CPU; cc3m does not")
        if announces_amx():
            yield Finding("note", f"this CPU announces AMX: {BF16_ON_CPU}", "leave --budget.precision at auto")
    free = shutil.disk_usage(Path.cwd()).free
    if free < LITTLE_DISK:
        yield Finding("problem", f"{free / 1e9:.1f} GB of disk left here", "checkpoints and caches need room")
    else:
        yield Finding("fine", f"{free / 1e9:.0f} GB of disk left here")
    shared = Path("/dev/shm")
    if shared.is_dir() and shutil.disk_usage(shared).total < 1e9:
        yield Finding("note", "/dev/shm is under 1 GB", "in Docker: --shm-size=8g, or --reading.workers 0")
