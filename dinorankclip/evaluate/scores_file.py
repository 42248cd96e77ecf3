"""Reads, writes and compares scores of models: `scores.json`, and the contributions of single items beside it.

`scores.json` has two halves. `train` writes "scores": {"val/i2t R@1": 0.21, …} at the end of a run, with the
fingerprints of the parts that it scored in "held_out". `score` writes "sets": {SET: {"fingerprint": …, "scores":
{METRIC: {"value": …, "version": …, "unit": …}}}}, with the weights that they belong to in "sets_model". Scores of the
same weights add up over calls, as long as the set is the same; scores of other weights (the run went on) are dropped.

`scores_items.npz` holds "SET/METRIC" [N], whose mean is the score, and where they matter "SET/METRIC#clusters" and
"SET/METRIC#weights". Earlier rooms read `scores.json` by `run_files.stored_scores`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip.checked_files import UnfitFile, read_arrays
from dinorankclip.checksums import sealed
from dinorankclip.evaluate.intervals import Difference, compare
from dinorankclip.evaluate.scores import OWN_LEVEL, Score
from dinorankclip.evaluate.suite import SetResult, SuiteResult
from dinorankclip.formatting import Unit
from dinorankclip.io import one_at_a_time, whole_file, write_json
from dinorankclip.run_files import CHECKPOINTS, ITEMS, LAST, SCORES, read_numbers, stored_scores
from dinorankclip.types import UserError

HELD_OUT = "held_out"
MODEL = "sets_model"
SCORE_COLUMNS = ("value", "low", "high", "n", "unit", "chance", "scorer", "version")  # entries of a score in "sets"
_LOCK = ".scores"  # held by a process that reads the scores of a folder to write them again


@dataclass(frozen=True)
class Items:
    """Holds the contributions of each item to one score, [N] each."""

    values: np.ndarray
    clusters: np.ndarray | None = None
    weights: np.ndarray | None = None


@dataclass(frozen=True)
class StoredScore:
    """Holds one score that was read back. Two scores can be compared if `data` and `version` agree."""

    value: float
    unit: Unit = "share"
    data: str | None = None  # fingerprint of the set; None: not known, and single items cannot be paired
    version: int | None = None  # version of the scorer
    items: Items | None = None
    chance: float | None = None  # the score of a model that knows nothing


@dataclass
class ModelScores:
    """Holds all scores of a model by "SET/METRIC"; `trained` are the scores that `train` took."""

    folder: Path
    trained: dict[str, StoredScore] = field(default_factory=dict)
    sets: dict[str, StoredScore] = field(default_factory=dict)
    sets_step: int | None = None  # step of the weights that the sets were scored with; None: unknown, or no run


def step_of(run: Path) -> int | None:
    """Return the step of a run's last checkpoint; None if this is no run, or has no checkpoint."""
    return read_numbers(run / CHECKPOINTS / LAST).get("step")


def read_scores(folder: str | Path) -> ModelScores:
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(
            f"there are no scores of {folder}: give a run folder or the folder of `score --out`, or score it first: "
            f"dinorankclip score {folder} --sets PATH"
        )
    if not (folder / SCORES).is_file():
        raise UserError(
            f"{folder} has no {SCORES} yet: let its training end (the same train command resumes it), or score it: "
            f"dinorankclip score {folder} --sets PATH"
        )
    try:
        stored = stored_scores(folder)
    except UserError as error:
        raise UserError(f"{error}; score again") from error
    items = read_items(folder)
    model = ModelScores(folder, sets_step=stored.get(MODEL, {}).get("step"))
    trained, held_out = stored.get("scores", {}), stored.get(HELD_OUT, {})
    for name, value in trained.items():
        part, _, metric = name.partition("/")
        if metric != "images" and not metric.startswith("chance "):  # numbers that train writes among its scores
            chance = trained.get(f"{part}/chance {metric.split()[-1]}")
            model.trained[name] = StoredScore(value, data=held_out.get(part), items=items.get(name), chance=chance)
    for set_name, result in stored.get("sets", {}).items():
        for metric, score in result["scores"].items():
            name = f"{set_name}/{metric}"
            unit, version, chance = score.get("unit", "share"), score.get("version"), score.get("chance")
            data = result.get("fingerprint")
            model.sets[name] = StoredScore(score["value"], unit, data, version, items.get(name), chance)
    return model


