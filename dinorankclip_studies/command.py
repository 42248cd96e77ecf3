"""Defines the command `dinorankclip study plan|run|status|report|upper-bound|departures`: many runs at equal pairs."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from dinorankclip.pieces.contract import RaySettings, Where
from dinorankclip.pieces.contract import SlurmSettings as ArraySettings
from dinorankclip.system import usable_cores
from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip_studies.study import Run, Study

HELP = """\
Many runs at equal pairs and steps: tables with intervals over seeds.

{verbs}

small is every cell on 2,000 built-in scenes (`make study`). The claims are judged by full (with AdamW) and by tuned,
the same cells on top of Muon. flickr8k is the main comparison on real photos (data/flickr8k and its neighbours), cc3m
the paper's scale. A study of your own is one file, which plan, run, status and report take in the place of a name
(docs/plugins.md).
A finished run is never made again, and cells that several tables share are one run. Ctrl-C saves; the same command
goes on. Of a finished run settings, log and scores stay; of seed 0 also its last model.
"""
EXAMPLES = {
    "plan": "dinorankclip study plan cc3m --ablation-epochs 8 --ablation-pairs 300000 --seeds 3",
    "run": "dinorankclip study run small",
    "status": "dinorankclip study status small",
    "report": "dinorankclip study report my-study.toml",
    "upper-bound": "dinorankclip study upper-bound full",
    "departures": "dinorankclip study departures --docs docs",
}
Name = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]


@dataclass(frozen=True)
class NumberSettings:
    """Sets numbers of a study anew: what is not given stays as the study has it."""

    epochs: int | None = None
    """Epochs of every cell; cells that are trained longer keep their ratio."""
    pairs: int | None = None
    """The most training pairs of any cell; an epoch is then as short as the data."""
    seeds: int | None = None
    """Seeds of every cell."""
    sweep_epochs: int | None = None
    """cc3m: epochs of the sweeps over orders and amounts of data."""
    ablation_epochs: int | None = None
    """cc3m: epochs of the ablations."""
    ablation_pairs: int | None = None
    """cc3m: training pairs of the ablations."""


Given = Annotated[NumberSettings, tyro.conf.arg(name="")]  # its flags have no prefix
AS_PLANNED = NumberSettings()


@dataclass(frozen=True)
class SlurmSettings(ArraySettings):
    """Sets where and how an array job runs."""

    submit: Annotated[bool, tyro.conf.arg(aliases=["--slurm"])] = False
    """Submit an array job instead of running here."""


def plan(
    name: Name = None,
    preset: str | None = None,
    folder: Path | None = None,
    workers: int | None = None,
    numbers: Given = AS_PLANNED,
) -> None:
    """Print cells, runs, hours and disk, before anything runs; of cc3m with the paper's figures beside.

    Args:
        name: The study: small, full, tuned, flickr8k, cc3m, one that is plugged in, or a file of your own (.toml).
        preset: The same, as an option.
        folder: Folder of the study; by default runs/study-NAME.
        workers: Runs at a time; by default one for each GPU, or for each core where there is no GPU.
        numbers: Numbers in place of the study's own, as in `study run`.
    """
    from dinorankclip_studies.own_study import power_lines
    from dinorankclip_studies.papers import paper_of
    from dinorankclip_studies.plan import check_plan, plan_lines
    from dinorankclip_studies.plan_at_scale import paper_plan_lines

    study = study_named(name or preset, numbers)
    check_plan(study)
    folder = folder or default_folder(study.name)
    runs = all_runs(study, folder)
    if study.name == paper_of(study.name).at_scale:
        print("\n".join(paper_plan_lines(study, runs)))
    else:
        print("\n".join(plan_lines(study, folder, runs, workers or default_workers())))
        if lines := power_lines(study.name):
            print("\npower:", *lines, sep="\n")


def status(
    name: Name = None, folder: Path | None = None, workers: int | None = None, numbers: Given = AS_PLANNED
) -> None:
    """Print finished, running, failed and missing runs; write results.json of the finished runs.

    Args:
        name: The study.
        folder: Folder of the study; by default runs/study-NAME.
        workers: Runs at a time, for the time left; by default one for each GPU, or for each core where there is none.
        numbers: Numbers in place of the study's own, as in `study run`.
    """
    from dinorankclip_studies.plan import status_lines
    from dinorankclip_studies.run_queue import is_failed, why_failed
    from dinorankclip_studies.runners import save_results
    from dinorankclip_studies.study import distinct

    study = study_named(name, numbers)
    folder = folder or default_folder(study.name)
    runs = all_runs(study, folder)
    for line in status_lines(study, folder, runs, workers or default_workers()):
        print(line)
    for run in distinct(run for run in runs if is_failed(folder, run.key)):
        print(f"failed: {run.cell}, seed {run.seed}, {folder}/cells/{run.key}: {why_failed(folder, run.key)}")
    save_results(study, folder)


def run(
    name: Name = None,
    folder: Path | None = None,
    workers: int | None = None,
    processes_per_cell: int = 1,
    gpus_per_cell: int | None = None,
    only: tuple[str, ...] = (),
    keep: bool = False,
    slurm: SlurmSettings = SlurmSettings(),  # noqa: B008 (frozen)
    on: Literal["here", "slurm", "ray"] = "here",
    ray: RaySettings = RaySettings(),  # noqa: B008 (frozen)
    adopt: Path | None = None,
    models: bool = False,
    numbers: Given = AS_PLANNED,
) -> None:
    """Make all missing runs, then results.json. After a stop, the same command goes on.

    Args:
        name: The study: small, full, tuned, flickr8k, cc3m, one that is plugged in, or a file of your own (.toml).
        folder: Folder of the study; by default runs/study-NAME.
        workers: Runs at a time, one thread each; by default one for each GPU, or for each core where there is no GPU.
        processes_per_cell: Processes that torchrun starts for each run; by default one for each GPU of a cell.
        gpus_per_cell: GPUs that SLURM gives each run; by default 8 for cc3m, as the paper has, none for the others.
        only: Only these cells.
        keep: Keep all checkpoints; by default the last model of seed 0 stays, without its optimiser.
        slurm: An array job instead of processes here. Built-in scenes are made here, before it.
        on: here, slurm (as --slurm), or ray: one run for each core or GPU of a Ray cluster that shares this disk.
        ray: Which Ray, and what a run gets of it.
        adopt: A results.json of another machine, or its folder: its runs count as finished. It holds no models;
            reports leave out pictures that need a model, --docs keeps those drawn earlier from the same runs.
        models: Make runs again that were adopted without the model that a picture needs.
        numbers: Numbers in place of the study's own. `study status` needs the same to find the runs.
    """
    from dinorankclip_studies.runners import StudyRunner

    study = study_named(name, numbers)
    known = [cell.name for cell in study.cells]
    unknown = [cell for cell in only if cell not in known]
    if unknown:
        raise UserError(f"study {name} has no cell {unknown[0]}: there are {', '.join(known)}")
    folder = folder or default_folder(study.name)
    where = Where(on, workers, ray)
    slurm = replace(slurm, submit=slurm.submit or on == "slurm")
    gpus = gpus_of_a_run(study.gpus, slurm, gpus_per_cell)
    processes = max(processes_per_cell, gpus, 1)
    workers = workers or default_workers(processes)
    StudyRunner(study, folder, workers, slurm, processes, gpus, only, keep, adopt, models, where).run()


def report(
    name: Name = None, folder: Path | None = None, out: Path | None = None, bench: Path = Path("docs/bench")
) -> None:
    """Write tables with intervals, the verdicts on the claims, and the report, as `dinorankclip report` does.

    Args:
        name: The study: its name, or its file.
        folder: Folder of the study; by default runs/study-NAME.
        out: The folder for the files; by default the study's own.
        bench: The folder with the dated records of what a step costs.
    """
    from dinorankclip_studies.study_report import report_study

    study = study_named(name)
    folder = folder or default_folder(study.name)
    report_study(study.argument, folder, out or folder, None, bench)


def upper_bound(name: Name = None, folder: Path | None = None, device: str = "auto") -> None:
    """Probe the teachers of a study themselves: what their students could know at most.

    Args:
        name: The study.
        folder: Folder of the study, which gets teachers.json; by default runs/study-NAME.
        device: auto (the GPU if there is one), cpu, cuda or cuda:N.
    """
    from dinorankclip_studies.upper_bound import probe_lines, probe_teachers

    study = study_named(name)
    print("\n".join(probe_lines(probe_teachers(study, folder or default_folder(study.name), device))))


def work(
    folder: Annotated[Path, tyro.conf.Positional],
    only: tuple[str, ...],
    while_input_open: bool = False,
    processes_per_cell: int = 1,
    keep: bool = False,
) -> None:
    """Make runs of a study's queue, one after another (started by `study run`)."""
    from dinorankclip_studies import queue_workers
    from dinorankclip_studies.run_cell import RunMaker

    if while_input_open:
        queue_workers.stop_with_parent()
    queue_workers.work(folder, RunMaker(folder, processes_per_cell, keep), only)


