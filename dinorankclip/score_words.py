"""How scores are written for readers, wherever they are printed: digits and sign of each unit, and retrieval on
held-out parts by part and direction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

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
