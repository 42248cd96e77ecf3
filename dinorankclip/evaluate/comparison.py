"""Compares two scored models for `dinorankclip compare`: a row for each score that both have."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dinorankclip.evaluate.intervals import Difference, compare
from dinorankclip.evaluate.scores_file import Items, ModelScores, StoredScore
from dinorankclip.formatting import Unit


@dataclass(frozen=True)
class Row:
    """One score of two models; `difference` is None where the items of a model are not stored."""

    set: str
    metric: str
    unit: Unit
    a: float
    b: float
    chance: float | None
    difference: Difference | None


@dataclass
class Comparison:
    """`refused` says, set by set, why scores that both models have cannot be compared."""

    rows: list[Row] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def compare_scores(
    a: dict[str, StoredScore], b: dict[str, StoredScore], level: float = 0.95, draws: int = 1000
) -> Comparison:
    """Compare every score that both have, in the order of `a`; scores on other data or items are refused."""
    comparison = Comparison()
    for name in (name for name in a if name in b):
        set_name, metric = name.split("/", 1)
        first, second = a[name], b[name]
        if reason := _why_not(first, second):
            comparison.refused.setdefault(set_name, reason)
            continue
        difference = None
        if first.items and second.items and first.data is not None and second.data is not None:
            difference = compare(
                first.items.values, second.items.values, first.items.clusters, level=level, draws=draws,
                weights=first.items.weights,
            )  # fmt: skip
        row = Row(set_name, metric, first.unit, first.value, second.value, first.chance, difference)
        comparison.rows.append(row)
    return comparison


def only_one(a: ModelScores, b: ModelScores) -> list[str]:
    """Return the sets that only one of the two models was scored on."""
    of_a, of_b = ({name.split("/", 1)[0] for name in [*model.trained, *model.sets]} for model in (a, b))
    return sorted(of_a ^ of_b)


def _why_not(a: StoredScore, b: StoredScore) -> str:
    """Say why two scores of one name measure different things; empty if they do not."""
    if a.data != b.data and None not in (a.data, b.data):
        return "the data differs"
    if a.version != b.version:
        return f"scorer versions {a.version} and {b.version}"
    if a.items is not None and b.items is not None and not _same_layout(a.items, b.items):
        return "the items differ"
    return ""


def _same_layout(a: Items, b: Items) -> bool:
    return a.values.shape == b.values.shape and all(
        x is y is None or (x is not None and y is not None and np.array_equal(x, y))
        for x, y in ((a.clusters, b.clusters), (a.weights, b.weights))
    )
