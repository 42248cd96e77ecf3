"""Implements `study run`: adopts results, tunes, makes all runs here, by SLURM or Ray, keeps results.json.

With SLURM an array job runs the same queue (through submitit). Each element runs `dinorankclip study work FOLDER --only
KEY`, so locks, results and failures are those of a local study. An element that reaches its time limit is submitted
again by the same command, and resumes.

Adopted runs, from a results.json of another machine or the committed file, count as finished. So a study outlives
its machine. That file holds no models; `--models` makes again the runs whose models figures need.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinorankclip.checksums import sealed
from dinorankclip.extras import naming_extras
from dinorankclip.io import one_at_a_time, write_json
from dinorankclip.pieces import on_slurm
from dinorankclip.pieces.contract import HERE, Where, Work
from dinorankclip.pieces.run import make_pieces
from dinorankclip.run_files import CHECKPOINTS
from dinorankclip.train.loop import CHOOSES_BEST
from dinorankclip.types import UserError
from dinorankclip_studies.own_study import power_lines, remember_plan
from dinorankclip_studies.papers import paper_of
from dinorankclip_studies.plan import check_plan, check_results
from dinorankclip_studies.queue_workers import run_locally, shared_gpus, visible_gpus
from dinorankclip_studies.results import (
    CELLS,
    CHANCES,
    RESULT,
    RESULTS,
    TUNED,
    Results,
    adopted_chances,
    choose_rate,
    collect,
    earlier_record,
    rates,
    read_record,
    read_tuned,
    with_near_misses,
    write_record,
)
from dinorankclip_studies.run_cell import KEPT_SEED, forget_caches, tidy_finished
from dinorankclip_studies.run_queue import forget_failures, is_failed, is_finished, is_running, write_queue
from dinorankclip_studies.run_times import Costs
from dinorankclip_studies.study import Run, Scenes, Study, distinct

if TYPE_CHECKING:
    from dinorankclip_studies.command import SlurmSettings

BUILT_IN = "scenes"  # evaluation sets that are made on their first use
CATALOGUE_SETS = "sets"  # the folder of sets that `dinorankclip score --catalogue` lists


@dataclass(frozen=True)
class StudyRunner:
    """Makes the runs of a study: of the cells `only`, or all if that is empty.

    `adopt`: results of another machine that count as finished; `models`: make runs again that were adopted without the
    model that figures need.
    """

    study: Study
    folder: Path
    workers: int
    slurm: SlurmSettings
    processes: int = 1
    gpus: int = 0
    only: tuple[str, ...] = ()
    keep: bool = False
    adopt: Path | None = None
    models: bool = False
    where: Where = HERE

    def run(self) -> None:
        """Make all missing runs; raise SystemExit if some are missing afterwards."""
        check_plan(self.study)
        remember_plan(self.study.name, self.folder, self.finished())
        for line in power_lines(self.study.name):
            _say(line.strip())
        forget_failures(self.folder)
        adopted = Results.load(self.adopt) if self.adopt else None
        if adopted is not None:
            adopt_rates(self.study, self.folder, adopted)
        is_tuned = set(self.study.tuned_methods()) <= read_tuned(self.folder).keys()
        runs = [] if is_tuned else self.study.tuning()
        self.make(runs)  # all methods, whichever cells were selected, since methods share the rate
        if all(is_finished(self.folder, run.key) for run in runs):
            tuned = choose_rate(runs, self.folder) or read_tuned(self.folder)
            for method, entry in tuned.items():
                _say(f"learning rate of {method}: {entry['chosen']:g} ({CHOOSES_BEST} {entry['tried']})")
            selected = [run for run in self.study.runs(rates(tuned)) if not self.only or run.cell in self.only]
            if adopted is not None:
                count = adopt_runs(self.folder, adopted, selected)
                _say(f"{count} finished runs taken over from {self.adopt}")
            if self.models:
                again = reopen_runs_without_model(self.folder, selected, paper_of(self.study.name).pictured)
                _say(f"{len(again)} runs are made again for their models")
            runs += selected
            self.make(runs)
        self.report(runs)

    def make(self, runs: list[Run]) -> None:
        """Make the runs that are not finished."""
        if any(not is_finished(self.folder, run.key) for run in runs):
            if self.study.scenes is not None:
                make_scenes(self.study.scenes)
            self._check_sets()
            write_queue(self.folder, runs, self.study.sets)
            flags = ["--processes-per-cell", str(self.processes)] + (["--keep"] if self.keep else [])
            if self.slurm.submit:
                self._submit(runs, flags)
            elif self.where.on == "ray":
                self._make_on_ray(runs)
            else:
                costs = Costs(self.folder, runs, self.study)
                gpus = shared_gpus(self.workers, self.processes, visible_gpus())
                if not run_locally(self.folder, runs, self.workers, flags, costs, _say, self.save, gpus):
                    self.save()
                    sys.exit(130)
        if not self.keep:
            tidy_finished(self.folder, runs)

    def _check_sets(self) -> None:
        absent = [where for where in self.study.sets if where != BUILT_IN and not Path(where).exists()]
        if absent:
            message = f"study {self.study.name} scores on {', '.join(absent)}: put or link it there"
            if CATALOGUE_SETS in absent:
                message += (
                    f". {CATALOGUE_SETS} is a folder of sets in the clip-benchmark layout: dinorankclip score "
                    "--catalogue lists them, with the command that fetches each"
                )
            raise UserError(message)

    def _submit(self, runs: list[Run], flags: list[str]) -> None:
        jobs = submit(self.folder, runs, self.slurm, self.gpus, flags, self.study.name)
        _say(f"submitted {len(jobs)} runs; see how they do: dinorankclip study status {self.study.argument}")
        if self.slurm.cluster == "slurm":
            _say("when they have ended, the same command submits what is left, or writes the results")
            sys.exit(0)
        for job in jobs:
            job.wait()

    def _make_on_ray(self, runs: list[Run]) -> None:
        keys = [run.key for run in distinct(runs) if not is_finished(self.folder, run.key)]
        forget_caches(self.folder)
        settings = {"folder": str(self.folder), "processes": self.processes, "keep": self.keep, "keys": keys}
        work = Work("dinorankclip_studies.queue_workers:open_work", settings, "cpu" if not self.gpus else "cuda")
        make_pieces(work.open(), self.where, work, self.folder)

    def finished(self) -> int:
        """Count the finished runs of the study."""
        runs = distinct(self.study.runs(rates(read_tuned(self.folder))))
        return sum(is_finished(self.folder, run.key) for run in runs)

    def save(self) -> int:
        return save_results(self.study, self.folder)

    def report(self, runs: list[Run]) -> None:
        """Write results.json and name the runs that failed."""
        done = self.save()
        _say(f"{done} finished runs in {self.folder / RESULTS}; write it up: dinorankclip report {self.folder}")
        failed = [run for run in distinct(runs) if is_failed(self.folder, run.key)]
        if failed:
            names = ", ".join(f"{run.cell} (seed {run.seed})" for run in failed)
            print(f"{len(failed)} runs FAILED: {names}; the same command tries them again", file=sys.stderr)
        if not all(is_finished(self.folder, run.key) for run in runs):
            sys.exit(1)


def submit(
    folder: Path, runs: Sequence[Run], settings: SlurmSettings, gpus: int, flags: Sequence[str], name: str
) -> list[Any]:
    """Submit every run that is neither finished nor running, and return submitit's jobs."""
    keys = [run.key for run in distinct(runs)]
    waiting = [key for key in keys if not is_finished(folder, key) and not is_running(folder, key)]
    if not waiting:
        return []
    with naming_extras("SLURM"):
        from submitit.helpers import CommandFunction
    worker = [sys.executable, "-m", "dinorankclip", "study", "work", str(folder), *flags]
    elements = [CommandFunction([*worker, "--only", key]) for key in waiting]
    return on_slurm.submit(elements, folder / "slurm", f"study-{name}", settings, gpus)


