"""What knowing nothing would score, and which cells are not shown to know more."""

from __future__ import annotations

from collections.abc import Iterable

from .effects import summary
from .measures import measures_of
from .results import Results
from .verdicts import SMALLEST

RECALL = " R@"


def chance_of(results: Results, score: str) -> float | None:
    """As the sets tell it; of means over sets, which have none there, as the study's measures do. None: not known."""
    return results.chances.get(score, measures_of(results.name).chance(score))


def at_chance(results: Results, cells: Iterable[str], share: str) -> bool:
    """Whether none of these cells is shown to be a point above chance in this share, by the lower end of its interval
    or, with too few seeds for one, by its mean. False where chance is not known, or nothing was run; and of recalls,
    whose chance is so small that a point is many times as much."""
    chance = None if RECALL in share else chance_of(results, share)
    found = [summary(values) for cell in cells if (values := results.values(cell, share))]
    if chance is None or not found:
        return False
    return max(one.mean if one.low is None else one.low for one in found) < chance + SMALLEST["points"]
