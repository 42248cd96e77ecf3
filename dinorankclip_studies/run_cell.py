"""Makes one run of a study: caches teacher features, trains, scores, writes the record and deletes large files.

A finished run keeps its settings, log and scores. A run of seed 0 also keeps its last model and the heads of its loss.
Runs share teacher features, which the first worker that needs them makes. FOLDER/caches/NAME.json stores the seconds
that a teacher cache took, or the error that prevented it.
"""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dinorankclip.checked_files import read_object
from dinorankclip.config import TrainSettings
from dinorankclip.io import digest, whole_file, write_json
from dinorankclip.methods import AUTO
from dinorankclip.run_files import CHECKPOINTS, LAST, SCORES, TENSORS
from dinorankclip.teachers.cache_request import CacheSpec
from dinorankclip.train.distil_setup import cache_spec_of
from dinorankclip.types import UserError
from dinorankclip_studies.results import CELLS, record_of, write_record
from dinorankclip_studies.run_queue import RunLock, is_finished, lock_run, read_queue
from dinorankclip_studies.study import Run

CACHES = "caches"
KEPT_SEED = 0  # only runs of this seed keep their last model
KEEP_MARKER = "kept"  # marker file: if it exists, no file of the run is deleted
DRAWS = 100  # bootstrap draws over items; a study's own intervals are over seeds


class RunMaker:
    """Makes runs inside this process or, with several processes a run, starts torchrun for training."""

    def __init__(self, folder: Path, processes: int = 1, keep: bool = False) -> None:
        self.folder, self.processes, self.keep = folder, processes, keep

    def make_cache(self, settings: TrainSettings) -> None:
        """Make the teacher features that a run with these settings reads, unless they exist."""
        from dinorankclip.device import choose
        from dinorankclip.train.distil_setup import make_missing_cache

        make_missing_cache(settings, choose(settings.budget.device, "fp32").device)

    def make(self, run: Run, sets: tuple[str, ...], lock: RunLock) -> bool:
        """Train, score and record a run. Returns False if training was asked to stop."""
        place = self.folder / CELLS / run.key
        if not self._train(run, place):
            return False
        lock.save()
        if run.score and sets:
            score_sets(place, sets, run.settings)
        if self.keep:
            keep_all(place)  # once the run counts as finished, another call may tidy it
        write_record(place, record_of(place, run.key, lock.seconds))
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
        return (place / SCORES).is_file()  # training writes its scores after the last step


def train_run(run: Run, place: Path) -> bool:
    from dinorankclip.api.training import run_training

    return run_training(dataclasses.replace(run.settings, run=str(place)))


def train_in_processes(folder: Path, key: str) -> None:
    """Train a run in each process that torchrun started."""
    from dinorankclip import distributed

    (run,), _ = read_queue(folder, [key])
    train_run(run, folder / CELLS / key)
    distributed.leave()


def score_sets(place: Path, sets: tuple[str, ...], settings: TrainSettings) -> None:
    """Run all scorers on all sets; a set that cannot be scored makes the run fail."""
    from dinorankclip.commands.score import locate_sets
    from dinorankclip.commands.shared import load_quietly
    from dinorankclip.evaluate.embeddings import EmbeddingStore
    from dinorankclip.evaluate.scores_file import step_of, write_scores
    from dinorankclip.evaluate.suite import SuiteOptions, all_scorers, run_suite

    places = [location for where in sets for location in locate_sets(where, Path("sets"))]
    loaded = load_quietly(str(place), settings.budget.device)
    scores = run_suite(loaded, places, all_scorers(), EmbeddingStore(None), SuiteOptions(draws=DRAWS))
    if scores.errors:
        raise UserError("; ".join(f"{name}: {text}" for name, text in scores.errors.items()))
    write_scores(place, loaded, scores, step_of(place))


def needed_caches(runs: Iterable[Run]) -> dict[CacheSpec, TrainSettings]:
    """Return every teacher cache that the runs need, each with the settings of one run that needs it."""
    caches: dict[CacheSpec, TrainSettings] = {}
    for run in runs:
        if run.settings.distil.cache == AUTO:
            caches.setdefault(cache_spec_of(run.settings), run.settings)
    return caches


def cache_key(spec: CacheSpec) -> str:
    """Return the name of a cache in the study's folder: a hash of `str(spec)`, which therefore must not change."""
    return f"cache-{digest(str(spec))[:12]}"


def cache_is_ready(folder: Path, run: Run, make: Callable[[TrainSettings], object]) -> bool:
    """Make the teacher features of a run unless they exist. Returns False while another worker makes them. Features
    that cannot be made count as ready: the run that needs them fails with the same message."""
    for spec, settings in needed_caches([run]).items():
        if cache_outcome(folder, spec):
            continue
        lock = lock_run(folder, cache_key(spec))
        if lock is None:
            return False
        try:
            if not cache_outcome(folder, spec):
                outcome: dict[str, object] = {}
                begin = time.monotonic()  # times this attempt alone; the lock also counts earlier attempts
                try:
                    make(settings)
                except Exception as error:
                    traceback.print_exc()
                    outcome["error"] = f"{type(error).__name__}: {error}"
                record_cache_outcome(folder, spec, outcome | {"seconds": round(time.monotonic() - begin, 1)})
        finally:
            lock.release()
    return True


def record_cache_outcome(folder: Path, spec: CacheSpec, outcome: dict[str, object]) -> None:
    (folder / CACHES).mkdir(parents=True, exist_ok=True)
    write_json(folder / CACHES / f"{cache_key(spec)}.json", {"cache": str(spec)} | outcome)


def cache_outcome(folder: Path, spec: CacheSpec) -> dict[str, Any] | None:
    """Return the seconds that a cache took or the error that prevented it; None if no worker has tried yet."""
    path = folder / CACHES / f"{cache_key(spec)}.json"
    return read_object(path) if path.is_file() else None


def forget_caches(folder: Path) -> None:
    """Make workers look at every cache again; caches that exist are found at once."""
    for path in (folder / CACHES).glob("*.json"):
        path.unlink(missing_ok=True)


def keep_all(run: Path) -> None:
    """Mark a run made with --keep, so that no later call removes anything of it."""
    (run / KEEP_MARKER).touch()


def tidy_finished(folder: Path, runs: Iterable[Run]) -> None:
    """Tidy runs whose process was killed between the record and `tidy`."""
    for run in runs:
        if is_finished(folder, run.key):
            tidy(folder / CELLS / run.key, run.seed)


def tidy(run: Path, seed: int) -> None:
    """Remove optimiser states and all checkpoints except the last of seed 0. A second call changes nothing."""
    from dinorankclip.models.weights_file import read_weights, write_weights

    folder = run / CHECKPOINTS
    if not folder.is_dir() or (run / KEEP_MARKER).exists():
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
    tensors = read_weights(last / TENSORS)
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(("optimizer/", "random/"))}
    if len(kept) < len(tensors):
        with whole_file(last / TENSORS) as aside:
            write_weights(kept, aside)
