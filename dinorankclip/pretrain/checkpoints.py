"""Checkpoint folders that are either whole or absent: written aside, flushed to disk, renamed into place."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from dinorankclip import comm
from dinorankclip.pretrain.state import TrainingState, random_state

LAST, BEST = "last", "best"


def save(state: TrainingState, folder: Path, keep: int) -> None:
    """Write step-N, point `last` (and, if it is the best so far, `best`) to it, drop the oldest. All processes call."""
    states = comm.gather_bytes(random_state())
    if comm.world().leads:
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"step-{state.step}"
        if not target.exists():
            aside = folder / f".writing-step-{state.step}"
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
            state.write(aside, states)
            for path in aside.iterdir():
                _flush(path)
            _flush(aside)
            os.replace(aside, target)
        _point(folder / LAST, target.name)
        if state.best_step == state.step:
            _point(folder / BEST, target.name)
        _flush(folder)
        _drop_old(folder, keep)
    comm.wait_for_all()


def newest(folder: Path) -> Path | None:
    """The newest whole checkpoint, whatever `last` says: a kill can fall between the rename and the link."""
    found = [path for path in folder.glob("step-*") if path.is_dir()]
    return max(found, key=_step, default=None)


def _step(path: Path) -> int:
    return int(path.name.split("-")[1])


def _point(link: Path, name: str) -> None:
    aside = link.with_name(f".{link.name}.new")
    aside.unlink(missing_ok=True)
    aside.symlink_to(name)
    os.replace(aside, link)


def _drop_old(folder: Path, keep: int) -> None:
    best = (folder / BEST).resolve()
    steps = sorted((p for p in folder.glob("step-*") if p.is_dir()), key=_step)
    for path in steps[:-keep] if keep > 0 else []:
        if path.resolve() != best:
            shutil.rmtree(path)
    for leftover in folder.glob(".writing-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
