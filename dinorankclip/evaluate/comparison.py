"""Two scored models side by side: a row for each score that both have."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dinorankclip.evaluate.intervals import Difference, compare
from dinorankclip.evaluate.scores_file import Entry, Items, Scored
from dinorankclip.formatting import Unit


@dataclass(frozen=True)
class Row:
    """`difference` is None where one of the two kept no items."""

    set: str
    metric: str
    unit: Unit
    a: float
    b: float
    chance: float | None
    difference: Difference | None


@dataclass
class Comparison:
    """`refused` says, set by set, why scores that both have cannot be compared."""

    rows: list[Row] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def compare_scores(a: dict[str, Entry], b: dict[str, Entry], level: float = 0.95, draws: int = 1000) -> Comparison:
    """Every score that both have, in the order of `a`; what was taken on other data or items is refused."""
    found = Comparison()
    for name in a:
        set_name, metric = name.split("/", 1)
        if name not in b:
            continue
        wrong = _unlike(a[name], b[name])
        if wrong:
            found.refused.setdefault(set_name, wrong)
            continue
        one, other = a[name], b[name]
        difference = _paired(one, other, level, draws)
        found.rows.append(Row(set_name, metric, one.unit, one.value, other.value, one.chance, difference))
    return found


def only_one(a: Scored, b: Scored) -> list[str]:
    """Sets that only one of the two was scored on."""
    of = [{name.split("/", 1)[0] for name in [*scored.trained, *scored.sets]} for scored in (a, b)]
    return sorted(of[0] ^ of[1])


def _paired(a: Entry, b: Entry, level: float, draws: int) -> Difference | None:
    if a.items is None or b.items is None or a.data is None or b.data is None:
        return None
    return compare(a.items.values, b.items.values, a.items.clusters, level=level, draws=draws, weights=a.items.weights)


def _unlike(a: Entry, b: Entry) -> str:
    """Why two scores of one name are not of the same thing; empty if they are."""
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
