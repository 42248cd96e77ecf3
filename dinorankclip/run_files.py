"""What lies in a run folder under which name, whether a folder is one, and the settings it was made with.

Every room that reads a run knows it by these names alone.
"""

from __future__ import annotations

import json
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
