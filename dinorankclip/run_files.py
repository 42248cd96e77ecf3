"""What lies in a run folder under which name, whether a folder is one, and the settings it was made with.

Every room that reads a run knows it by these names alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dinorankclip.types import UserError

CONFIG = "config.json"  # the settings
ENVIRONMENT = "environment.json"  # versions, machine, revision
METRICS = "metrics.jsonl"  # the log, a line a record
TENSORBOARD = "tensorboard"  # the same numbers
BEFORE = "before.json"  # scores of the starting weights
SCORES, ITEMS = "scores.json", "scores_items.npz"  # and what each item contributed to them
FUSION = "fusion.json"  # gates and angles at the start and at the end
ENDED = "ended.json"  # why it ended before its end
REPORT, PICTURES = "report.html", "pictures"
DAMAGED, DAMAGED_OF_ALL = "damaged.tsv", "damaged*.tsv"  # samples that were replaced; one file a process

CHECKPOINTS = "checkpoints"  # step-N, and two links:
LAST, BEST = "last", "best"
STEP = "step-"
# A checkpoint is a model folder (joint/folder.py) with these beside the model.
TENSORS, NUMBERS = "training.safetensors", "training.json"

# Said by the settings of every run, however old.
_SAID = {"method": str, "data": str, "reading": dict, "loss": dict, "optim": dict, "budget": dict}


def is_run(folder: Path) -> bool:
    """Whether training made this folder. Others write a config.json, too; a damaged one of ours is known by what lies
    beside it, and that of a start which was refused, with nothing beside it, by what it says."""
    if not (folder / CONFIG).is_file():
        return False
    if any((folder / name).exists() for name in (ENVIRONMENT, METRICS, CHECKPOINTS)):
        return True
    try:
        return not _lacking(read_object(folder / CONFIG))
    except UserError:
        return False


def read_settings(run: Path) -> dict[str, Any]:
    """The settings of a run as they were stored; `UserError` if they are damaged, or those of something else."""
    found = read_object(run / CONFIG)
    if lacking := _lacking(found):
        raise UserError(f"{run / CONFIG} holds no settings of a run: {', '.join(lacking)} should be in it")
    return found


def read_object(path: Path) -> dict[str, Any]:
    """A file with one JSON object in it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged: it holds no JSON object")
    return found


def _lacking(settings: dict[str, Any]) -> list[str]:
    return [name for name, kind in _SAID.items() if not isinstance(settings.get(name), kind)]


# -------- acting_orders
# Which orders of the ranking loss acted in a run (D13), read from its log; and the names that the log has for it.

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
