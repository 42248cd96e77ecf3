"""Describes the model behind a name for `search`: its checkpoint, and a caution if its held-out score is at chance.

Nothing here imports torch: a search may need no model at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dinorankclip.checked_files import UnfitFile, read_object
from dinorankclip.run_files import CHECKPOINTS, CHOSEN, LAST, NUMBERS, PROVENANCE, SCORES

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
        found, photos = scores.get(f"{part}/t2i R@10", -1.0), scores.get(f"{part}/images", 0)
        if 0 <= found <= 1 and photos >= 1:
            return HeldOutShare(float(found), int(photos))
    return None


def _scores(model: Path) -> dict[str, Any]:
    """Return the scores that training took of a run, of a run's last checkpoint, or of an export's run."""
    if stored := _numbers(_read(model / SCORES).get("scores")):
        return stored
    if step := _read(model / NUMBERS).get("step"):
        folder = model.resolve()
        stored = _read(folder.parents[1] / SCORES)
        # Chosen weights have the step of a checkpoint before or of the last one, and the scores are theirs.
        scored = folder.name == CHOSEN if stored.get("chosen") else stored.get("step") == step
        return _numbers(stored.get("scores")) if scored else {}
    scores = _read(model / PROVENANCE).get("scores")
    return _numbers(scores.get("values")) if isinstance(scores, dict) else {}


def _numbers(values: Any) -> dict[str, float]:
    """Return the finite numbers by name among stored values; empty if they are something else."""
    numbers = values.items() if isinstance(values, dict) else ()
    return {name: value for name, value in numbers if isinstance(value, int | float) and math.isfinite(value)}


def _read(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if the file is missing or damaged."""
    try:
        return read_object(path)
    except (OSError, UnfitFile):
        return {}
