"""What was scored of a model, read back: `scores.json` and, beside it, what each item contributed.

`scores.json` has two parts. "scores" is what `train` writes at the end of a run: {"val/i2t R@1": 0.21, …}, beside
fingerprints of the parts it scored in "held_out". "sets" is what `score` writes: {SET: {"fingerprint": …, "scores":
{METRIC: {"value": …, "version": …, "unit": …}}}}.
`scores_items.npz` holds "NAME" [N] with mean = the score, and where they matter "NAME#clusters" and "NAME#weights";
NAME is SET/METRIC.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dinorankclip.run_files import CHECKPOINTS, ITEMS, LAST, NUMBERS, SCORES
from dinorankclip.score_words import Unit
from dinorankclip.types import UserError

HELD_OUT = "held_out"
MODEL = "sets_model"  # which weights "sets" are scores of


@dataclass(frozen=True)
class Items:
    """Contributions of each item to one score, [N] each."""

    values: np.ndarray
    clusters: np.ndarray | None = None
    weights: np.ndarray | None = None


@dataclass(frozen=True)
class Entry:
    """One score. Two of them can be compared if `data` and `version` agree."""

    value: float
    unit: Unit = "share"
    data: str | None = None  # fingerprint of the set; None: not known, and single items cannot be paired
    version: int | None = None  # of the scorer
    items: Items | None = None
    chance: float | None = None  # what knowing nothing would give


@dataclass
class Scored:
    """All scores of a model by "SET/METRIC"; `trained` are those that train itself took."""

    folder: Path
    trained: dict[str, Entry] = field(default_factory=dict)
    sets: dict[str, Entry] = field(default_factory=dict)
    sets_step: int | None = None  # of the weights that the sets were scored with; None: not known, or no run


def step_of(run: Path) -> int | None:
    """Of a run's last checkpoint; None if this is no run, or has none."""
    path = run / CHECKPOINTS / LAST / NUMBERS
    return json.loads(path.read_text())["step"] if path.is_file() else None


def read_scores(folder: str | Path) -> Scored:
    folder = Path(folder)
    path = folder / SCORES
    if not folder.is_dir():
        raise UserError(
            f"there are no scores of {folder}: give a run folder or what `score --out` wrote, or score it first: "
            f"dinorankclip score {folder} --sets PATH"
        )
    if not path.is_file():
        raise UserError(
            f"{folder} has no {SCORES} yet: let its training end (the same train command resumes it), or score it: "
            f"dinorankclip score {folder} --sets PATH"
        )
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); score again") from error
    items = _read_items(folder / ITEMS)
    scored = Scored(folder, sets_step=found.get(MODEL, {}).get("step"))
    trained = found.get("scores", {})
    for name, value in trained.items():
        if not _beside_the_scores(name):
            data = found.get(HELD_OUT, {}).get(name.split("/")[0])
            scored.trained[name] = Entry(value, data=data, items=items.get(name), chance=trained.get(_chance(name)))
    for set_name, part in found.get("sets", {}).items():
        for metric, one in part["scores"].items():
            name = f"{set_name}/{metric}"
            scored.sets[name] = Entry(
                one["value"],
                one.get("unit", "share"),
                part.get("fingerprint"),
                one.get("version"),
                items.get(name),
                one.get("chance"),
            )
    return scored


def _chance(name: str) -> str:
    """`val/i2t R@1` → `val/chance R@1`, which train writes among its scores."""
    set_name, metric = name.split("/", 1)
    return f"{set_name}/chance {metric.split()[-1]}"


def _beside_the_scores(name: str) -> bool:
    """Numbers that train writes among its scores and that are none."""
    metric = name.split("/", 1)[1]
    return metric == "images" or metric.startswith("chance ")


def _read_items(path: Path) -> dict[str, Items]:
    if not path.is_file():
        return {}
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {
                name: Items(arrays[name], arrays.get(f"{name}#clusters"), arrays.get(f"{name}#weights"))
                for name in arrays
                if "#" not in name
            }
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is damaged ({error}); score again") from error
