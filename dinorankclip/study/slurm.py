"""The same queue on a SLURM cluster: one array job, each element makes one run (through submitit).

A job element runs `dinorankclip study work FOLDER --only KEY`, so holds, results and failures are those of a local
study; an element that is killed by its time limit is submitted again by the same command and resumes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from dinorankclip.types import UserError

from .outline import Run, once


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
    from .queue import is_finished, is_running

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