def write_scores(folder: Path, model: Any, result: SuiteResult, step: int | None = None) -> Path:
    """Add the scores of a loaded model to a folder; the scores of `train` stay. Returns the path of scores.json.

    `step` is the step of the run's checkpoint when it was loaded; the run may have gone on since.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(_LOCK, folder):
        stored, arrays = _read_or_begin(folder)
        old_sets = stored.get("sets", {})
        of_training = {name: array for name, array in arrays.items() if name.split("/")[0] not in old_sets}
        same_weights = stored.get(MODEL, {}).get("identity") == model.identity
        sets, arrays = (old_sets, arrays) if same_weights else ({}, {})
        for scored in result.sets.values():
            entry, old = _as_json(scored, result.level), sets.get(scored.name, {})
            if old.get("fingerprint") == scored.fingerprint and old.get("images") == scored.images:
                entry["scores"] = old["scores"] | entry["scores"]  # other metrics of the same items
            else:
                arrays = {name: array for name, array in arrays.items() if not name.startswith(f"{scored.name}/")}
            sets[scored.name] = entry
            arrays |= _arrays({f"{scored.name}/{name}": score for name, score in scored.scores.items()})
        weights = {"name": model.name, "identity": model.identity, "reason": model.reason, "step": step}
        _write(folder, stored | {MODEL: weights, "sets": sets, "set_errors": result.errors}, of_training | arrays)
    return folder / SCORES


def write_training_scores(folder: Path, numbers: dict[str, Any], scores: Mapping[str, Score]) -> None:
    """Write the scores of `train`: "step", "scores" and so on in `numbers`, and the items of `scores` ("val/i2t R@1").

    Scores of sets stay if they were taken at the same step, and their items stay anyway.
    """
    with one_at_a_time(_LOCK, folder):
        stored, arrays = _read_or_begin(folder)
        if stored.get("step") != numbers.get("step"):
            stored = {}  # `score` wrote while the run went on, so these are scores of earlier weights
        parts = {name.split("/")[0] for name in scores}
        others = {name: array for name, array in arrays.items() if name.split("/")[0] not in parts}
        _write(folder, stored | numbers, others | _arrays(scores))


def read_items(folder: Path, name: str = ITEMS) -> dict[str, Items]:
    """Return the items of all scores by "SET/METRIC"; empty if there is no such file."""
    try:
        arrays = _read_arrays(folder, name)
    except UnfitFile as error:
        raise UserError(f"{error}; score again") from error
    return {
        name: Items(array, arrays.get(f"{name}#clusters"), arrays.get(f"{name}#weights"))
        for name, array in arrays.items()
        if "#" not in name
    }


def _read_arrays(folder: Path, name: str = ITEMS) -> dict[str, np.ndarray]:
    if not (folder / name).is_file():
        return {}
    arrays = read_arrays(folder / name)
    if unfit := [name for name, array in arrays.items() if array.ndim != 1 or array.dtype.kind not in "fiu"]:
        raise UnfitFile(f"{folder / name} is damaged: {unfit[0][:80]} is no list of numbers")
    return arrays


def _read_or_begin(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return scores and arrays of items; damaged files count as empty and are written anew."""
    try:
        stored = stored_scores(folder)
    except UserError:
        stored = {}
    try:
        return stored, _read_arrays(folder)
    except (OSError, UnfitFile):
        return stored, {}