def train(folder: Annotated[Path, tyro.conf.Positional], key: Annotated[str, tyro.conf.Positional]) -> None:
    """Train one run of a queue (started by torchrun)."""
    from dinorankclip_studies.run_cell import train_in_processes

    train_in_processes(folder, key)


def departures(docs: Path | None = None) -> None:
    """Print the paper's hyper-parameters beside `--recipe paper` and the presets, with the reason of each departure.

    Args:
        docs: Write the page into this folder, as paper-departures.md, instead of printing it.
    """
    from dinorankclip_studies.departures import page, read_lines, write_page
    from dinorankclip_studies.papers import papers

    paper = papers()[0]
    print(write_page(paper, docs) if docs else page(read_lines(paper)), end="\n" if docs else "")


def all_runs(study: Study, folder: Path) -> list[Run]:
    """Return all runs with the tuned learning rates; tuning runs of methods without a rate come first."""
    from dinorankclip_studies.results import rates, read_tuned

    tuned = read_tuned(folder)
    missing = [run for run in study.tuning() if run.settings.method not in tuned]
    return missing + study.runs(rates(tuned))


def default_folder(name: str) -> Path:
    return Path(f"runs/study-{name}")


def study_named(name: str | None, given: NumberSettings = AS_PLANNED) -> Study:
    """Return a study, with the numbers that were given in place of its own."""
    from dinorankclip_studies.papers import all_studies, paper_of
    from dinorankclip_studies.study import Numbers

    if name is not None and name.endswith(".toml"):
        from dinorankclip_studies.own_study import open_study

        _check_numbers(given)
        own = Numbers(given.epochs, given.pairs)
        return open_study(Path(name), own).with_seeds(given.seeds)
    studies = all_studies()
    if name is None:
        raise UserError(f"which study? There are {', '.join(studies)}; or a file, NAME.toml")
    if name not in studies:
        near = difflib.get_close_matches(name, studies, n=1)
        raise UserError(f"no study '{name}': there are {', '.join(studies)}" + (f"; {near[0]}?" if near else ""))
    _check_numbers(given)
    numbers = asdict(given)
    for flag, number in numbers.items():
        if number is not None and flag not in ("epochs", "pairs", "seeds") and name != paper_of(name).at_scale:
            scale = paper_of(name).at_scale or "cc3m"
            raise UserError(
                f"--{flag.replace('_', '-')} is for study {scale}, which has scales of its own; use --epochs"
            )
    seeds = numbers.pop("seeds")
    own = Numbers(**numbers)
    study = studies[name]() if own == Numbers() else studies[name](own)
    return study.with_seeds(seeds)


