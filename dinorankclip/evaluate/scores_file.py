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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip.evaluate.scores import OWN_LEVEL, Score
from dinorankclip.evaluate.suite import SetResult, SuiteResult
from dinorankclip.formatting import Unit
from dinorankclip.io import one_at_a_time, whole_file, write_json
from dinorankclip.run_files import CHECKPOINTS, ITEMS, LAST, NUMBERS, SCORES
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


# -------- score_files
# Writes what `scored.read_scores` reads: `scores.json`, merged with what is there, and the items beside it.
#
# Scores of the same weights add up over calls, set by set and metric by metric, as long as the set is the same. Scores
# of other weights (the run went on) are dropped.

WRITING = ".scores"  # the lock of a folder whose scores are added to

SCORE_COLUMNS = ("value", "low", "high", "n", "unit", "chance", "scorer", "version")  # of a score, in scores.json


def write_scores(folder: Path, model: Any, found: SuiteResult, step: int | None = None) -> Path:
    """Add the scores of a loaded model to a folder; what `train` wrote stays. Returns the path of scores.json.

    `step`: of a run's checkpoint when it was loaded; the run may have gone on since.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(WRITING, folder):
        return _add_scores(folder, model, found, step)


def _add_scores(folder: Path, model: Any, found: SuiteResult, step: int | None) -> Path:
    stored = _read(folder / SCORES)
    same = stored.get(MODEL, {}).get("identity") == model.identity
    sets = stored.get("sets", {}) if same else {}
    items = _items(folder / ITEMS) if same else {}
    trained = {name: array for name, array in _items(folder / ITEMS).items() if name.split("/")[0] not in _sets(stored)}
    for result in found.sets.values():
        told = _as_json(result, found.level)
        known = sets.get(result.name, {})
        if known.get("fingerprint") == result.fingerprint and known.get("images") == result.images:
            told["scores"] = known["scores"] | told["scores"]  # other metrics of the same items
        else:
            items = {name: array for name, array in items.items() if not name.startswith(f"{result.name}/")}
        sets[result.name] = told
        items |= _arrays(result)
    stored |= {
        MODEL: {"name": model.name, "identity": model.identity, "reason": model.reason, "step": step},
        "sets": sets,
        "set_errors": found.errors,
    }
    _write_items(folder / ITEMS, trained | items)
    write_json(folder / SCORES, stored)
    return folder / SCORES


def write_training_items(folder: Path, taken: Mapping[str, Score]) -> None:
    """Items of what `train` scored, "val/i2t R@1" and so on; those of sets stay. To be called with the lock `WRITING`,
    as all that reads scores to write them again."""
    names = {name.split("/")[0] for name in taken}
    others = {name: array for name, array in _items(folder / ITEMS).items() if name.split("/")[0] not in names}
    arrays = {name: array for full, score in taken.items() for name, array in _arrays_of(full, score).items()}
    _write_items(folder / ITEMS, others | arrays)


def _as_json(result: SetResult, level: float) -> dict[str, Any]:
    return {
        "kind": result.kind,
        "split": result.split,
        "images": result.images,
        "fingerprint": result.fingerprint,
        "notes": result.notes,
        "scores": {name: _number(score, level) for name, score in result.scores.items()},
    }


def _number(score: Score, level: float) -> dict[str, Any]:
    known = {name: value for name in SCORE_COLUMNS if (value := getattr(score, name)) is not None}
    # What has no items to draw from keeps the interval that its scorer took.
    return known | ({"level": OWN_LEVEL if score.items is None else level} if "low" in known else {})


def _arrays(result: SetResult) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for name, score in result.scores.items():
        found |= _arrays_of(f"{result.name}/{name}", score)
    return found


def _arrays_of(name: str, score: Score) -> dict[str, np.ndarray]:
    if score.items is None:
        return {}
    found = {name: score.items.astype(np.float32)}
    if score.clusters is not None:
        found[f"{name}#clusters"] = score.clusters.astype(np.int32)
    if score.weights is not None:
        found[f"{name}#weights"] = score.weights.astype(np.float32)
    return found


def _sets(stored: dict[str, Any]) -> set[str]:
    return set(stored.get("sets", {}))


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}  # absent, or damaged: written anew


def _items(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return {}


def _write_items(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    with whole_file(path) as aside, open(aside, "wb") as file:
        # The stubs take any name for `allow_pickle`.
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
