"""Formats scores, table columns and environments for readers, the same way wherever they are printed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Unit = Literal["share", "degrees", "number"]  # shares are shown in percent
MISSING = "–"
RECALLS = ("R@1", "R@5", "R@10")
WAYS = {"i2t": "image → text", "t2i": "text → image"}

# unit → factor, digits, sign
_UNITS: Mapping[Unit, tuple[float, int, str]] = {
    "share": (100.0, 2, " %"),
    "degrees": (1.0, 2, "°"),
    "number": (1.0, 4, ""),
}


def bare(value: float, unit: Unit, plus: Literal["", "+"] = "") -> str:
    """Format a score without the sign of its unit, for columns that name the unit elsewhere: `12.30`."""
    factor, digits, _ = _UNITS[unit]
    return f"{factor * value:{plus}.{digits}f}"


def written(value: float, unit: Unit, plus: Literal["", "+"] = "") -> str:
    """Format a score: `12.30 %`, `61.50°`, `0.1234`; `plus` shows the sign of differences."""
    return bare(value, unit, plus) + _UNITS[unit][2]


def held_out(scores: Mapping[str, float]) -> dict[str, dict[str, tuple[float | None, ...]]]:
    """Sort retrieval scores such as `val/i2t R@1` by part and direction: {"val": {"image → text": (R@1, R@5, R@10)}}.

    Directions without any recall are left out.
    """
    parts: dict[str, dict[str, tuple[float | None, ...]]] = {}
    for part in dict.fromkeys(name.split("/")[0] for name in scores):
        ways = {words: tuple(scores.get(f"{part}/{way} {k}") for k in RECALLS) for way, words in WAYS.items()}
        parts[part] = {words: cells for words, cells in ways.items() if any(cell is not None for cell in cells)}
    return {part: ways for part, ways in parts.items() if ways}


def images_scored(scores: Mapping[str, float]) -> dict[str, int]:
    """Return the number of scored images of each held-out part, where the scores have it."""
    return {name.split("/")[0]: round(value) for name, value in scores.items() if name.endswith("/images")}


@dataclass(frozen=True)
class Form:
    """Formats the numbers in a column, the same for all rows. A number that rounds to zero has no minus."""

    factor: float = 1.0
    digits: int = 2

    def plain(self, value: float) -> str:
        return f"{self.factor * value:z,.{self.digits}f}"

    def signed(self, value: float) -> str:
        return f"{self.factor * value:+z,.{self.digits}f}"

    def end(self, value: float) -> str:
        """Format the end of an interval: a minus stays, since it tells on which side of zero the interval ends."""
        return f"{self.factor * value:,.{self.digits}f}"

    def with_half(self, mean: float, low: float | None, high: float | None, sign: bool = False) -> str:
        """Format as `12.30 ± 0.45`; without an interval, format the mean alone."""
        text = self.signed(mean) if sign else self.plain(mean)
        return text if low is None or high is None else f"{text} ± {self.plain((high - low) / 2)}"


def form_of(values: Iterable[float], percent: bool) -> Form:
    """Choose the format of a column: percent with two digits for shares, else four digits in all."""
    if percent:
        return Form(100.0, 2)
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    return Form(1.0, 4 if largest < 1 else max(0, 3 - math.floor(math.log10(largest))))


def described(about: dict[str, Any]) -> str:
    """Describe environment.json: `Python 3.11.7, Linux x86_64, 2 cores, 1 thread, no GPU, fp32 on cpu; torch 2.13`."""
    packages = ", ".join(f"{name} {version}" for name, version in about["packages"].items() if version)
    gpus = ", ".join(about["gpus"]) or "no GPU"
    threads = f"{about['threads']} thread{'s' if about['threads'] != 1 else ''}"
    placed = f", {about['precision']} on {about['device']}" if "precision" in about else ""
    return f"Python {about['python']}, {about['system']}, {about['cores']} cores, {threads}, {gpus}{placed}; {packages}"


def parameter_count(parameters: int | None) -> str:
    """Format a count as `1.23 M`, or with all digits if it is small."""
    if parameters is None:
        return MISSING
    return f"{parameters / 1e6:.2f} M" if parameters >= 1e5 else f"{parameters:,}"
