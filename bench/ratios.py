"""How many times as long one side takes as another, and how that is written."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Taken within each round: the median over rounds, with its range."""
    each = [a / b for a, b in zip(above, below)]
    return {"median": statistics.median(each), "least": min(each), "most": max(each)}


def written(found: dict[str, float], digits: int = 2) -> str:
    """Median (range)."""
    median, least, most = (f"{found[key]:.{digits}f}" for key in ("median", "least", "most"))
    return f"{median} ({least}–{most})"
