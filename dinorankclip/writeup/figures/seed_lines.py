"""Points with intervals over seeds, as several figures need them."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from dinorankclip.study.effects import FEWEST_SEEDS, Effect, Summary, summary
from dinorankclip.study.results import Results
from dinorankclip.study.table_shapes import Column


def measured(results: Results, cells: Sequence[str], score: str) -> list[Summary | None]:
    """Of each cell; None where there is no finished run with the score."""
    return [summary(values) if (values := results.values(cell, score)) else None for cell in cells]


def draw_points(
    axes: Axes, xs: Sequence[float], found: Sequence[Summary | Effect | None], factor: float, shift: float = 0.0, **look
) -> None:
    """A line through the means with intervals as bars; cells that lack are left out, and so is the line past them."""
    there = [(x + shift, one) for x, one in zip(xs, found) if one is not None]
    if not there:
        return
    halves = [factor * (one.half or 0.0) for _, one in there]
    means = [factor * one.mean for _, one in there]
    if not any(halves):
        axes.plot([x for x, _ in there], means, **look)  # without bars, in the legend neither
        return
    axes.errorbar([x for x, _ in there], means, halves, capsize=2.5, elinewidth=1.1, **look)


def factor_of(column: Column) -> float:
    return 100.0 if column.percent else 1.0


def seeds_told(results: Results, cells: Sequence[str]) -> str:
    """The title of a figure's legend: n, and what its bars are."""
    several = any(len(results.of(cell)) >= FEWEST_SEEDS for cell in cells)
    return f"{counts(results, cells)}; " + ("bars: 95 % t-intervals" if several else "too few seeds for intervals")


def counts(results: Results, cells: Sequence[str]) -> str:
    """How many seeds stand behind a figure: `n = 3` or `n = 3 to 8`."""
    found = [len(results.of(cell)) for cell in cells if results.of(cell)]
    if not found:
        return "n = 0"
    return f"n = {min(found)}" if min(found) == max(found) else f"n = {min(found)} to {max(found)}"
