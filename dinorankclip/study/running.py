"""Runs a study's queue on this machine: several worker processes with one thread each, one line a finished run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dinorankclip.dino.of_data import Wish

from .costs import Costs, duration
from .outline import Run, once
from .preparing import cache_wishes, forget_caches, name_of, tell, told_of
from .queue import LOGS, is_failed, is_finished, is_running, record_failure, was_held_by, why_failed

POLL = 0.5  # seconds between looks at the folder
STARTED = 60.0  # seconds after which a worker has surely started
PATIENCE, ASKED = 120.0, 4  # seconds that workers get to save, and how often they are asked


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

    def replace_dead(self, folder: Path, waiting: Sequence[Run], caches: Sequence[Wish]) -> None:
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
            deadline = time.monotonic() + PATIENCE / ASKED
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
