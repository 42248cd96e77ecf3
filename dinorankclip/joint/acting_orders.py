"""Which orders of the ranking loss acted in a run (D13), read from its log."""

from __future__ import annotations

import json
from pathlib import Path

from dinorankclip.run_files import METRICS

INERT_SPREAD = 1e-3  # an order whose relative spread ends below this did not act
_SPREAD = "spread"  # spread3_image: of order 3's corrections beside the utilities, where images are ranked


def last_spreads(run: Path) -> dict[int, float]:
    """Order → its relative spread when it was last logged, the larger of the two modalities'; empty without a log."""
    last: dict[str, float] = {}
    try:
        with open(run / METRICS, encoding="utf-8") as lines:
            for line in lines:
                if _SPREAD in line and line.endswith("\n"):  # the last line may be half written
                    last |= {name: value for name, value in json.loads(line).items() if name.startswith(_SPREAD)}
    except (OSError, ValueError):
        return {}
    orders = sorted({int(name[len(_SPREAD)]) for name in last})
    return {r: max(value for name, value in last.items() if name.startswith(f"{_SPREAD}{r}_")) for r in orders}


def inert_orders(run: Path) -> list[int]:
    return [order for order, spread in last_spreads(run).items() if spread < INERT_SPREAD]


def inert_words(orders: list[int]) -> str:
    """`orders 4 and 5 inert`; "" if all acted."""
    if not orders:
        return ""
    return f"order{'s' if len(orders) > 1 else ''} {' and '.join(map(str, orders))} inert"
