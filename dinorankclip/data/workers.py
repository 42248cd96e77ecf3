"""Worker processes around torch's DataLoader: started, watched, and gone when they are not needed any more.

What the DataLoader leaves open is settled here: a user's mistake found inside a worker arrives as a `UserError`
without a worker's traceback, any other error as its last line; Ctrl-C and SIGTERM are the main process's to handle
(a worker that died of them would look like a crash while the run is being saved); a killed or stuck worker ends the
run with advice instead of a hang; and no worker outlives its run.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from dinorankclip.config import ReadingSettings
from dinorankclip.data.damage import NAMED, DamageCount
from dinorankclip.types import Batch, UserError, first_line

log = logging.getLogger(__name__)

PREFETCH = 4  # batches each worker keeps ready
# How torch's messages begin: of an error that a worker sent to us, and of waiting too long.
CAUGHT, TIMED_OUT = "Caught ", "DataLoader timed out"


@dataclass(frozen=True)
class Refusal:
    """A `UserError` on its way from a worker to the main process."""

    text: str


def refusals_as_values(function: Callable) -> Callable:
    """Return a `UserError` instead of raising it; the DataLoader would wrap it in the worker's traceback."""

    @functools.wraps(function)
    def wrapped(*args: Any) -> Any:
        try:
            return function(*args)
        except UserError as error:
            return Refusal(str(error))

    return wrapped


def run_workers(dataset: Any, numbers: Iterable[int] | None, reading: ReadingSettings) -> Generator[Any, None, None]:
    """What `dataset[n]` gives for each n, in order; or all that an iterable data set yields (`numbers` None)."""
    workers = reading.workers
    loader = DataLoader(
        dataset,
        batch_size=None,  # the data set builds whole batches
        sampler=None if isinstance(dataset, IterableDataset) else numbers,
        collate_fn=_as_it_is,
        num_workers=workers,
        worker_init_fn=_start_worker if workers else None,
        prefetch_factor=PREFETCH if workers else None,
        timeout=reading.patience if workers else 0,
        multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
        generator=torch.Generator(),  # without one it would draw from torch's global stream: resumes would differ
    )
    with _signals_held():
        iterator = iter(loader)
    processes = list(getattr(iterator, "_workers", ()))
    _running.append(processes)
    try:
        yield from iterator
    except Exception as error:
        known = str(error).startswith((CAUGHT, TIMED_OUT))
        # A dead worker shows itself in many ways: torch's own error, or a connection that ends in the middle.
        if not known and not _died(processes):
            raise
        raise UserError(advice(error, reading)) from error
    finally:
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()
        _end(processes)
        _running.remove(processes)


def counted(stream: Generator[Batch | Refusal, None, None], damage: DamageCount) -> Generator[Batch, None, None]:
    """Raise refusals, add up damage, and name the first few damaged samples of each cause in the log."""
    named: dict[str, int] = {}
    with contextlib.closing(stream):
        for item in stream:
            if isinstance(item, Refusal):
                raise UserError(item.text)
            for key, cause in damage.add(len(item.keys), item.damage):
                named[cause] = named.get(cause, 0) + 1
                if named[cause] <= NAMED:
                    log.warning("replaced a damaged sample: %s (%s)", key, cause)
            damage.stop_if_too_many()
            yield item


def advice(error: Exception, reading: ReadingSettings) -> str:
    """A DataLoader's complaint in words that help."""
    text = str(error)
    if text.startswith(CAUGHT):  # the worker lives: the code it ran raised an error, whose last line says which
        return (
            f"reading failed: {text.strip().splitlines()[-1]}. If that says too little: --reading.workers 0 reads "
            "in the training process itself and shows where it happened"
        )
    if text.startswith(TIMED_OUT):
        return (
            f"no batch came for {reading.patience:.0f} s: reading hangs. Is the disk or network of the data slow or "
            "gone? If it is only slow, raise --reading.patience or --reading.workers."
        )
    return (
        f"a reading process died ({first_line(error)}). Most often the machine ran out of memory: use "
        "fewer --reading.workers or a smaller --budget.batch. A bus error means that /dev/shm is too small "
        "(in Docker: --shm-size)."
    )


def _as_it_is(item: Any) -> Any:
    return item


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Workers forked within the block are born deaf to Ctrl-C and SIGTERM.

    Otherwise a signal may reach one before it has had time to ignore it. Torch takes a SIGTERM from the parent for a
    request to leave in good order, and then waits for that worker's batch until patience ends.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(_number: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_leave_with, args=(os.getppid(),), daemon=True).start()


def _leave_with(parent: int) -> None:
    """End this worker when its parent was killed.

    torch's workers look for their parent too, but on leaving they wait for a queue's lock, which a sibling may have
    taken to its grave: one in a few killed runs would leave a worker behind for ever.
    """
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


_running: list[list] = []


def _died(processes: list) -> bool:
    """Whether a worker has ended by itself; it may take a moment until the system says so."""
    for process in processes:
        process.join(0.2)
    return any(not process.is_alive() for process in processes)


def _end(processes: list) -> None:
    """Workers that did not follow the DataLoader's request to stop. They ignore SIGTERM, hence kill."""
    for process in processes:
        with contextlib.suppress(ValueError, OSError):
            if process.is_alive():
                process.kill()
            process.join(5)


@atexit.register
def _end_all() -> None:
    for processes in list(_running):
        _end(processes)
