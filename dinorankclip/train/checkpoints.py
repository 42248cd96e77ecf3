"""Writes and reads the training state, its checkpoint folders, and the reason why a run ended early.

A checkpoint is a model folder (models/folder.py) plus `training.safetensors` (objective, optimiser, random generators
of every process), `training.json` (step, best score, data fingerprint) and the hashes of all files (checksums.py).
Nothing is pickled. A checkpoint folder is whole or absent: it is written aside, flushed and renamed. Its hashes follow
a moment later, computed by a thread beside training; a checkpoint whose run was killed in between has none.
`ended.json` in the run folder stores the reason of an early end for `doctor`; it is deleted when the run goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from dinorankclip import distributed
from dinorankclip.checked_files import UnfitFile, read_object
from dinorankclip.checksums import sealing
from dinorankclip.config import as_dict
from dinorankclip.io import flush, point, write_json
from dinorankclip.json_shape import COUNT, TEXT, entries
from dinorankclip.losses.objective import Objective
from dinorankclip.models.folder import WEIGHTS, AnyModel, load_weights, save_model
from dinorankclip.models.lora import corrections, restore
from dinorankclip.models.weights_file import read_weights, write_weights
from dinorankclip.presets import default_settings
from dinorankclip.run_files import (
    BEST,
    CHECKPOINTS,
    ENDED,
    LAST,
    NUMBERS,
    STEP,
    TENSORS,
    is_run,
    read_settings,
    stored_scores,
)  # fmt: skip
from dinorankclip.stored_settings import difference, flatten
from dinorankclip.train.run_folder import has_begun
from dinorankclip.train.step import Updater, random_state, set_random_state
from dinorankclip.types import UserError

STOPPED, FAILED, DIVERGED = "stopped", "failed", "diverged"
LENGTHS = ("budget.epochs", "budget.steps", "budget.minutes", "budget.core_seconds")
_ENDING = entries({"step": COUNT, "how": TEXT, "why": TEXT}, required=("step", "how"))
LOWER = 10  # after divergence, the advice divides the learning rate by this number


@dataclass
class TrainingState:
    """Holds everything that a resumed run needs."""

    model: AnyModel
    objective: Objective
    updater: Updater
    data_fingerprint: str
    step: int = 0  # steps done; the data position is step × global batch
    best: float = -1.0
    best_step: int = -1
    core_seconds: float = 0.0  # of this process's steps and their reading

    def write(self, folder: Path, random_states: list[Tensor]) -> None:
        """Write everything on the leading process. `random_states` holds the generators of all processes."""
        save_model(self.model, folder)
        tensors = {f"objective/{n}": t for n, t in self.objective.state_dict().items()}
        tensors |= {f"optimizer/{n}": t for n, t in self.updater.state().items()}
        tensors |= {f"lora/{n}": t for n, t in corrections(self.model).items()}
        tensors |= {f"random/{rank}": t for rank, t in enumerate(random_states)}
        write_weights(tensors, folder / TENSORS)
        numbers = {
            "step": self.step,
            "best": self.best,
            "best_step": self.best_step,
            "data": self.data_fingerprint,
            "processes": len(random_states),
            "core_seconds": round(self.core_seconds * len(random_states), 2),
        }
        (folder / NUMBERS).write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")

    def read(self, folder: Path) -> None:
        numbers = json.loads((folder / NUMBERS).read_text(encoding="utf-8"))
        if numbers["data"] != self.data_fingerprint:
            raise UserError(
                f"{folder}: the data has changed since this checkpoint was written, so the position inside it means "
                "nothing any more. Use --restart for a new run, or --init to start from these weights."
            )
        load_weights(self.model, folder)
        groups: dict[str, dict[str, Tensor]] = {"objective": {}, "optimizer": {}, "lora": {}, "random": {}}
        for entry, tensor in read_weights(folder / TENSORS).items():
            group, name = entry.split("/", 1)
            groups[group][name] = tensor
        if groups["lora"]:
            restore(self.model, groups["lora"], read_weights(folder / WEIGHTS), "the model that --init names")
        self.objective.load_state_dict(groups["objective"])
        self.updater.load_state(groups["optimizer"])
        self.step, self.best, self.best_step = numbers["step"], numbers["best"], numbers["best_step"]
        self.core_seconds = numbers.get("core_seconds", 0.0) / distributed.world().size
        mine = groups["random"].get(str(distributed.world().rank))
        # With another number of processes there is no generator to continue; sampling never depends on it, since
        # data positions have generators of their own.
        if mine is not None and numbers["processes"] == distributed.world().size:
            set_random_state(mine, self.device)

    @property
    def device(self) -> torch.device:
        return self.model.logit_scale.device


def save(state: TrainingState, folder: Path, keep: int) -> None:
    """Write step-N, update the links `last` and `best`, and delete old checkpoints. Every process must call this.
    If step-N cannot be written, as on a full disk, its folder is removed and earlier checkpoints stay whole."""
    random_states = distributed.gather_bytes(random_state(state.device))
    distributed.leader_first(lambda: _save(state, random_states, folder, keep))


def _save(state: TrainingState, random_states: list[Tensor], folder: Path, keep: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{STEP}{state.step}"
    sealing.wait()
    if not target.exists():
        _write(state, random_states, folder / f".writing-step-{state.step}", target)
    link(folder / LAST, target)
    best = folder / f"{STEP}{state.best_step}"
    if best.is_dir():
        link(folder / BEST, best)
    flush(folder)
    _drop_old(folder, keep)
    sealing.start(target)


def _write(state: TrainingState, random_states: list[Tensor], aside: Path, target: Path) -> None:
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir()
        state.write(aside, random_states)
        for path in (*aside.iterdir(), aside):
            flush(path)
        os.replace(aside, target)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)  # gives a full disk its space back
        raise UserError(
            f"the checkpoint {target} cannot be written ({error}); the ones before it are whole. Make room, and "
            "the same command resumes"
        ) from error


def newest(folder: Path) -> Path | None:
    """Return the newest whole checkpoint. `last` may name an older one after a kill between rename and link."""
    return next(reversed(whole(folder)), None)


def whole(folder: Path) -> list[Path]:
    """Return all checkpoints, oldest first. Folders with other names, such as a copy step-200.bak, do not count."""
    steps = [path for path in folder.glob(f"{STEP}*") if path.is_dir() and path.name.removeprefix(STEP).isdecimal()]
    return sorted(steps, key=step_of)


def step_of(path: Path) -> int:
    return int(path.name.removeprefix(STEP))


def link(place: Path, checkpoint: Path) -> None:
    """Let the link at `place` name a checkpoint beside it, unless it does so already."""
    if place.resolve() != checkpoint.resolve():
        point(place, checkpoint.name)


def _drop_old(folder: Path, keep: int) -> None:
    best = (folder / BEST).resolve()
    for path in whole(folder)[:-keep] if keep > 0 else []:
        if path.resolve() != best:
            shutil.rmtree(path)
    remove_leftovers(folder)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left: checkpoints and hashes that they were writing."""
    for leftover in folder.glob(".writing-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    for leftover in folder.glob(f"{STEP}*/.*"):
        leftover.unlink(missing_ok=True)


@dataclass(frozen=True)
class Ending:
    step: int  # steps done before the end
    how: str
    why: str = ""


class Diverged(UserError):
    """Reports that `what` was not finite, the checkpoints that remain, and a command to go on."""

    def __init__(self, what: str, run: Path, settings: dict[str, Any]):
        super().__init__(f"{what}\n{way_on(run, settings)}")
        self.what = what


@contextlib.contextmanager
def ending_noted(run: Path, state: TrainingState) -> Iterator[None]:
    """Record an error that ends the run within the block; remove the record of an earlier ending."""
    if distributed.world().leads:
        (run / ENDED).unlink(missing_ok=True)
    try:
        yield
    except Diverged as error:
        note_ending(run, Ending(state.step, DIVERGED, error.what))
        raise
    except Exception as error:
        note_ending(run, Ending(state.step, FAILED, str(error).split("\n")[0] or type(error).__name__))
        raise


def note_ending(run: Path, ending: Ending) -> None:
    if distributed.world().leads:
        with contextlib.suppress(OSError):  # a full disk may be the very error that is noted
            write_json(run / ENDED, asdict(ending))


def read_ending(run: Path) -> Ending | None:
    """Return the recorded early end; None if the run has finished, goes on, or was killed."""
    try:
        return Ending(**read_object(run / ENDED, _ENDING))
    except (OSError, UnfitFile, TypeError):
        return None


def way_on(run: Path, settings: dict[str, Any]) -> str:
    """Return the advice after divergence: the remaining checkpoints and a command. `settings` is as in config.json.
    The command lowers the rate. It starts from the best checkpoint, whose scores were finite, or begins anew."""
    left = _checkpoints_left(run / CHECKPOINTS)
    usual = default_settings(settings["preset"], settings["method"], settings.get("recipe"))
    rate = float(f"{min(settings['optim']['lr'] / LOWER, usual.optim.lr):.2g}")
    changed = settings | {"optim": settings["optim"] | {"lr": rate}, "run": str(run)}
    best = run / CHECKPOINTS / BEST
    if not best.exists():
        again = ["--restart"] if has_begun(run) else []
        return f"{left}Begin anew with a lower rate:\n  {train_command(changed, *again)}"
    changed = _from_weights(run, best, changed)
    return f"{left}Go on from the best in a new run, with a lower rate:\n  {train_command(changed)}"


def _from_weights(run: Path, weights: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings of a new run beside `run` that begins with these weights."""
    usual = default_settings(settings["preset"], settings["method"], settings.get("recipe"))
    frozen = settings["model"].get("frozen_image_tower", False)
    # The folder brings the whole model; other settings of it would be refused.
    model = as_dict(usual.model) | {"frozen_image_tower": frozen}
    number = 2
    while (name := run.with_name(f"{run.name}-{number}")).exists():
        number += 1
    return settings | {"init": str(weights), "model": model, "run": str(name)}


def refuse_longer(run: Path, settings: dict[str, Any]) -> None:
    """Refuse to prolong a finished run, whose schedule ended with it; name the command of a new run from its weights.

    `settings` is as in config.json. Other differences to the run's settings are left to `run_folder.claim`.
    """
    try:
        finished = is_run(run) and "step" in stored_scores(run)
        lines = difference(read_settings(run), settings) if finished else []
        old, new = flatten(read_settings(run)) if finished else {}, flatten(settings)
    except UserError:
        return  # a damaged file: `claim` reports it, and the end of training replaces scores
    names = [line.split(":")[0] for line in lines]
    if not names or not set(names) <= set(LENGTHS):
        return
    added = {name: new[name] - old[name] for name in names if None not in (old.get(name), new[name])}
    if min(added.values(), default=0) < 0:
        return  # the run is longer than asked
    more = {name.removeprefix("budget."): amount for name, amount in added.items()}
    longer = _from_weights(run, run, settings | {"budget": settings["budget"] | more})
    raise UserError(
        f"{run} has finished, and its schedule ended with it:\n  " + "\n  ".join(lines) +
        f"\nTrain on from its weights in a new run:\n  {train_command(longer)}"
    )  # fmt: skip


def _checkpoints_left(folder: Path) -> str:
    steps = whole(folder)
    if not steps:
        return "No step was taken before, so there is no checkpoint. "
    *older, last = steps
    best = folder / BEST
    names = [f"best ({best.resolve().name})"] if best.exists() else []
    names += [path.name for path in reversed(older) if path != best.resolve()]
    others = f"others in {folder}: {', '.join(names)}. " if names else "there is no other. "
    return f"The newest checkpoint, {last}, may have diverged already; {others}"


def train_command(settings: dict[str, Any], *more: str) -> str:
    """Return the `train` command for `settings` (as in config.json): differences to the defaults, then `more`."""
    preset, method, recipe = settings["preset"], settings["method"], settings.get("recipe")
    start = settings.get("init"), settings["model"].get("weights"), bool(settings.get("tune", {}).get("lora_rank"))
    replay, words = settings.get("tune", {}).get("replay"), ["dinorankclip", "train", "--preset", preset]
    natural = default_settings(preset, method, recipe, *start, data=settings["data"])
    usual = flatten(as_dict(default_settings(preset, method, recipe, *start, replay, settings["data"])))
    words += ["--tune.replay", "None"] if replay is None and natural.tune.replay is not None else []
    words += ["--method", method] if method != default_settings(preset, recipe=recipe).method else []
    words += ["--recipe", recipe] if recipe else []
    asked = flatten(settings)
    for name, value in usual.items():
        if name not in ("preset", "method", "recipe") and asked.get(name, value) != value:
            words += _flag(name, asked[name])
    return shlex.join([*words, *more])


def _flag(name: str, value: Any) -> list[str]:
    """Turn `("optim.lr", 0.1)` into `--optim.lr 0.1`; a switch is its name alone, with `no-` if it is off."""
    flag = f"--{name}".replace("_", "-")
    if isinstance(value, bool):
        group, dot, last = flag.removeprefix("--").rpartition(".")
        return [flag if value else f"--{group}{dot}no-{last}"]
    return [flag, *map(str, value)] if isinstance(value, list) else [flag, str(value)]
