"""What stays of a finished run: settings, log, scores; of seed 0 also the model and the heads of its loss."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from dinorankclip.config import TrainSettings
from dinorankclip.io import whole_file
from dinorankclip.run_files import CHECKPOINTS, LAST, TENSORS
from dinorankclip.types import UserError
from dinorankclip_studies.results import CELLS
from dinorankclip_studies.run_queue import Hold, is_finished, read_queue
from dinorankclip_studies.study import Run

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
    from dinorankclip.models.weights_file import read_weights, write_weights

    tensors = read_weights(path)
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(("optimizer/", "random/"))}
    if len(kept) < len(tensors):
        with whole_file(path) as aside:
            write_weights(kept, aside)


# -------- study_cell
# One run of a study, put together: train, score on the study's sets, write the record, tidy up.

DRAWS = 100  # of the bootstrap over items: a study's intervals are over seeds


class Performer:
    """Makes runs inside this process or, with several processes a run, starts torchrun for training."""

    def __init__(self, folder: Path, processes: int = 1, keep: bool = False) -> None:
        self.folder, self.processes, self.keep = folder, processes, keep

    def cache(self, settings: TrainSettings) -> None:
        from dinorankclip.device import choose
        from dinorankclip.train.distil_setup import make_missing_cache

        make_missing_cache(settings, choose(settings.budget.device, "fp32").device)

    def __call__(self, run: Run, sets: tuple[str, ...], hold: Hold) -> bool:
        from dinorankclip_studies.results import finished, write_record

        place = self.folder / CELLS / run.key
        if not self._train(run, place):
            return False
        hold.note()
        if run.score:
            score_sets(place, sets, run.settings)
        if self.keep:
            keep_all(place)  # before the run counts as finished, and another call tidies it up
        write_record(place, finished(place, run.key, hold.seconds))
        if not self.keep:
            tidy(place, run.seed)
        return True

    def _train(self, run: Run, place: Path) -> bool:
        if self.processes == 1:
            return train_run(run, place)
        # The lone -- keeps torchrun from reading our options as its own.
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.processes}", "-m", "--"]
        ours = ["dinorankclip", "study", "train", str(self.folder), run.key]
        started = subprocess.Popen([sys.executable, *torchrun, *ours])
        try:
            code = started.wait()
        except KeyboardInterrupt:
            started.terminate()
            started.wait()
            raise
        if code:
            raise UserError(f"torchrun ended with status {code}")
        return is_trained(place)


def train_run(run: Run, place: Path) -> bool:
    from dinorankclip.commands import train

    return train.run(dataclasses.replace(run.settings, run=str(place)), restart=False, dry=False)


def train_in_processes(folder: Path, key: str) -> None:
    """What torchrun starts, in every process."""
    from dinorankclip import distributed

    (run,), _ = read_queue(folder, [key])
    train_run(run, folder / CELLS / key)
    distributed.leave()


def is_trained(place: Path) -> bool:
    """Training writes its scores after the last step."""
    from dinorankclip.run_files import SCORES

    return (place / SCORES).is_file()


def score_sets(place: Path, sets: tuple[str, ...], settings: TrainSettings) -> None:
    """All scorers on all sets; a set that cannot be scored makes the run a failed one."""
    from dinorankclip.commands.score import find
    from dinorankclip.commands.shared import load_quietly
    from dinorankclip.evaluate.embeddings import EmbeddingStore
    from dinorankclip.evaluate.scores_file import step_of, write_scores
    from dinorankclip.evaluate.suite import SuiteOptions, all_scorers, run_suite

    places = [found for where in sets for found in find(where, Path("sets"))]
    loaded = load_quietly(str(place), settings.budget.device)
    found = run_suite(loaded, places, all_scorers(), EmbeddingStore(None), SuiteOptions(draws=DRAWS))
    if found.errors:
        raise UserError("; ".join(f"{name}: {text}" for name, text in found.errors.items()))
    write_scores(place, loaded, found, step_of(place))
