"""Compares a fine-tuned model with the weights that it started from: on its own held-out parts and on a general set.

The general set is named by the user (`tune.general`), or it is the data that the run of `--init` was trained on; if
that run was fine-tuned itself, the data of the first run, or the general set of its own fine-tuning. The table is of
the test part; the blend (blend.py) is chosen on the validation part, or on the same part if there is one alone.
Differences are paired by item, with intervals over images. Images whose captions are the same ("a photo of a NAME")
share one text query, whose hit changes for all of them at once: they are drawn, or left out, together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip.config import TrainSettings
from dinorankclip.data.benchmark_sets import SetLocation, find_sets, open_set
from dinorankclip.data.open_data import located
from dinorankclip.evaluate.embeddings import EmbeddingStore
from dinorankclip.evaluate.intervals import compare
from dinorankclip.evaluate.retrieval import KS, RetrievalScorer
from dinorankclip.evaluate.scores import EmbeddedSet, Score
from dinorankclip.evaluate.zero_shot import ZeroShotScorer
from dinorankclip.finetuning import NONE
from dinorankclip.formatting import WAYS, bare
from dinorankclip.hub import online
from dinorankclip.models.loaded import LoadedModel
from dinorankclip.run_files import read_settings, runs_behind
from dinorankclip.train.cost import run_data
from dinorankclip.types import UserError

OWN, GENERAL = "own", "general"
MOST_DAMAGED = 0.05  # share of images of a general set that may be unreadable
MOST_IMAGES = 2000  # of a part of a general set of pairs: enough for an interval of two points, and minutes on a CPU
SHOWN = ("i2t R@1", "t2i R@1", "i2t R@10", "t2i R@10", "T@1", "mean per class")
WHICH = (
    "no general set is known, so nothing says what the model forgets: name pairs or an evaluation set that looks like "
    "what it was trained on, --tune.general DATA (for published CLIP weights: 1,000 pairs of COCO or Flickr30k, "
    "or the ImageNet validation set)"
)


def general_set(settings: TrainSettings) -> SetLocation | None:
    """Return the general set of a run; None if there is none, or if it is the run's own data."""
    where, reading = settings.tune.general, None
    if where == NONE:
        return None
    runs, whole = runs_behind(settings.init) if settings.init else ([], False)
    if where is None and runs and not whole:  # published weights, fine-tuned before: the general set of that time
        where = next((one for run in runs if (one := read_settings(run).get("tune", {}).get("general"))), NONE)
        if where == NONE or where.startswith("pipe:") or ("://" in where and not online()):
            return None
    if where is None:
        known = run_data(runs[-1]) if runs else None
        if known is None or known.is_same(settings.data) or known.where.startswith("pipe:"):
            return None
        if "://" in known.where and not online():
            return None
        where, reading = known.where, known.reading
    else:  # what a run held out of it stays held out
        reading = next((known.reading for run in runs if (known := run_data(run)) and known.is_same(where)), None)
    try:
        sets = find_sets(located(where), reading)  # of built-in data, their pairs
    except UserError:
        if settings.tune.general is None:  # the data of the start are gone
            return None
        raise
    if len(sets) != 1:
        names = ", ".join(str(Path(where) / each.name) for each in sets)
        raise UserError(f"{where} holds {len(sets)} sets; name one of them by --tune.general: {names}")
    return sets[0]


def parts_of(location: SetLocation) -> tuple[str, str]:
    """Return the part on which a blend is chosen and the part of the table; they may be the same."""
    benchmark = open_set(location)
    table = benchmark.scored_split()
    return ("val" if "val" in benchmark.splits else table), table


def set_scores(model: LoadedModel, location: SetLocation, part: str, store: EmbeddingStore) -> dict[str, Score]:
    """Return the scores of a model on a part of a set, with items."""
    embedded = EmbeddedSet(open_set(location), part, model, store, max_damaged=MOST_DAMAGED, most=MOST_IMAGES)
    if embedded.kind != "retrieval":
        return {score.name: score for score in ZeroShotScorer()(embedded)}
    return {score.name: score for score in RetrievalScorer()(embedded)}


def mean_recall(scores: Mapping[str, Score]) -> float:
    """Return the number by which a general set is watched: the mean of R@1, R@5 and R@10 both ways, or the accuracy."""
    if "T@1" in scores:
        return scores["T@1"].value
    names = [f"{way} R@{k}" for way in WAYS for k in KS]
    return float(np.mean([scores[name].value for name in names if name in scores]))


@dataclass(frozen=True)
class Items:
    """Holds the contributions [N] to one number, their clusters [N] if items share any, and their weights. `images`
    is the number of images that were looked at."""

    values: np.ndarray
    clusters: np.ndarray | None = None
    weights: np.ndarray | None = None
    images: int = 0


def items_of(scores: Mapping[str, Score]) -> Items:
    """Return what `mean_recall` is the mean of: the accuracy's items, or the mean recall both ways of each image, or of
    images with the same captions together."""
    if (accuracy := scores.get("T@1")) is not None:
        assert accuracy.items is not None, "an accuracy has items"
        return Items(accuracy.items, accuracy.clusters, accuracy.weights, len(accuracy.items))
    ways, images = [], 0
    for way in WAYS:
        held = [score for k in KS if (score := scores.get(f"{way} R@{k}")) is not None]
        if not held:
            raise UserError("the general set has too few images for a recall: name a larger one, --tune.general DATA")
        hits = np.mean([np.asarray(score.items, np.float64) for score in held], axis=0)
        images = images or len(hits)
        label = held[0].clusters
        if label is not None:  # every query counts once, so the mean is that of all queries
            hits = np.bincount(label, hits) * (label.max() + 1) / len(hits)
        ways.append(hits)
    return Items(np.mean(ways, axis=0), images=images)


def gains(kind: str, part: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each score that is shown: before, after, and their paired difference. `before` and `after` hold
    scores, or stored items, by name."""
    for name in SHOWN:
        a, b = (held.get(name) for held in (before, after))
        if a is None or b is None:
            continue
        old, new = (np.asarray(each.items if isinstance(each, Score) else each.values, np.float64) for each in (a, b))
        if old.shape != new.shape:  # damaged images came or went
            continue
        found = compare(old, new, b.clusters, weights=b.weights)
        yield {
            "of": kind, "part": part, "score": name,
            "before": float(np.average(old, weights=b.weights)), "after": float(np.average(new, weights=b.weights)),
            "low": found.low, "high": found.high, "n": found.n, "verdict": found.verdict,
        }  # fmt: skip


def gains_table(rows: list[dict[str, Any]], level: float = 0.95) -> str:
    """Return the rows as a table of percentages."""
    span = f"{100 * level:g} % interval"
    lines = [f"{'before and after, %':<34}{'before':>8}{'after':>8}{'gain':>8}{span:>20}"]
    for row in rows:
        way, _, rest = row["score"].partition(" ")
        words = f"{WAYS[way]} {rest}" if way in WAYS else {"T@1": "zero-shot accuracy"}.get(row["score"], row["score"])
        numbers = [bare(row[key], "share") for key in ("before", "after")]
        gain = bare(row["after"] - row["before"], "share", "+")
        interval = f"{bare(row['low'], 'share', '+')} … {bare(row['high'], 'share', '+')}"
        place = f"{row['of']} {row['part']}"
        lines.append(f"{place:<14}{words:<20}{numbers[0]:>8}{numbers[1]:>8}{gain:>8}{interval:>20}")
    return "\n".join(lines)