def make_scenes(scenes: Scenes) -> None:
    from dinorankclip.data.scenes import make

    folder = Path(scenes.folder)
    counts = {"train": scenes.train, "val": scenes.val, "test": scenes.test} | dict(scenes.others)
    with one_at_a_time(folder.name, folder=folder.parent):
        make.make_scenes(folder, **counts)


def adopt_rates(study: Study, folder: Path, adopted: Results) -> None:
    """Take over tuned learning rates. Rates that were chosen here must be equal, else no adopted run would fit."""
    if adopted.name != study.name:
        raise UserError(f"these are results of the study '{adopted.name}', not of '{study.name}'")
    here = read_tuned(folder)
    if here and rates(here) != rates(adopted.tuned):
        raise UserError(f"{folder / TUNED} has other learning rates than the results to adopt")
    if adopted.tuned and not here:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / TUNED, sealed(dict(adopted.tuned)))


def adopt_runs(folder: Path, adopted: Results, runs: Iterable[Run]) -> int:
    """Write the records of `runs` that are finished there and neither finished nor running here; return their number.

    Runs whose settings have changed since have other keys, and are not adopted.
    """
    records = {record.key: record for record in adopted.runs}
    count = 0
    for run in runs:
        place = folder / CELLS / run.key
        if run.key in records and read_record(place) is None and not is_running(folder, run.key):
            shutil.rmtree(place, ignore_errors=True)  # an unfinished run here is no model of the adopted run
            place.mkdir(parents=True)
            write_record(place, replace(records[run.key], cell=""))
            count += 1
    if count and adopted.chances:  # their own scores.json files are not here
        write_json(folder / CHANCES, sealed(adopted_chances(folder) | dict(adopted.chances)))
    return count


def reopen_runs_without_model(folder: Path, runs: Iterable[Run], cells: Iterable[str]) -> list[Run]:
    """Reopen finished runs of these cells whose model should be here and is not, and return them.

    Their records count until the new records exist.
    """
    cells = set(cells)
    reopened = []
    for run in runs:
        place = folder / CELLS / run.key
        has_model = (place / CHECKPOINTS).is_dir()
        if run.seed == KEPT_SEED and run.cell in cells and is_finished(folder, run.key) and not has_model:
            earlier_record(place).parent.mkdir(exist_ok=True)
            (place / RESULT).rename(earlier_record(place))
            reopened.append(run)
    return reopened


def save_results(study: Study, folder: Path) -> int:
    """Write results.json of all finished runs, after checking their budgets; return the number of runs."""
    tuned = read_tuned(folder)
    runs = [(run.cell, run.seed, run.key) for run in study.runs(rates(tuned))]
    results = collect(study.name, study.title, folder, runs, tuned)
    paper = paper_of(study.name)
    base, *_, ours = paper.main_cells
    scored = with_near_misses(folder, results.runs, paper.measures(study.name), base, ours)
    results = replace(results, runs=tuple(scored))
    check_results(study.experiments, results)
    if folder.is_dir():
        results.save(folder / RESULTS)
    return len(results.runs)


def _say(text: str) -> None:
    print(text, flush=True)
