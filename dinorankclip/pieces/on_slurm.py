"""Makes pieces in an array job through submitit: each element takes its share, then what others left.

SLURM queues an element again that reaches its time limit or is preempted. Ctrl-C here cancels the array, and finished
pieces stay. `submit` alone also serves studies, whose elements are commands.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dinorankclip.extras import naming_extras
from dinorankclip.io import home
from dinorankclip.pieces.account import Account
from dinorankclip.pieces.contract import Pieces, Progress, SlurmSettings, Where
from dinorankclip.pieces.crew import POLL, Crew, work_share
from dinorankclip.types import UserError

_LOOK_AT_JOBS = 5.0  # seconds
_WAITING = ("PENDING", "REQUEUED", "CONFIGURING")  # states of an element that has not begun


class Share:
    """An element of an array. submitit calls `checkpoint` when SLURM is about to end it, and queues what it returns."""

    def __init__(self, folder: str, share: int, shares: int, environment: dict[str, str], place: str) -> None:
        self.folder, self.share, self.shares = folder, share, shares
        self.environment, self.place = environment, place

    def __call__(self) -> None:
        os.environ.update(self.environment)
        os.chdir(self.place)
        work_share(self.folder, self.share, self.shares)

    def checkpoint(self) -> Any:
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def submit(elements: Sequence[Callable[[], object]], logs: Path, name: str, settings: SlurmSettings, gpus: int) -> list:
    """Submit an array of picklable functions, and return submitit's jobs."""
    with naming_extras("SLURM", "studies"):
        import submitit
    try:
        executor = submitit.AutoExecutor(logs, cluster=settings.cluster)
    except RuntimeError as error:
        raise UserError(f"no SLURM here ({error}); --slurm.cluster local tries it out on this machine") from error
    parameters = {"name": name, "timeout_min": int(settings.hours * 60)}
    if settings.cluster == "slurm":
        parameters |= {
            "gpus_per_node": gpus,
            "cpus_per_task": settings.cpus * max(gpus, 1),
            "mem_gb": settings.memory_gb * max(gpus, 1),
            "slurm_array_parallelism": settings.parallel,
        }
        given = {"slurm_partition": settings.partition, "slurm_account": settings.account}
        parameters |= {name: value for name, value in given.items() if value}
    executor.update_parameters(**parameters)
    with executor.batch():
        return [executor.submit(element) for element in elements]


def run_on_slurm(
    pieces: Pieces, missing: list[int], crew: Crew, where: Where, device: str, advance: Progress, account: Account
) -> None:
    """Submit an array, and watch it until no piece is missing or no element is left."""
    shares = min(where.workers or where.slurm.parallel, len(missing))
    environment = {name: value for name, value in os.environ.items() if name.startswith("DINORANKCLIP_")}
    elements = [Share(str(crew.folder), share, shares, environment, os.getcwd()) for share in range(shares)]
    logs = home() / "slurm" / crew.folder.name.removeprefix(".")
    gpus = 0 if device == "cpu" else int(where.slurm.cluster == "slurm")
    jobs = submit(elements, logs, pieces.title.replace(" ", "-"), where.slurm, gpus)
    shown, looked = 0.0, 0.0
    try:
        while True:
            time.sleep(POLL)
            notes, over = crew.read_notes(), False
            for note in notes:
                crew.is_lost(note.worker)  # begins to watch its signs of life
            items = sum(note.items for note in notes)
            if items > shown:  # a lost worker's unfinished piece is not counted back
                advance(items - shown)
                shown = items
            pieces.gather()
            if time.monotonic() - looked > _LOOK_AT_JOBS or where.slurm.cluster != "slurm":
                over, looked = all(job.done() for job in jobs), time.monotonic()
            if over or len(crew.done()) == len(missing):
                break
    except BaseException:
        for job in jobs:
            job.cancel()
        raise
    finally:
        for note in (notes := crew.read_notes()):
            account.add(note.worker, note.pieces, note.core_seconds)
        account.again = sum(note.again for note in notes)
        account.lost = sum(not note.ended and crew.is_lost(note.worker) for note in notes)
    for job in jobs:
        if job.state.upper().startswith(_WAITING):  # nothing is left for it to do
            job.cancel()
    errors = [note.error for note in notes if note.error]
    if errors and len(crew.done()) < len(missing):
        raise UserError(f"{errors[0]} (logs: {logs})")
