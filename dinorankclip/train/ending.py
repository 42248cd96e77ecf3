"""Records why a run ended before its last step, and gives the command that goes on, for `doctor` and error messages.

`ended.json` in the run folder holds the reason; it is gone as soon as the run goes on.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dinorankclip import distributed
from dinorankclip.config import as_dict, flatten, for_method, preset
from dinorankclip.io import write_json
from dinorankclip.run_files import BEST, CHECKPOINTS, ENDED
from dinorankclip.train import checkpoints
from dinorankclip.train.checkpoints import TrainingState
from dinorankclip.train.run_folder import has_begun
from dinorankclip.types import UserError

STOPPED, FAILED, DIVERGED = "stopped", "failed", "diverged"
LOWER = 10  # times lower is the learning rate that is advised after divergence


@dataclass(frozen=True)
class Ending:
    step: int  # steps done by then
    how: str
    why: str = ""


class Diverged(UserError):
    """`what` was not finite; the text also says what is left in the run folder and what to do."""

    def __init__(self, what: str, run: Path, settings: dict[str, Any]):
        super().__init__(f"{what}\n{way_on(run, settings)}")
        self.what = what


@contextlib.contextmanager
def ending_noted(run: Path, state: TrainingState) -> Iterator[None]:
    """Record an error that ends the run within the block; remove the record of an earlier ending."""
    if distributed.world().leads:
        (run / ENDED).unlink(missing_ok=True)
    try:
        yield
    except Diverged as error:
        note_ending(run, Ending(state.step, DIVERGED, error.what))
        raise
    except Exception as error:
        note_ending(run, Ending(state.step, FAILED, str(error).split("\n")[0] or type(error).__name__))
        raise


def note_ending(run: Path, ending: Ending) -> None:
    if distributed.world().leads:
        with contextlib.suppress(OSError):  # a full disk may be the very error that is noted
            write_json(run / ENDED, asdict(ending))


def read_ending(run: Path) -> Ending | None:
    """None: the run has reached its end, goes on, or was killed."""
    try:
        return Ending(**json.loads((run / ENDED).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def way_on(run: Path, settings: dict[str, Any]) -> str:
    """Advice after divergence: the checkpoints that are left, and a command. `settings` as in config.json.

    The command goes on from the best checkpoint, which has been scored and so gave numbers, or begins anew; with a
    lower rate either way.
    """
    left = _checkpoints_left(run / CHECKPOINTS)
    usual = for_method(preset(settings["preset"]), settings["method"]).optim.lr
    rate = float(f"{min(settings['optim']['lr'] / LOWER, usual):.2g}")
    changed = settings | {"optim": settings["optim"] | {"lr": rate}, "run": str(run)}
    best = run / CHECKPOINTS / BEST
    if not best.exists():
        again = ["--restart"] if has_begun(run) else []
        return f"{left}Begin anew with a lower rate:\n  {train_command(changed, *again)}"
    frozen = settings["model"].get("frozen_image_tower", False)
    # The folder brings the whole model; other settings of it would be refused.
    model = as_dict(preset(settings["preset"]).model) | {"frozen_image_tower": frozen}
    number = 2
    while (name := run.with_name(f"{run.name}-{number}")).exists():
        number += 1
    changed |= {"init": str(best), "model": model, "run": str(name)}
    return f"{left}Go on from the best in a new run, with a lower rate:\n  {train_command(changed)}"


def _checkpoints_left(folder: Path) -> str:
    steps = checkpoints.whole(folder)
    if not steps:
        return "No step was taken before, so there is no checkpoint. "
    *older, last = steps
    best = folder / BEST
    names = [f"best ({best.resolve().name})"] if best.exists() else []
    names += [path.name for path in reversed(older) if path != best.resolve()]
    others = f"others in {folder}: {', '.join(names)}. " if names else "there is no other. "
    return f"The newest checkpoint, {last}, may have diverged already; {others}"


def train_command(settings: dict[str, Any], *more: str) -> str:
    """The `dinorankclip train` command that gives `settings` (as in config.json), with the flags `more` behind them.

    Only differences to the preset are written.
    """
    base = preset(settings["preset"])
    usual = flatten(as_dict(for_method(base, settings["method"])))
    words = ["dinorankclip", "train", "--preset", settings["preset"]]
    words += ["--method", settings["method"]] if settings["method"] != base.method else []
    asked = flatten(settings)
    for name, value in usual.items():
        if name not in ("preset", "method") and asked.get(name, value) != value:
            words += _flag(name, asked[name])
    return shlex.join([*words, *more])


def _flag(name: str, value: Any) -> list[str]:
    """`("optim.lr", 0.1)` → `--optim.lr 0.1`; a switch is its name alone, with `no-` if it is off."""
    flag = f"--{name}".replace("_", "-")
    if isinstance(value, bool):
        group, dot, last = flag.removeprefix("--").rpartition(".")
        return [flag if value else f"--{group}{dot}no-{last}"]
    return [flag, *map(str, value)] if isinstance(value, list) else [flag, str(value)]
