"""The training state, and its checkpoint folders, which are whole or absent: written aside, flushed, renamed.

A checkpoint is a model folder (models/folder.py) plus `training.safetensors` (objective, optimiser, random generators
of every process) and `training.json` (step, best score, data fingerprint). Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from dinorankclip import distributed
from dinorankclip.losses.objective import Objective
from dinorankclip.models.folder import load_weights, save_model
from dinorankclip.models.joint import JointModel
from dinorankclip.models.weights_file import read_weights, write_weights
from dinorankclip.run_files import BEST, LAST, NUMBERS, STEP, TENSORS
from dinorankclip.train.step import Updater, random_state, set_random_state
from dinorankclip.types import UserError


@dataclass
class TrainingState:
    """All that a resumed run needs."""

    model: JointModel
    objective: Objective
    updater: Updater
    data_fingerprint: str
    step: int = 0  # steps done; the data position is step × global batch
    best: float = -1.0
    best_step: int = -1

    def write(self, folder: Path, random_states: list[Tensor]) -> None:
        """Write everything, on the leading process; `random_states` has the generators of all processes."""
        save_model(self.model, folder)
        tensors = {f"objective/{n}": t for n, t in self.objective.state_dict().items()}
        tensors |= {f"optimizer/{n}": t for n, t in self.updater.state().items()}
        tensors |= {f"random/{rank}": t for rank, t in enumerate(random_states)}
        write_weights(tensors, folder / TENSORS)
        numbers = {
            "step": self.step,
            "best": self.best,
            "best_step": self.best_step,
            "data": self.data_fingerprint,
            "processes": len(random_states),
        }
        (folder / NUMBERS).write_text(json.dumps(numbers, indent=2) + "\n")

    def read(self, folder: Path) -> None:
        numbers = json.loads((folder / NUMBERS).read_text())
        if numbers["data"] != self.data_fingerprint:
            raise UserError(
                f"{folder}: the data has changed since this checkpoint was written, so the position inside it means "
                "nothing any more. Use --restart for a new run, or --init to start from these weights."
            )
        load_weights(self.model, folder)
        groups: dict[str, dict[str, Tensor]] = {"objective": {}, "optimizer": {}, "random": {}}
        for entry, tensor in read_weights(folder / TENSORS).items():
            group, name = entry.split("/", 1)
            groups[group][name] = tensor
        self.objective.load_state_dict(groups["objective"])
        self.updater.load_state(groups["optimizer"])
        self.step, self.best, self.best_step = numbers["step"], numbers["best"], numbers["best_step"]
        mine = groups["random"].get(str(distributed.world().rank))
        # With another number of processes there is no generator to continue; sampling never depends on it, since
        # data positions have generators of their own.
        if mine is not None and numbers["processes"] == distributed.world().size:
            set_random_state(mine, self.device)

    @property
    def device(self) -> torch.device:
        return self.model.trunk.logit_scale.device


def save(state: TrainingState, folder: Path, keep: int) -> None:
    """Write step-N, point `last` (and `best`, after the best score so far) to it, drop the oldest. All processes call.

    A folder that cannot be written, on a full disk say, is removed, and the checkpoints before it stay whole.
    """
    random_states = distributed.gather_bytes(random_state(state.device))
    if distributed.world().leads:
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{STEP}{state.step}"
        if not target.exists():
            _write(state, random_states, folder / f".writing-step-{state.step}", target)
        _point(folder / LAST, target.name)
        best = folder / f"{STEP}{state.best_step}"
        if best.is_dir() and (folder / BEST).resolve() != best.resolve():  # a kill can fall before the link, too
            _point(folder / BEST, best.name)
        _flush(folder)
        _drop_old(folder, keep)
    distributed.wait_for_all()


def _write(state: TrainingState, random_states: list[Tensor], aside: Path, target: Path) -> None:
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir()
        state.write(aside, random_states)
        for path in aside.iterdir():
            _flush(path)
        _flush(aside)
        os.replace(aside, target)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)  # gives a full disk its space back
        raise UserError(
            f"the checkpoint {target} cannot be written ({error}); the ones before it are whole. Make room, and "
            "the same command resumes"
        ) from error


def newest(folder: Path) -> Path | None:
    """The newest whole checkpoint, which `last` need not name: a kill can fall between the rename and the link."""
    return next(reversed(whole(folder)), None)


def whole(folder: Path) -> list[Path]:
    """All checkpoints, oldest first. Folders of other names, such as a copy step-200.bak, do not count."""
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
    for path in whole(folder)[:-keep] if keep > 0 else []:
        if path.resolve() != best:
            shutil.rmtree(path)
    for leftover in folder.glob(".writing-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _flush(path: Path) -> None:
    """Write a file, or a folder's entries, through to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
