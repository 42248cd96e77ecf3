"""Describes the model behind a name for `search`: its checkpoint, and a caution if its held-out score is at chance.

Nothing here imports torch: a search may need no model at all.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dinorankclip.run_files import CHECKPOINTS, LAST, NUMBERS, PROVENANCE, SCORES

TEN = 10


def checkpoint_note(model: str) -> str:
    """Return `runs/first: step 186 (checkpoints/step-186)`; "" if the name has no checkpoint."""
    path = Path(model)
    for folder in (path / CHECKPOINTS / LAST, path):
        step = _read(folder / NUMBERS).get("step")
        if step is not None:
            inside = f" ({CHECKPOINTS}/{folder.resolve().name})" if folder != path else ""
            return f"{model}: step {step}{inside}"
    step = _read(path / PROVENANCE).get("step")
    return f"{model}: exported from step {step}" if step is not None else ""


@dataclass(frozen=True)
class HeldOutShare:
    """Holds the share of held-out captions that found their photo among the first ten of `photos`."""

    found: float
    photos: int

    @property
    def chance(self) -> float:
        return min(1.0, TEN / self.photos)

    @property
    def at_chance(self) -> bool:
        """Return whether the share is less than two standard errors above chance, counting photos as independent."""
        return self.found - 2 * math.sqrt(self.found * (1 - self.found) / self.photos) <= self.chance

    def words(self) -> str:
        """Return the share as `3.5 of 10 held-out captions found their photo among the first ten of 1000`."""
        return f"{TEN * self.found:.1f} of 10 held-out captions found their photo among the first ten of {self.photos}"


def held_out_share(model: str) -> HeldOutShare | None:
    """Return what training measured of this model; None if that is not known."""
    scores = _scores(Path(model))
    for part in ("test", "val"):
        if (found := scores.get(f"{part}/t2i R@10")) is not None and (photos := scores.get(f"{part}/images")):
            return HeldOutShare(float(found), int(photos))
    return None


def _scores(model: Path) -> dict[str, Any]:
    """Return the scores that training took of a run, of a run's last checkpoint, or of an export's run."""
    if stored := _read(model / SCORES).get("scores"):
        return stored
    if step := _read(model / NUMBERS).get("step"):
        stored = _read(model.resolve().parents[1] / SCORES)
        return stored.get("scores", {}) if stored.get("step") == step else {}
    return _read(model / PROVENANCE).get("scores", {}).get("values", {})


def _read(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if the file is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
