"""How scores are written for readers, wherever they are printed: digits and sign of each unit, and retrieval on
held-out parts by part and direction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Unit = Literal["share", "degrees", "number"]  # shares are shown in percent
RECALLS = ("R@1", "R@5", "R@10")
WAYS = {"i2t": "image → text", "t2i": "text → image"}


class Writing(NamedTuple):
    factor: float
    digits: int
    sign: str


WRITINGS: Mapping[Unit, Writing] = {
    "share": Writing(100.0, 2, " %"),
    "degrees": Writing(1.0, 2, "°"),
    "number": Writing(1.0, 4, ""),
}


def bare(value: float, unit: Unit, plus: Literal["", "+"] = "") -> str:
    """The number without its sign, for columns and intervals that have it elsewhere: `12.30`"""
    factor, digits, _ = WRITINGS[unit]
    return f"{factor * value:{plus}.{digits}f}"


def written(value: float, unit: Unit, plus: Literal["", "+"] = "") -> str:
    """`12.30 %`, `61.50°`, `0.1234`; `plus` shows the sign of differences."""
    return bare(value, unit, plus) + WRITINGS[unit].sign


def held_out(scores: Mapping[str, float]) -> dict[str, dict[str, tuple[float | None, ...]]]:
    """{"val": {"image → text": (R@1, R@5, R@10), …}, …} of `val/i2t R@1` and so on; directions without any recall are
    left out."""
    found: dict[str, dict[str, tuple[float | None, ...]]] = {}
    for part in dict.fromkeys(name.split("/")[0] for name in scores):
        ways = {words: tuple(scores.get(f"{part}/{way} {k}") for k in RECALLS) for way, words in WAYS.items()}
        found[part] = {words: cells for words, cells in ways.items() if any(cell is not None for cell in cells)}
    return {part: ways for part, ways in found.items() if ways}


def images_scored(scores: Mapping[str, float]) -> dict[str, int]:
    """Held-out part → how many images it was scored on, where that was kept."""
    return {name.split("/")[0]: round(value) for name, value in scores.items() if name.endswith("/images")}


# -------- numbers
# Numbers as a reader wants them: as many digits as the column needs, the same for all of its rows.

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


# -------- surroundings
# A run's environment.json in words.


def described(about: dict[str, Any]) -> str:
    """`Python 3.11.7, Linux x86_64, 2 cores, 1 thread, no GPU, fp32 on cpu; torch 2.13.0, …`"""
    packages = ", ".join(f"{name} {version}" for name, version in about["packages"].items() if version)
    gpus = ", ".join(about["gpus"]) or "no GPU"
    threads = f"{about['threads']} thread{'s' if about['threads'] != 1 else ''}"
    kind = f", {about['precision']} on {about['device']}" if "precision" in about else ""
    return f"Python {about['python']}, {about['system']}, {about['cores']} cores, {threads}, {gpus}{kind}; {packages}"
