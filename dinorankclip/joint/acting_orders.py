"""Which orders of the ranking loss acted in a run (D13), read from its log; and the names that the log has for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from dinorankclip.run_files import METRICS

INERT_SPREAD = 1e-3  # an order whose relative spread ends below this did not act
MODALITIES = ("image", "text")
_SPREAD = re.compile(r"spread(\d+)_(?:image|text)")


def spread_name(order: int, modality: str) -> str:
    """Of an order's corrections beside the utilities, where items of this modality are ranked."""
    return f"spread{order}_{modality}"


def gate_name(order: int, modality: str) -> str:
    """λ_r of the heads of this modality."""
    return f"gate{order}_{modality}"


def orders_told(names: Iterable[str]) -> list[int]:
    """Orders whose spread is among these names of a log."""
    return sorted({int(found[1]) for name in names if (found := _SPREAD.fullmatch(name))})


def is_inert(spread: float) -> bool:
    """Whether an order that ends with this relative spread does nothing; of two modalities the larger one counts."""
    return spread < INERT_SPREAD


def last_spreads(run: Path) -> dict[int, float]:
    """Order → its relative spread when it was last logged, the larger of the two modalities'; empty without a log."""
    last: dict[str, float] = {}
    try:
        with open(run / METRICS, encoding="utf-8") as lines:
            for line in lines:
                if _SPREAD.search(line) and line.endswith("\n"):  # the last line may be half written
                    last |= {name: value for name, value in json.loads(line).items() if _SPREAD.fullmatch(name)}
    except (OSError, ValueError):
        return {}
    return {r: max(last.get(spread_name(r, modality), 0.0) for modality in MODALITIES) for r in orders_told(last)}


def inert_orders(run: Path) -> list[int]:
    return [order for order, spread in last_spreads(run).items() if is_inert(spread)]


def inert_words(orders: list[int]) -> str:
    """`orders 4 and 5 inert`; "" if all acted."""
    if not orders:
        return ""
    return f"order{'s' if len(orders) > 1 else ''} {' and '.join(map(str, orders))} inert"
