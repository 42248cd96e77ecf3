"""Names the files of a run folder and of its log, and reads its settings. Every room uses these names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dinorankclip.types import UserError

CONFIG = "config.json"  # the settings
ENVIRONMENT = "environment.json"  # versions, machine, revision
METRICS = "metrics.jsonl"  # the log, one record a line
TENSORBOARD = "tensorboard"  # the same numbers
BEFORE = "before.json"  # scores of the starting weights
SCORES, ITEMS = "scores.json", "scores_items.npz"  # scores, and the contribution of each item
FUSION = "fusion.json"  # gates and angles at the start and at the end
PROVENANCE = "provenance.json"  # in exported folders: what is known about the run
ENDED = "ended.json"  # why the run stopped early
REPORT, PICTURES = "report.html", "pictures"
DAMAGED, DAMAGED_OF_ALL = "damaged.tsv", "damaged*.tsv"  # replaced samples, one file for each process

CHECKPOINTS = "checkpoints"  # step-N, and two links:
LAST, BEST = "last", "best"
STEP = "step-"
# A checkpoint is a model folder (models/folder.py) with these files beside the model.
TENSORS, NUMBERS = "training.safetensors", "training.json"

# The settings of every run have these entries, also of old versions.
_REQUIRED = {"method": str, "data": str, "reading": dict, "loss": dict, "optim": dict, "budget": dict}


def is_run(folder: Path) -> bool:
    """Return whether training made this folder. Other programs write a config.json, too; ours is recognised by the
    files beside it, which also works if it is damaged, or by its entries, if a run was refused at its start."""
    if not (folder / CONFIG).is_file():
        return False
    if any((folder / name).exists() for name in (ENVIRONMENT, METRICS, CHECKPOINTS)):
        return True
    try:
        return not _missing(read_object(folder / CONFIG))
    except UserError:
        return False


def read_settings(run: Path) -> dict[str, Any]:
    """Return the stored settings of a run; raise `UserError` if the file is damaged or holds something else."""
    settings = read_object(run / CONFIG)
    if missing := _missing(settings):
        raise UserError(f"{run / CONFIG} holds no settings of a run: {', '.join(missing)} should be in it")
    return settings


def read_object(path: Path) -> dict[str, Any]:
    """Read a file that holds a JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged: it holds no JSON object")
    return value


def stored_scores(folder: Path) -> dict[str, Any]:
    """Return the contents of scores.json, as evaluate/scores_file.py describes it; empty if there is no such file."""
    return read_object(folder / SCORES) if (folder / SCORES).is_file() else {}


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's log; empty without a log. A line that a kill cut short is left out."""
    path = run / METRICS
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def _missing(settings: dict[str, Any]) -> list[str]:
    return [name for name, kind in _REQUIRED.items() if not isinstance(settings.get(name), kind)]


CORE_SECONDS = "core-seconds"  # log key: seconds of all cores that the steps have taken, without scoring and saving
CHANCE = "contrastive_chance"  # log key of InfoNCE of equal logits, where it is not ln B

# The log tells which orders of the ranking loss had an effect (D13): losses/telemetry.py measures the relative spread
# of the corrections of an order. An order whose spread ends below this limit is inert.
INERT_SPREAD = 1e-3
MODALITIES = ("image", "text")
_SPREAD = re.compile(r"spread(\d+)_(?:image|text)")


def spread_name(order: int, modality: str) -> str:
    """Return the log key of an order's spread, for lists that rank items of this modality."""
    return f"spread{order}_{modality}"


def gate_name(order: int, modality: str) -> str:
    """Return the log key of an order's gate λ_r."""
    return f"gate{order}_{modality}"


def logged_orders(names: Iterable[str]) -> list[int]:
    """Return the orders whose spread is among these log keys."""
    return sorted({int(match[1]) for name in names if (match := _SPREAD.fullmatch(name))})


def is_inert(spread: float) -> bool:
    """Return whether an order with this final spread does nothing; give the larger spread of both modalities."""
    return spread < INERT_SPREAD


def last_spreads(run: Path) -> dict[int, float]:
    """Return each order's last logged spread, the larger of both modalities'; empty without a log."""
    last = {name: value for line in read_metrics(run) for name, value in line.items() if _SPREAD.fullmatch(name)}
    return {r: max(last.get(spread_name(r, modality), 0.0) for modality in MODALITIES) for r in logged_orders(last)}


def inert_orders(run: Path) -> list[int]:
    return [order for order, spread in last_spreads(run).items() if is_inert(spread)]


def inert_words(orders: list[int]) -> str:
    """Return words such as `orders 4 and 5 inert`; empty if no order is inert."""
    if not orders:
        return ""
    return f"order{'s' if len(orders) > 1 else ''} {' and '.join(map(str, orders))} inert"
