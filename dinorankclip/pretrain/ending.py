"""Why a run ended before its end: a small file for `doctor`, gone as soon as the run goes on."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from dinorankclip import comm
from dinorankclip.pretrain.divergence import Diverged
from dinorankclip.pretrain.state import TrainingState
from dinorankclip.run_files import ENDED
from dinorankclip.whole_files import write_json

STOPPED, FAILED, DIVERGED = "stopped", "failed", "diverged"


@dataclass(frozen=True)
class Ending:
    step: int  # steps done by then
    how: str
    why: str = ""


@contextlib.contextmanager
def ending_noted(run: Path, state: TrainingState) -> Iterator[None]:
    """Within the block a run goes on; an error that ends it is written down on its way out."""
    if comm.world().leads:
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
    # A full disk may be the very error that is told.
    if comm.world().leads:
        with contextlib.suppress(OSError):
            write_json(run / ENDED, asdict(ending))


def read_ending(run: Path) -> Ending | None:
    """None: the run has reached its end, goes on, or was killed."""
    try:
        return Ending(**json.loads((run / ENDED).read_text()))
    except (OSError, ValueError, TypeError):
        return None
