"""`dinorankclip study plan|run|status`: many runs at equal pairs and steps."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dinorankclip.types import UserError
from dinorankclip_studies.runners import SlurmSettings, gpus_of_a_run

if TYPE_CHECKING:
    from dinorankclip_studies.study import Run, Study

HELP = """\
Many runs at equal pairs and steps: tables with intervals over seeds.

{verbs}

small is every cell on 2,000 built-in scenes (`make study`), full the study that the claims are judged by, flickr8k the
main comparison on real photos (data/flickr8k and its neighbours), cc3m the paper's scale.
A finished run is never made again, and cells that several tables share are one run. Ctrl-C saves; the same command
goes on. Of a finished run settings, log and scores stay; of seed 0 also its last model.
"""
EXAMPLES = {
    "plan": "dinorankclip study plan full",
    "run": "dinorankclip study run small",
    "status": "dinorankclip study status small",
}
Name = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]


def plan(name: Name = None, preset: str | None = None, folder: Path | None = None, workers: int | None = None) -> None:
    """Cells, runs, hours and disk, before anything runs.

    Args:
        name: The study: small, full, flickr8k or cc3m.
        preset: The same, as an option.
        folder: Where it is kept; by default runs/study-NAME.
        workers: Runs at a time; by default one for each GPU, or core where there is none.
    """
    from dinorankclip_studies.plan import check_plan, paper_plan_lines, plan_lines

    study = chosen(name or preset)
    check_plan(study)
    folder = folder or default_folder(study.name)
    runs = all_runs(study, folder)
    at_papers_scale = study.name == "cc3m"
    here = plan_lines(study, folder, runs, workers or default_workers())
    print("\n".join(paper_plan_lines(study, runs) if at_papers_scale else here))


def status(name: Name = None, folder: Path | None = None, workers: int | None = None) -> None:
    """Which runs are finished, running, failed or missing; writes results.json of the finished ones.

    Args:
        name: The study.
        folder: Where it is kept; by default runs/study-NAME.
        workers: Runs at a time, for the time left; by default one for each GPU, or core where there is none.
    """
    from dinorankclip_studies.plan import status_lines
    from dinorankclip_studies.run_queue import is_failed, why_failed
    from dinorankclip_studies.runners import save_results
    from dinorankclip_studies.study import once

    study = chosen(name)
    folder = folder or default_folder(study.name)
    runs = all_runs(study, folder)
    for line in status_lines(study, folder, runs, workers or default_workers()):
        print(line)
    for one in once(one for one in runs if is_failed(folder, one.key)):
        print(f"failed: {one.cell}, seed {one.seed}, {folder}/cells/{one.key}: {why_failed(folder, one.key)}")
    save_results(study, folder)


def run(
    name: Name = None,
    folder: Path | None = None,
    workers: int | None = None,
    processes_per_cell: int = 1,
    gpus_per_cell: int | None = None,
    seeds: int | None = None,
    only: tuple[str, ...] = (),
    keep: bool = False,
    slurm: SlurmSettings = SlurmSettings(),  # noqa: B008 (frozen)
    adopt: Path | None = None,
    models: bool = False,
) -> None:
    """Make all runs that are missing, then results.json. The same command goes on after a stop.

    Args:
        name: The study: small, full, flickr8k or cc3m.
        folder: Where it is kept; by default runs/study-NAME.
        workers: Runs at a time, one thread each; by default one for each GPU, or for each core where there is none.
        processes_per_cell: Processes that torchrun starts for each run; by default one for each GPU of a cell.
        gpus_per_cell: GPUs that SLURM gives each run; by default 8 for cc3m, as the paper has, none for the others.
        seeds: At most so many seeds a cell.
        only: Only these cells.
        keep: Keep all checkpoints; by default the last model of seed 0 stays, without its optimiser.
        slurm: An array job instead of processes here. Built-in scenes are made here, before it.
        adopt: A results.json of another machine, or its folder: the runs it has count as finished. It has no models;
            reports leave out pictures that need one, --docs keeps those drawn earlier from the same runs.
        models: Make runs again that were adopted without the model that a picture needs.
    """
    from dinorankclip_studies.runners import Crew

    study = chosen(name)
    unknown = [cell for cell in only if cell not in {one.name for one in study.cells}]
    if unknown:
        known = ", ".join(cell.name for cell in study.cells)
        raise UserError(f"study {name} has no cell {unknown[0]}: there are {known}")
    folder = folder or default_folder(study.name)
    gpus = gpus_of_a_run(study.gpus, slurm, gpus_per_cell)
    processes = max(processes_per_cell, gpus, 1)
    workers = workers or default_workers(processes)
    Crew(study, folder, workers, processes, gpus, seeds, only, keep, slurm, adopt, models).run()


def all_runs(study: Study, folder: Path) -> list[Run]:
    """With the learning rates that were found; as long as they are not, tuning's runs stand before the others."""
    from dinorankclip_studies.prepare import rates, read_tuned

    tuned = read_tuned(folder)
    missing = [one for one in study.tuning() if one.settings.method not in tuned]
    return missing + study.runs(rates(tuned))


