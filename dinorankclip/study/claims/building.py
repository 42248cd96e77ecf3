"""Short forms in which the claims are written down."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, zip_longest

from ..paper_values import PAPER
from ..paper_values import gain as projected_gain
from ..verdicts import Unit
from .quantities import QUALITY, Quantity, Score, gain
from .shapes import Contrast


def points(table: str, column: str, row: str, over: str) -> float:
    """The paper's projected difference of two rows as a share (a point is 0.01), without its sign."""
    return abs(projected_gain(table, column, row, over)) / 100


def relative(table: str, column: str, row: str, over: str) -> float:
    """The paper's projected relative gain, as a share."""
    return PAPER[table][row][column] / PAPER[table][over][column] - 1


def better(
    cell: str, over: str, score: Score, size: float | None = None, what: str = "", borrowed: str = ""
) -> Contrast:
    """`cell` scores higher than `over`."""
    return Contrast(_label(cell, over, what), gain(cell, over, score), 1, size, _unit(score), borrowed)


def worse(cell: str, over: str, score: Score, size: float | None = None, what: str = "") -> Contrast:
    return Contrast(_label(cell, over, what), gain(cell, over, score), -1, size, _unit(score))


def smaller(cell: str, over: str, score: Score, size: float | None = None, unit: Unit = "degrees") -> Contrast:
    """`cell` measures less than `over`, in degrees unless another unit is given."""
    return Contrast(_label(cell, over, ""), gain(cell, over, score), -1, size, unit)


def rising(cells: Sequence[str], score: Score, sizes: Sequence[float] = (), what: str = "") -> tuple[Contrast, ...]:
    """Each cell better than the one before; `sizes` of the steps, if the paper has them."""
    steps = zip_longest(pairwise(cells), sizes)
    return tuple(better(cell, before, score, size, what) for (before, cell), size in steps)


def named(
    label: str, quantity: Quantity, size: float | None = None, unit: Unit = "points", borrowed: str = ""
) -> Contrast:
    return Contrast(label, quantity, 1, size, unit, borrowed)


def _unit(score: Score) -> Unit:
    """Scores are shares, but for τ-b."""
    return "number" if score is QUALITY else "points"


def _label(cell: str, over: str, what: str) -> str:
    return f"{cell} - {over}" + (f", {what}" if what else "")