def _check_numbers(given: NumberSettings) -> None:
    for flag, number in asdict(given).items():
        if number is not None and number < 1:
            raise UserError(f"--{flag.replace('_', '-')} {number}: at least 1")


def gpus_of_a_run(planned: int, settings: SlurmSettings, given: int | None) -> int:
    """Return the user's number, else the planned number on a real cluster, else 0."""
    if given is not None:
        return given
    return planned if settings.submit and settings.cluster == "slurm" else 0


def default_workers(processes: int = 1) -> int:
    """Return the number of runs at a time: one for each GPU, or for each core where there is no GPU."""
    from dinorankclip_studies.queue_workers import visible_gpus

    return max(1, (len(visible_gpus()) or usable_cores()) // processes)


VERBS: dict[str, Callable[..., None]] = {
    "plan": plan,
    "run": run,
    "status": status,
    "report": report,
    "upper-bound": upper_bound,
    "departures": departures,
    "work": work,
    "train": train,
}
INTERNAL = ("work", "train")


def main(argv: list[str]) -> None:
    if argv and argv[0] in VERBS:
        name = argv[0]
        first = (VERBS[name].__doc__ or "").splitlines()[0]
        example = f"\n\nExamples:\n  {EXAMPLES[name]}" if name in EXAMPLES else ""
        tyro.cli(VERBS[name], prog=f"dinorankclip study {name}", args=argv[1:], description=first + example)
        return
    verbs = {name: verb for name, verb in VERBS.items() if name not in INTERNAL}
    if argv and argv[0] not in ("-h", "--help"):
        raise UserError(f"study has no '{argv[0]}': there are {', '.join(verbs)}")
    lines = [f"  {name:<13}{(verb.__doc__ or '').splitlines()[0]}" for name, verb in verbs.items()]
    lines += ["", "Examples:", *(f"  {example}" for example in EXAMPLES.values())]
    print(f"usage: dinorankclip study {'|'.join(verbs)} …\n")
    print(HELP.format(verbs="\n".join(lines)) + "\ndinorankclip study run --help tells the options, and so on.")
