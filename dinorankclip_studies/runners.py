"""The same queue on a SLURM cluster: one array job, each element makes one run (through submitit).

A job element runs `dinorankclip study work FOLDER --only KEY`, so holds, results and failures are those of a local
study; an element that is killed by its time limit is submitted again by the same command and resumes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from dinorankclip.train.loop import CHOOSES_BEST
from dinorankclip.types import UserError
from dinorankclip_studies.papers.dinorankclip.cells import PICTURED
from dinorankclip_studies.papers.dinorankclip.measures import measures_of
from dinorankclip_studies.papers.dinorankclip.plans import CATALOGUE_SETS
from dinorankclip_studies.plan import check_plan, check_results
from dinorankclip_studies.prepare import (
    adopt_rates,
    adopt_runs,
    choose,
    make_scenes,
    rates,
    read_tuned,
    reopen_runs_without_model,
)
from dinorankclip_studies.queue_workers import run_locally, shared_gpus, visible_gpus
from dinorankclip_studies.results import RESULTS, Results, collect, with_near_misses
from dinorankclip_studies.run_cell import tidy_finished
from dinorankclip_studies.run_queue import forget_failures, is_failed, is_finished, write_queue
from dinorankclip_studies.run_times import Costs
from dinorankclip_studies.study import Run, Study, once


@dataclass(frozen=True)
class SlurmSettings:
    """Where and how an array job runs."""

    submit: Annotated[bool, tyro.conf.arg(aliases=["--slurm"])] = False
    """Submit an array job instead of running here."""
    partition: str | None = None
    account: str | None = None
    hours: float = 24.0
    """Time limit of one run; one that needs longer goes on when it is submitted again."""
    cpus: int = 16
    """For each GPU process."""
    memory_gb: int = 64
    """For each GPU process."""
    parallel: int = 16
    """Elements of the array that run at a time."""
    cluster: Literal["slurm", "local", "debug"] = "slurm"
    """local and debug run the elements on this machine, to try it out."""


def gpus_of_a_run(planned: int, settings: SlurmSettings, asked: int | None) -> int:
    """What the study is planned for on a real cluster, unless the user says otherwise; elsewhere none."""
    if asked is not None:
        return asked
    return planned if settings.submit and settings.cluster == "slurm" else 0


def submit(
    folder: Path, runs: Sequence[Run], settings: SlurmSettings, gpus: int, flags: Sequence[str], name: str
) -> list[Any]:
    """Submit every run that is neither finished nor under way; returns submitit's jobs."""
    try:
        import submitit
    except ImportError:
        raise UserError("SLURM needs submitit: pip install 'dinorankclip[slurm]'") from None
    from dinorankclip_studies.run_queue import is_finished, is_running

    keys = [run.key for run in once(runs)]
    waiting = [key for key in keys if not is_finished(folder, key) and not is_running(folder, key)]
    if not waiting:
        return []
    try:
        executor = submitit.AutoExecutor(folder / "slurm", cluster=settings.cluster)
    except RuntimeError as error:
        raise UserError(f"no SLURM here ({error}); --slurm.cluster local tries it out on this machine") from error
    shared = {"name": f"study-{name}", "timeout_min": int(settings.hours * 60)}
    if settings.cluster == "slurm":
        shared |= {
            "gpus_per_node": gpus,
            "cpus_per_task": settings.cpus * max(gpus, 1),
            "mem_gb": settings.memory_gb * max(gpus, 1),
            "slurm_array_parallelism": settings.parallel,
        }
        shared |= {f"slurm_{n}": v for n, v in (("partition", settings.partition), ("account", settings.account)) if v}
    executor.update_parameters(**shared)
    worker = [sys.executable, "-m", "dinorankclip", "study", "work", str(folder), *flags]
    commands = [submitit.helpers.CommandFunction([*worker, "--only", key]) for key in waiting]
    with executor.batch():
        return [executor.submit(command) for command in commands]


# -------- study_crew
# `study run`, step by step: tune, make all runs here or by SLURM, keep results.json up to date.


