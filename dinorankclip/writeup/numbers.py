"""Numbers as a reader wants them: as many digits as the column needs, the same for all of its rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

MISSING = "–"


@dataclass(frozen=True)
class Form:
    """How the numbers of one column are written. What rounds to zero is written without a minus."""

    factor: float = 1.0
    digits: int = 2

    def plain(self, value: float) -> str:
        return f"{self.factor * value:z,.{self.digits}f}"

    def signed(self, value: float) -> str:
        return f"{self.factor * value:+z,.{self.digits}f}"

    def end(self, value: float) -> str:
        """Of an interval: the sign stays, since it tells on which side of zero it ends."""
        return f"{self.factor * value:,.{self.digits}f}"

    def with_half(self, mean: float, low: float | None, high: float | None, sign: bool = False) -> str:
        """`12.30 ± 0.45`; without an interval the mean alone."""
        text = self.signed(mean) if sign else self.plain(mean)
        return text if low is None or high is None else f"{text} ± {self.plain((high - low) / 2)}"


def form_of(values: Iterable[float], percent: bool) -> Form:
    """Shares become percent with two digits; other numbers get four digits in all, whatever their size."""
    if percent:
        return Form(100.0, 2)
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if largest == 0 or largest < 1:
        return Form(1.0, 4)
    return Form(1.0, max(0, 3 - math.floor(math.log10(largest))))
