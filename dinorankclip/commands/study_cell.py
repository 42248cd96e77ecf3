"""One run of a study, put together: train, score on the study's sets, write the record, tidy up."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

from dinorankclip.config import TrainSettings
from dinorankclip.study.outline import Run
from dinorankclip.study.queue import Hold, read_queue
from dinorankclip.study.results import CELLS
from dinorankclip.types import UserError

DRAWS = 100  # of the bootstrap over items: a study's intervals are over seeds


class Performer:
    """Makes runs inside this process or, with several processes a run, starts torchrun for training."""

    def __init__(self, folder: Path, processes: int = 1, keep: bool = False) -> None:
        self.folder, self.processes, self.keep = folder, processes, keep

    def cache(self, settings: TrainSettings) -> None:
        from dinorankclip.device import choose
        from dinorankclip.pretrain.distilling import make_missing_cache

        make_missing_cache(settings, choose(settings.budget.device, "fp32").device)

    def __call__(self, run: Run, sets: tuple[str, ...], hold: Hold) -> bool:
        from dinorankclip.study.results import finished, write_record
        from dinorankclip.study.tidying import keep_all, tidy

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
    from dinorankclip import comm

    (run,), _ = read_queue(folder, [key])
    train_run(run, folder / CELLS / key)
    comm.leave()


def is_trained(place: Path) -> bool:
    """Training writes its scores after the last step."""
    from dinorankclip.run_files import SCORES

    return (place / SCORES).is_file()


def score_sets(place: Path, sets: tuple[str, ...], settings: TrainSettings) -> None:
    """All scorers on all sets; a set that cannot be scored makes the run a failed one."""
    from dinorankclip.commands.loading import load_quietly
    from dinorankclip.commands.score import find
    from dinorankclip.scoring.embedding_store import EmbeddingStore
    from dinorankclip.scoring.score_files import write_scores
    from dinorankclip.scoring.scored import step_of
    from dinorankclip.scoring.scorers import all_scorers
    from dinorankclip.scoring.suite import SuiteOptions, run_suite

    places = [found for where in sets for found in find(where, Path("sets"))]
    loaded = load_quietly(str(place), settings.budget.device)
    found = run_suite(loaded, places, all_scorers(), EmbeddingStore(None), SuiteOptions(draws=DRAWS))
    if found.errors:
        raise UserError("; ".join(f"{name}: {text}" for name, text in found.errors.items()))
    write_scores(place, loaded, found, step_of(place))