@dataclass(frozen=True)
class Crew:
    """Makes runs of one study: those of the cells `only` (all if empty), at most `seeds` of each. `adopt`: results of
    another machine to go on from; `models`: make runs again that were adopted without the model that pictures need."""

    study: Study
    folder: Path
    workers: int
    processes: int = 1
    gpus: int = 0
    seeds: int | None = None
    only: tuple[str, ...] = ()
    keep: bool = False
    slurm: SlurmSettings = SlurmSettings()
    adopt: Path | None = None
    models: bool = False

    def run(self) -> None:
        """Everything that is missing. Ends by SystemExit if something is missing afterwards."""
        check_plan(self.study)
        forget_failures(self.folder)
        given = Results.load(self.adopt) if self.adopt else None
        if given is not None:
            adopt_rates(self.study, self.folder, given)
        runs = [] if self._is_tuned() else self.study.tuning()
        self.make(runs)  # of all methods, whatever was asked for: they share the rate
        if all(is_finished(self.folder, one.key) for one in runs):
            tuned = choose(runs, self.folder) or read_tuned(self.folder)
            for method, told in tuned.items():
                print(f"learning rate of {method}: {told['chosen']:g} ({CHOOSES_BEST} {told['tried']})")
            wanted = self.selected(self.study.runs(rates(tuned)))
            if given is not None:
                taken = adopt_runs(self.folder, given, wanted)
                _say(f"{taken} finished runs taken over from {self.adopt}")
            if self.models:
                again = reopen_runs_without_model(self.folder, wanted, PICTURED)
                _say(f"{len(again)} runs are made again for their models")
            runs += wanted
            self.make(runs)
        self.report(runs)

    def _is_tuned(self) -> bool:
        return set(self.study.untuned()) <= read_tuned(self.folder).keys()

    def selected(self, runs: list[Run]) -> list[Run]:
        return [
            one
            for one in runs
            if (not self.only or one.cell in self.only) and (self.seeds is None or one.seed < self.seeds)
        ]

    def make(self, runs: list[Run]) -> None:
        """Whatever of these is not finished."""
        if any(not is_finished(self.folder, one.key) for one in runs):
            if self.study.scenes is not None:
                make_scenes(self.study.scenes)
            absent = [where for where in self.study.sets if not Path(where).exists()]
            if absent:
                what = f"study {self.study.name} scores on {', '.join(absent)}: put or link it there"
                raise UserError(what + _hint(absent))
            write_queue(self.folder, runs, self.study.sets)
            flags = ["--processes-per-cell", str(self.processes)] + (["--keep"] if self.keep else [])
            if self.slurm.submit:
                self._submit(runs, flags)
            else:
                costs = Costs(self.folder, runs, self.study)
                gpus = shared_gpus(self.workers, self.processes, visible_gpus())
                if not run_locally(self.folder, runs, self.workers, flags, costs, _say, self.save, gpus):
                    self.save()
                    sys.exit(130)
        if not self.keep:
            tidy_finished(self.folder, runs)

    def _submit(self, runs: list[Run], flags: list[str]) -> None:
        jobs = submit(self.folder, runs, self.slurm, self.gpus, flags, self.study.name)
        _say(f"submitted {len(jobs)} runs; see how they do: dinorankclip study status {self.study.name}")
        if self.slurm.cluster == "slurm":
            _say("when they have ended, the same command submits what is left, or writes the results")
            sys.exit(0)
        for job in jobs:
            job.wait()

    def save(self) -> int:
        return save_results(self.study, self.folder)

    def report(self, runs: list[Run]) -> None:
        done = self.save()
        _say(f"{done} finished runs in {self.folder / RESULTS}; write it up: dinorankclip report {self.folder}")
        failed = [one for one in once(runs) if is_failed(self.folder, one.key)]
        if failed:
            names = ", ".join(f"{one.cell} (seed {one.seed})" for one in failed)
            print(f"{len(failed)} runs FAILED: {names}; the same command tries them again", file=sys.stderr)
        if not all(is_finished(self.folder, one.key) for one in runs):
            sys.exit(1)


def save_results(study: Study, folder: Path) -> int:
    """Write results.json of all that is finished, after checking that its tables compare like with like."""
    tuned = read_tuned(folder)
    wanted = [(one.cell, one.seed, one.key) for one in study.runs(rates(tuned))]
    results = collect(study.name, study.title, folder, wanted, tuned)
    results = replace(results, runs=tuple(with_near_misses(folder, results.runs, measures_of(study.name))))
    check_results(study.experiments, results)
    if folder.is_dir():
        results.save(folder / RESULTS)
    return len(results.runs)


def _hint(absent: list[str]) -> str:
    if CATALOGUE_SETS not in absent:
        return ""
    return (
        f". {CATALOGUE_SETS} is a folder of sets in the clip-benchmark layout: dinorankclip score --catalogue lists "
        "them, with the command that fetches each"
    )


def _say(text: str) -> None:
    print(text, flush=True)
