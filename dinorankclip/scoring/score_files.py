"""Writes what `scored.read_scores` reads: `scores.json`, merged with what is there, and the items beside it.

Scores of the same weights add up over calls, set by set and metric by metric, as long as the set is the same. Scores
of other weights (the run went on) are dropped.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip.locks import one_at_a_time
from dinorankclip.run_files import ITEMS, SCORES
from dinorankclip.scoring.scored import MODEL
from dinorankclip.scoring.scores import OWN_LEVEL, Score
from dinorankclip.scoring.suite import SetResult, SuiteResult
from dinorankclip.whole_files import whole_file, write_json

WRITING = ".scores"  # the lock of a folder whose scores are added to

NUMBERS = ("value", "low", "high", "n", "unit", "chance", "scorer", "version")  # of a score, in scores.json


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
    known = {name: value for name in NUMBERS if (value := getattr(score, name)) is not None}
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
