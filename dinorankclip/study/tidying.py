"""What stays of a finished run: settings, log, scores; of seed 0 also the model and the heads of its loss."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from dinorankclip.run_files import CHECKPOINTS, LAST, TENSORS
from dinorankclip.whole_files import whole_file

from .outline import Run
from .queue import is_finished
from .results import CELLS

KEPT_SEED = 0
KEPT = "kept"  # in a run folder: all of it stays


def tidy_finished(folder: Path, runs: Iterable[Run]) -> None:
    """Tidy what a kill between a run's record and its tidying left."""
    for run in runs:
        if is_finished(folder, run.key):
            tidy(folder / CELLS / run.key, run.seed)


def keep_all(run: Path) -> None:
    """Of a run made with --keep nothing is ever dropped, whoever asks later."""
    (run / KEPT).touch()


def tidy(run: Path, seed: int) -> None:
    """Drop optimiser states and all checkpoints but the last of seed 0. Doing it again changes nothing."""
    folder = run / CHECKPOINTS
    if not folder.is_dir() or (run / KEPT).exists():
        return
    if seed != KEPT_SEED:
        shutil.rmtree(folder)
        return
    last = (folder / LAST).resolve()
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink() and path.resolve() != last:
            shutil.rmtree(path)
        elif path.is_symlink() and not path.exists():
            path.unlink()
    _drop_moments(last / TENSORS)


def _drop_moments(path: Path) -> None:
    from dinorankclip.encoders.weights_file import read_weights, write_weights

    tensors = read_weights(path)
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(("optimizer/", "random/"))}
    if len(kept) < len(tensors):
        with whole_file(path) as aside:
            write_weights(kept, aside)
