"""The paper's own values in words: which are projections by its own statement, and which it prints as results."""

from __future__ import annotations

from collections.abc import Iterable

from dinorankclip.study.paper_values import LABEL, PaperValue
from dinorankclip.writeup.numbers import MISSING

IN_BLACK = "‡"


def paper_words(value: PaperValue | None, digits: int | None = None) -> str:
    """`11.30`, `9.06 ‡`; the paper prints percent as such, so that nothing is multiplied. Without `digits`, as many as
    the value needs."""
    if value is None:
        return MISSING
    number = f"{value.value:g}" if digits is None else f"{value.value:.{digits}f}"
    return f"{number} {IN_BLACK}" if value.black else number


def digits_for(values: Iterable[PaperValue | None]) -> int:
    """Digits behind the point that the longest of a column's values needs."""
    return max((_digits(value.value) for value in values if value is not None), default=0)


def about_paper(values: Iterable[PaperValue]) -> str:
    """The sentences that must stand below a table with these values."""
    colours = {value.black for value in values}
    found = [f"“{LABEL}”: the paper's numbers, of other data and models; none was measured here."]
    if False in colours:
        which = "Those without a mark" if True in colours else "They"
        found.append(
            f"{which} are projections by its own statement (red), “and will be replaced once the runs complete”."
        )
    if True in colours:
        found.append(f"{IN_BLACK}: printed as a result (black); of its baselines it says that they were retrained.")
    return " ".join(found)


def _digits(value: float) -> int:
    return len(f"{value:.6f}".rstrip("0").split(".")[1])
