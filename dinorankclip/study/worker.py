"""A worker: takes one run after another from a study's queue until nothing is left, or until it is told to stop.

SIGTERM and SIGINT, or the end of its input (the process that started it is gone), stop it: training saves first
(pretrain/stopping.py), anything else is simply left, since it can be done again from what is on disk.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from dinorankclip.config import TrainSettings

from .outline import Run
from .preparing import cache_is_ready
from .queue import LOGS, Hold, open_runs, read_queue, record_failure

PATIENCE = 30.0  # seconds between requests to stop


class Performer(Protocol):
    """How a run is made is for commands to say, which know training and scoring."""

    def cache(self, settings: TrainSettings) -> object:
        """Make the teacher's features that a run with these settings reads, unless they are there."""

    def __call__(self, run: Run, sets: tuple[str, ...], hold: Hold) -> bool:
        """False: asked to stop before the run was finished."""


def work(folder: Path, perform: Performer, keys: Sequence[str]) -> None:
    """Make those of the queue's runs that are open. A run that fails is recorded, and the next one is taken."""
    runs, sets = read_queue(folder, keys)

    def ready(run: Run) -> bool:
        with logged(folder / LOGS / "caches.log"):
            return cache_is_ready(folder, run, perform.cache)

    open_ones = open_runs(folder, runs, ready)
    with stopping(), contextlib.suppress(KeyboardInterrupt), contextlib.closing(open_ones):
        for run, hold in open_ones:
            with logged(folder / LOGS / f"{run.key}.log"):
                try:
                    if not perform(run, sets, hold):
                        return
                except Exception as error:
                    traceback.print_exc()
                    record_failure(folder, run, f"{type(error).__name__}: {error}")


def stop_with_parent() -> None:
    """Ask this process to stop when its standard input ends, as it does when the process at the other end dies."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        while True:  # a run may end just when it is asked to stop
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(PATIENCE)

    threading.Thread(target=wait, daemon=True).start()


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """SIGTERM becomes what Ctrl-C is; within a training loop the loop's own handlers stand above these."""

    def leave(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def logged(path: Path) -> Iterator[None]:
    """Everything that is printed, by subprocesses too, goes to the end of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = os.dup(1), os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        _direct(file, file)
        yield
    finally:
        _direct(*kept)
        for handle in (*kept, file):
            os.close(handle)


def _direct(out: int, err: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(out, 1)
    os.dup2(err, 2)
