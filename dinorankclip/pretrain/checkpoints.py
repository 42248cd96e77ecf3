"""Checkpoint folders that are either whole or absent: written aside, flushed to disk, renamed into place."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from dinorankclip import comm
from dinorankclip.pretrain.state import TrainingState, random_state
from dinorankclip.run_files import BEST, LAST, STEP
from dinorankclip.types import UserError


def save(state: TrainingState, folder: Path, keep: int) -> None:
    """Write step-N, point `last` (and, if it is the best so far, `best`) to it, drop the oldest. All processes call."""
    states = comm.gather_bytes(random_state(state.device))
    if comm.world().leads:
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{STEP}{state.step}"
        if not target.exists():
            _write(state, states, folder / f".writing-step-{state.step}", target)
        _point(folder / LAST, target.name)
        best = folder / f"{STEP}{state.best_step}"
        if best.is_dir() and (folder / BEST).resolve() != best.resolve():  # a kill can fall before the link, too
            _point(folder / BEST, best.name)
        _flush(folder)
        _drop_old(folder, keep)
    comm.wait_for_all()


def _write(state: TrainingState, states: list[Tensor], aside: Path, target: Path) -> None:
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir()
        state.write(aside, states)
        for path in aside.iterdir():
            _flush(path)
        _flush(aside)
        os.replace(aside, target)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)  # what it took of a full disk
        raise UserError(
            f"the checkpoint {target} cannot be written ({error}); the ones before it are whole. Make room, and "
            "the same command resumes"
        ) from error


def newest(folder: Path) -> Path | None:
    """The newest whole checkpoint, whatever `last` says: a kill can fall between the rename and the link."""
    return next(reversed(whole(folder)), None)


def whole(folder: Path) -> list[Path]:
    """Our own checkpoints, oldest first: a copy that somebody made beside them, step-200.bak, is nobody's business."""
    steps = [path for path in folder.glob(f"{STEP}*") if path.is_dir() and path.name.removeprefix(STEP).isdecimal()]
    return sorted(steps, key=step_of)


def step_of(path: Path) -> int:
    return int(path.name.removeprefix(STEP))


def _point(link: Path, name: str) -> None:
    aside = link.with_name(f".{link.name}.new")
    aside.unlink(missing_ok=True)
    aside.symlink_to(name)
    os.replace(aside, link)


def _drop_old(folder: Path, keep: int) -> None:
    best = (folder / BEST).resolve()
    steps = whole(folder)
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
