"""One number with what it is made of, and what a scorer is.

A score keeps the contribution of every item, so that an interval can be drawn around it and two models compared on
the same items. Scorers see a set through a model (`seen.SeenSet`): embeddings and labels, never the model itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dinorankclip.score_words import Unit
from dinorankclip.scoring.bootstrap import interval

if TYPE_CHECKING:
    from dinorankclip.scoring.seen import SeenSet


@dataclass(frozen=True)
class Score:
    """`value` is the (weighted) mean of `items` [N], if there are any; `clusters` [N] are the images they belong to."""

    name: str
    value: float
    n: int
    unit: Unit = "share"
    items: np.ndarray | None = None
    clusters: np.ndarray | None = None
    weights: np.ndarray | None = None
    low: float | None = None
    high: float | None = None
    chance: float | None = None  # what knowing nothing would give
    scorer: str = ""
    version: int = 0


class Scorer(Protocol):
    """`version` grows whenever the same embeddings would give another number."""

    name: str
    version: int

    def applies(self, seen: SeenSet) -> bool: ...
    def __call__(self, seen: SeenSet) -> Iterator[Score]: ...


def mean_score(
    name: str,
    items: np.ndarray,
    clusters: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    *,
    unit: Unit = "share",
    chance: float | None = None,
) -> Score:
    """The score that is the mean of its items."""
    items = np.asarray(items, dtype=np.float64)
    value = float(np.average(items, weights=weights))
    return Score(name, value, len(items), unit, items, clusters, weights, chance=chance)


def combined_score(name: str, value: float, sides: Sequence[tuple[np.ndarray, float]]) -> Score:
    """Σ weight · mean(items) over sides with items of their own, as the mean of centred contributions of all items.

    Their mean is `value`, and resampling them resamples every side: this gives differences and averages of scores on
    different images an interval.
    """
    total = sum(len(items) for items, _ in sides)
    parts = [value + weight * total / len(items) * (items - items.mean()) for items, weight in sides]
    return mean_score(name, np.concatenate(parts))


OWN_LEVEL = 0.95  # of intervals that a scorer takes itself


def average_score(name: str, scores: Sequence[Score]) -> Score:
    """The mean of scores of different sets, which count alike, however many items they have."""
    value = float(np.mean([score.value for score in scores]))
    sides = []
    for score in scores:
        assert score.items is not None, "scores just taken have their items"
        sides.append((score.items, 1 / len(scores)))
    return combined_score(name, value, sides)


def with_intervals(scores: Iterable[Score], level: float = 0.95, draws: int = 1000) -> Iterator[Score]:
    """Add an interval to every score that has items, and none of this level yet; scorers bring those of `OWN_LEVEL`."""
    for score in scores:
        if score.items is None or (score.low is not None and level == OWN_LEVEL):
            yield score
            continue
        low, high = interval(score.items, score.clusters, level=level, draws=draws, weights=score.weights)
        yield replace(score, low=low, high=high)