def _write(folder: Path, stored: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    _write_arrays(folder / ITEMS, arrays)
    write_json(folder / SCORES, sealed(stored))


def write_items(path: Path, scores: Mapping[str, Score]) -> None:
    """Write the items of scores by "SET/METRIC", as they lie beside scores.json."""
    _write_arrays(path, _arrays(scores))


def _write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    with whole_file(path) as aside, open(aside, "wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # taken for `allow_pickle`


def _as_json(result: SetResult, level: float) -> dict[str, Any]:
    scores = {}
    for name, score in result.scores.items():
        scores[name] = {column: value for column in SCORE_COLUMNS if (value := getattr(score, column)) is not None}
        if score.low is not None:  # a score without items keeps the interval that its scorer took
            scores[name]["level"] = OWN_LEVEL if score.items is None else level
    about = {name: getattr(result, name) for name in ("kind", "split", "images", "fingerprint", "notes")}
    return about | {"scores": scores}


def _arrays(scores: Mapping[str, Score]) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for name, score in scores.items():
        if score.items is None:
            continue
        arrays[name] = score.items.astype(np.float32)
        if score.clusters is not None:
            arrays[f"{name}#clusters"] = score.clusters.astype(np.int32)
        if score.weights is not None:
            arrays[f"{name}#weights"] = score.weights.astype(np.float32)
    return arrays


@dataclass(frozen=True)
class ComparedScore:
    """Holds one score of two models; `difference` is None where the items of a model are not stored."""

    set: str
    metric: str
    unit: Unit
    a: float
    b: float
    chance: float | None
    difference: Difference | None


def compare_scores(
    a: ModelScores, b: ModelScores, level: float, draws: int
) -> tuple[list[ComparedScore], dict[str, str]]:
    """Compare every score that both models have, in the order of `a`.

    The second result says, set by set, why scores that both models have cannot be compared.
    """
    compared: list[ComparedScore] = []
    refused: dict[str, str] = {}
    groups = (a.trained, b.trained), (a.sets, b.sets)
    for name, first, second in ((name, x[name], y[name]) for x, y in groups for name in x if name in y):
        set_name, metric = name.split("/", 1)
        if reason := _why_not(first, second):
            refused.setdefault(set_name, reason)
            continue
        difference = None
        if first.items and second.items and first.data is not None and second.data is not None:
            difference = compare(
                first.items.values, second.items.values, _coarser(first.items, second.items), level=level, draws=draws,
                weights=first.items.weights,
            )  # fmt: skip
        values = first.value, second.value
        compared.append(ComparedScore(set_name, metric, first.unit, *values, first.chance, difference))
    return compared, refused


def only_one(a: ModelScores, b: ModelScores) -> list[str]:
    """Return the sets that only one of the two models was scored on."""
    of_a, of_b = ({name.split("/", 1)[0] for name in [*model.trained, *model.sets]} for model in (a, b))
    return sorted(of_a ^ of_b)


def _why_not(a: StoredScore, b: StoredScore) -> str:
    """Return why two scores of one name measure different things; empty if they do not."""
    if a.data != b.data and None not in (a.data, b.data):
        return "the data differs"
    if a.version != b.version:
        return f"scorer versions {a.version} and {b.version}"
    if a.items is not None and b.items is not None and not _same_layout(a.items, b.items):
        return "the items differ"
    return ""


def _same_layout(a: Items, b: Items) -> bool:
    """Return whether two scores have the same items with the same weights, in clusters that one of them only joins."""
    if a.values.shape != b.values.shape:
        return False
    same_weights = a.weights is b.weights is None or (
        a.weights is not None and b.weights is not None and np.array_equal(a.weights, b.weights)
    )
    fine, coarse = _fine_and_coarse(a, b)
    return same_weights and len(np.unique(np.stack([fine, coarse]), axis=1).T) == len(np.unique(fine))


def _coarser(a: Items, b: Items) -> np.ndarray | None:
    """Return the larger clusters of two: older scores drew images with the same captions one by one."""
    return None if a.clusters is b.clusters is None else _fine_and_coarse(a, b)[1]


def _fine_and_coarse(a: Items, b: Items) -> tuple[np.ndarray, np.ndarray]:
    labels = [np.arange(len(each.values)) if each.clusters is None else each.clusters for each in (a, b)]
    fine, coarse = sorted(labels, key=lambda label: -len(np.unique(label)))
    return fine, coarse
