"""The learning rate: the same small grid for every method, one seed that is not reported, validation alone.

One rate for all methods, the best on their average. A single run tells a method's rates apart by no more than chance
does (500 validation pairs, one seed), and a rate chosen by luck would be an advantage that all seeds share, so that no
interval over seeds could show it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dinorankclip.pretrain.loop import CHOOSES_BEST
from dinorankclip.types import UserError
from dinorankclip.whole_files import write_json

from .outline import TUNING_SEED, Run
from .results import CELLS, read_record

TUNED = "tuned.json"


def choose(runs: Sequence[Run], folder: Path) -> dict[str, Any]:
    """Read the finished tuning runs of all methods, choose, and keep choice and values in tuned.json."""
    tuned: dict[str, Any] = {}
    for run in runs:
        record = read_record(folder / CELLS / run.key)
        if record is None:
            raise UserError(f"the tuning run {run.cell} at {run.settings.optim.lr:g} is not finished")
        tried = tuned.setdefault(run.settings.method, {"cell": run.cell, "seed": TUNING_SEED, "tried": {}})["tried"]
        tried[f"{run.settings.optim.lr:g}"] = record.scores[CHOOSES_BEST]
    if tuned:
        tables = [told["tried"] for told in tuned.values()]
        # Of equal rates the smallest, so that the choice does not hang on the order of the grid.
        best = max(sorted(tables[0], key=float), key=lambda rate: sum(tried[rate] for tried in tables))
        for told in tuned.values():
            told["chosen"] = float(best)
        write_json(folder / TUNED, tuned)
    return tuned


def read_tuned(folder: Path) -> dict[str, Any]:
    """Empty if nothing was tuned (yet)."""
    return json.loads((folder / TUNED).read_text()) if (folder / TUNED).is_file() else {}


def rates(tuned: Mapping[str, Any]) -> dict[str, float]:
    return {method: told["chosen"] for method, told in tuned.items()}
