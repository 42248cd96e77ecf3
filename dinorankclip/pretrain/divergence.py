"""A run whose numbers left the finite: what is left of it, in words, and the command that goes on from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dinorankclip.config import as_dict
from dinorankclip.presets import for_method, preset
from dinorankclip.pretrain import checkpoints
from dinorankclip.pretrain.command_line import train_command
from dinorankclip.pretrain.records import has_begun
from dinorankclip.run_files import BEST, CHECKPOINTS
from dinorankclip.types import UserError

LOWER = 10  # times


class Diverged(UserError):
    """`what` was not finite; the text also says what is left in the run folder and what to do."""

    def __init__(self, what: str, run: Path, settings: dict[str, Any]):
        super().__init__(f"{what}\n{way_on(run, settings)}")
        self.what = what


def way_on(run: Path, settings: dict[str, Any]) -> str:
    """`settings` as in the run's config.json."""
    return f"{_left(run / CHECKPOINTS)}{_next(run, settings)}"


def _left(folder: Path) -> str:
    steps = checkpoints.whole(folder)
    if not steps:
        return "No step was taken before, so there is no checkpoint. "
    *older, last = steps
    best = folder / BEST
    names = [f"best ({best.resolve().name})"] if best.exists() else []
    names += [path.name for path in reversed(older) if path != best.resolve()]
    others = f"others in {folder}: {', '.join(names)}. " if names else "there is no other. "
    return f"The newest checkpoint, {last}, may have diverged already; {others}"


def _next(run: Path, settings: dict[str, Any]) -> str:
    """Go on from the best, which has been scored and so gave numbers, or begin anew; with a lower rate either way."""
    usual = for_method(preset(settings["preset"]), settings["method"]).optim.lr
    rate = float(f"{min(settings['optim']['lr'] / LOWER, usual):.2g}")
    changed = settings | {"optim": settings["optim"] | {"lr": rate}, "run": str(run)}
    best = run / CHECKPOINTS / BEST
    if not best.exists():
        again = ["--restart"] if has_begun(run) else []
        return f"Begin anew with a lower rate:\n  {train_command(changed, *again)}"
    frozen = settings["model"].get("frozen_image_tower", False)
    # The folder brings the whole model; other settings of it would be refused.
    model = as_dict(preset(settings["preset"]).model) | {"frozen_image_tower": frozen}
    changed |= {"init": str(best), "model": model, "run": _free_name(run)}
    return f"Go on from the best in a new run, with a lower rate:\n  {train_command(changed)}"


def _free_name(run: Path) -> str:
    number = 2
    while (name := run.with_name(f"{run.name}-{number}")).exists():
        number += 1
    return str(name)
