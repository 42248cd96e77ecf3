"""A worker: takes one run after another from a study's queue until nothing is left, or until it is told to stop.

SIGTERM and SIGINT, or the end of its input (the process that started it is gone), stop it: training saves first
(pretrain/stopping.py), anything else is simply left, since it can be done again from what is on disk.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from dinorankclip.config import TrainSettings
from dinorankclip.teachers.cache_request import CacheSpec
from dinorankclip_studies.prepare import cache_is_ready, cache_wishes, forget_caches, name_of, tell, told_of
from dinorankclip_studies.run_queue import (
    LOGS,
    Hold,
    is_failed,
    is_finished,
    is_running,
    open_runs,
    read_queue,
    record_failure,
    was_held_by,
    why_failed,
)
from dinorankclip_studies.run_times import Costs, duration
from dinorankclip_studies.study import Run, once

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


# -------- running
# Runs a study's queue on this machine: several worker processes with one thread each, one line a finished run.

POLL = 0.5  # seconds between looks at the folder
STARTED = 60.0  # seconds after which a worker has surely started
STOP_PATIENCE, ASKED = 120.0, 4  # seconds that workers get to save, and how often they are asked


def run_locally(
    folder: Path,
    runs: Sequence[Run],
    workers: int,
    flags: Sequence[str],
    costs: Costs,
    say: Callable[[str], None],
    ended: Callable[[], object],
    gpus: Sequence[Sequence[str]] = (),
) -> bool:
    """Make all open runs of the queue; `ended` is called after each. `gpus`: those of each worker, if there are any.
    False: stopped on request, the same command goes on later."""
    runs = once(runs)
    waiting = [run for run in runs if not is_finished(folder, run.key)]
    if not waiting:
        return True
    begin, done = time.monotonic(), len(runs) - len(waiting)
    say(f"{len(waiting)} of {len(runs)} runs to go, {workers} at a time; logs in {folder / LOGS}")
    say(f"about {duration(costs.left(waiting, workers))}, a first guess until runs have been timed")
    # Each is told its runs: the queue also has those of other calls, which may be made at the same time.
    asked = ["--only", *(run.key for run in waiting), "--while-input-open", *flags]
    command = [sys.executable, "-m", "dinorankclip", "study", "work", str(folder), *asked]
    caches = list(cache_wishes(waiting))
    forget_caches(folder)
    with stop_asked() as stop, workforce(command, workers, gpus) as force:
        while waiting and not stop:
            time.sleep(POLL)
            for wish, told in [(wish, told) for wish in caches if (told := told_of(folder, wish))]:
                caches.remove(wish)
                what = f"FAILED: {told['error']}" if "error" in told else f"ready after {duration(told['seconds'])}"
                say(f"features of {wish}: {what}")
            force.replace_dead(folder, waiting, caches)
            over = not force.alive() and not any(is_running(folder, run.key) for run in waiting)
            for run in [run for run in waiting if is_finished(folder, run.key) or is_failed(folder, run.key)]:
                waiting.remove(run)
                done += 1
                say(_line(folder, run, done, len(runs), costs, waiting, workers, begin))
                ended()
            if over:
                break  # runs that are left failed, or no worker could start
        if stop:
            say("stopping: runs save and leave; the same command goes on")
    return not stop


def _line(
    folder: Path, run: Run, done: int, total: int, costs: Costs, waiting: list[Run], workers: int, begin: float
) -> str:
    if is_finished(folder, run.key):
        what = f"took {duration(costs.learn(folder, run))}"
    else:
        what = f"FAILED: {why_failed(folder, run.key)} (see {folder / LOGS / run.key}.log)"
    rate = f", learning rate {run.settings.optim.lr:g}" if not run.score else ""
    left = duration(costs.left(waiting, workers)) if waiting else "nothing"
    since = duration(time.monotonic() - begin)
    return f"[{done}/{total}] {run.cell}, seed {run.seed}{rate}: {what}; {since} so far, {left} left"


def visible_gpus() -> list[str]:
    """As CUDA_VISIBLE_DEVICES names them."""
    import torch

    count = torch.cuda.device_count()
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return named[:count] if named else [str(number) for number in range(count)]


def shared_gpus(workers: int, each: int, visible: Sequence[str]) -> list[list[str]]:
    """Which of the visible GPUs each worker has: `each` of its own, or shared where there are fewer; none twice, which
    CUDA would take for none at all."""
    if not visible:
        return []
    turns = ([visible[(at * each + one) % len(visible)] for one in range(each)] for at in range(workers))
    return [list(dict.fromkeys(own)) for own in turns]


@contextlib.contextmanager
def stop_asked() -> Iterator[list[int]]:
    """A list that the first Ctrl-C or SIGTERM fills."""
    asked: list[int] = []
    before = {n: signal.signal(n, lambda number, frame: asked.append(number)) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def workforce(command: Sequence[str], count: int, gpus: Sequence[Sequence[str]] = ()) -> Iterator[Force]:
    """Workers that are asked to stop, and waited for, on leaving."""
    force = Force(command, count, gpus)
    try:
        yield force
    finally:
        force.stop()


class Force:
    def __init__(self, command: Sequence[str], count: int, gpus: Sequence[Sequence[str]] = ()) -> None:
        self.command, self.gpus = list(command), gpus
        self.workers = [self._start(at) for at in range(count)]
        self.begun = [time.monotonic()] * count

    def _start(self, at: int) -> subprocess.Popen:
        own = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        if self.gpus:
            own["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus[at])
        # A session of its own: Ctrl-C reaches this process alone, which then asks the workers. Its input is a pipe
        # that ends with this process, however it dies.
        return subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=os.environ | own,
            start_new_session=True,
        )  # fmt: skip

    def alive(self) -> list[subprocess.Popen]:
        return [worker for worker in self.workers if worker.poll() is None]

    def replace_dead(self, folder: Path, waiting: Sequence[Run], caches: Sequence[CacheSpec]) -> None:
        """A worker that crashed leaves what it was at as a failure; another worker takes its place."""
        for at, worker in enumerate(self.workers):
            if worker.poll() in (None, 0):
                continue
            why = f"the worker died ({_how(worker.returncode)})"
            runs = [run for run in waiting if was_held_by(folder, run.key, worker.pid)]
            for run in runs:
                if not is_finished(folder, run.key) and not is_failed(folder, run.key):
                    record_failure(folder, run, why)
            wishes = [wish for wish in caches if was_held_by(folder, name_of(wish), worker.pid)]
            for wish in wishes:
                if told_of(folder, wish) is None:
                    tell(folder, wish, {"error": why})
            # One that was soon dead, and at nothing, fails again and again: it cannot even start. (Of one that lived,
            # another worker may have taken up what it was at.)
            if runs or wishes or time.monotonic() - self.begun[at] > STARTED:
                self.workers[at] = self._start(at)
                self.begun[at] = time.monotonic()

    def stop(self) -> None:
        """Ask, again after a while (a run may end just when it is asked to stop), then make an end of it."""
        for _ in range(ASKED):
            for worker in self.alive():
                worker.terminate()
            deadline = time.monotonic() + STOP_PATIENCE / ASKED
            while self.alive() and time.monotonic() < deadline:
                time.sleep(POLL / 10)
        for worker in self.workers:
            worker.kill()
            worker.wait()
            if worker.stdin is not None:
                worker.stdin.close()


def _how(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    name = signal.Signals(-code).name
    return name + (", perhaps for want of memory" if code == -signal.SIGKILL else "")