def default_folder(name: str) -> Path:
    return Path(f"runs/study-{name}")


def chosen(name: str | None) -> Study:
    import difflib

    from dinorankclip_studies.papers.dinorankclip.plans import STUDIES

    if name is None:
        raise UserError(f"which study? There are {', '.join(STUDIES)}")
    if name not in STUDIES:
        near = difflib.get_close_matches(name, STUDIES, n=1)
        raise UserError(f"no study '{name}': there are {', '.join(STUDIES)}" + (f"; {near[0]}?" if near else ""))
    return STUDIES[name]()


def work(
    folder: Annotated[Path, tyro.conf.Positional],
    only: tuple[str, ...],
    while_input_open: bool = False,
    processes_per_cell: int = 1,
    keep: bool = False,
) -> None:
    """Make runs of a study's queue, one after another (started by `study run`)."""
    from dinorankclip_studies import queue_workers
    from dinorankclip_studies.run_cell import Performer

    if while_input_open:
        queue_workers.stop_with_parent()
    queue_workers.work(folder, Performer(folder, processes_per_cell, keep), only)


def train(folder: Annotated[Path, tyro.conf.Positional], key: Annotated[str, tyro.conf.Positional]) -> None:
    """Train one run of a queue (started by torchrun)."""
    from dinorankclip_studies.run_cell import train_in_processes

    train_in_processes(folder, key)


def default_workers(processes: int = 1) -> int:
    """Runs at a time: one for each GPU, or for each core where there is none."""
    from dinorankclip_studies.queue_workers import visible_gpus

    return max(1, (len(visible_gpus()) or cores()) // processes)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


VERBS: dict[str, Callable[..., None]] = {"plan": plan, "run": run, "status": status, "work": work, "train": train}
INTERNAL = ("work", "train")


def main(argv: list[str]) -> None:
    if argv and argv[0] in VERBS:
        name = argv[0]
        first = (VERBS[name].__doc__ or "").splitlines()[0]
        example = f"\n\nExamples:\n  {EXAMPLES[name]}" if name in EXAMPLES else ""
        tyro.cli(VERBS[name], prog=f"dinorankclip study {name}", args=argv[1:], description=first + example)
        return
    shown = {name: verb for name, verb in VERBS.items() if name not in INTERNAL}
    if argv and argv[0] not in ("-h", "--help"):
        raise UserError(f"study has no '{argv[0]}': there are {', '.join(shown)}")
    lines = [f"  {name:<8}{(verb.__doc__ or '').splitlines()[0]}" for name, verb in shown.items()]
    lines += ["", "Examples:", *(f"  {example}" for example in EXAMPLES.values())]
    print(f"usage: dinorankclip study {'|'.join(shown)} …\n")
    print(HELP.format(verbs="\n".join(lines)) + "\ndinorankclip study run --help tells the options, and so on.")
