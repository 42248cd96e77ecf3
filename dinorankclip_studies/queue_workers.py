"""Runs worker processes that make the runs of a study's queue, and the pool that starts and watches them.

A worker (`study work`) takes one run after another. SIGTERM, SIGINT or the end of its standard input (the starting
process has died) stop it: training saves first, and everything else can be repeated from what is on disk.
`run_locally` starts workers with one thread each and prints a line for each finished run.
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
from types import FrameType
from typing import Any

from dinorankclip.commands.entry import in_words
from dinorankclip.io import digest
from dinorankclip.pieces.contract import Pieces, Progress
from dinorankclip.teachers.cache_request import CacheSpec
from dinorankclip.types import UserError
from dinorankclip_studies import run_cell, run_queue
from dinorankclip_studies.run_cell import RunMaker
from dinorankclip_studies.run_times import Costs, duration
from dinorankclip_studies.study import Run, distinct

PATIENCE = 30.0  # seconds between requests to stop
STARTED = 60.0  # seconds after which a worker has surely started
STOP_PATIENCE, STOP_REQUESTS = 120.0, 4  # seconds that workers get to save, and the number of requests


class StudyRuns(Pieces):
    """The runs of a study as pieces of work. A run is committed by its result.json, or by the record of its failure;
    its lock keeps processes apart, since a run is trained in its place."""

    title, unit = "study", "run"

    def __init__(self, folder: Path, maker: RunMaker, keys: Sequence[str]) -> None:
        self.folder, self.maker = folder, maker
        self.runs, self.sets = run_queue.read_queue(folder, keys)
        self.identity = digest(*keys)

    @property
    def sizes(self) -> list[int]:
        return [1] * len(self.runs)

    def missing(self) -> list[int]:
        return [at for at, run in enumerate(self.runs) if not run_queue.is_over(self.folder, run.key)]

    def make(self, number: int, progress: Progress) -> None:
        self.make_some(self.runs[number : number + 1])
        if number in self.missing():
            run = self.runs[number]
            raise UserError(f"{run.cell}, seed {run.seed}: another process holds its lock, or a signal stopped it")
        progress(1)

    def make_some(self, runs: Sequence[Run]) -> None:
        """Make those of the runs that no other process has. A run that fails is recorded, and the next is taken."""

        def ready(run: Run) -> bool:
            with logged(self.folder / run_queue.LOGS / "caches.log"):
                return run_cell.cache_is_ready(self.folder, run, self.maker.make_cache)

        def interrupt(number: int, frame: FrameType | None) -> None:
            raise KeyboardInterrupt

        # A training loop installs its own signal handlers on top of these.
        taken = run_queue.take_runs(self.folder, runs, ready)
        with on_stop_signal(interrupt), contextlib.suppress(KeyboardInterrupt), contextlib.closing(taken):
            for run, lock in taken:
                with logged(self.folder / run_queue.LOGS / f"{run.key}.log"):
                    try:
                        if not self.maker.make(run, self.sets, lock):
                            return
                    except Exception as error:
                        text = in_words(error)
                        with contextlib.suppress(OSError):  # a log on a full disk
                            if text is None:
                                traceback.print_exc()
                            print(f"error: {text or _plain(error)}", flush=True)
                        run_queue.record_failure(self.folder, run, text or _plain(error))


def _plain(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def open_work(settings: dict[str, Any]) -> StudyRuns:
    """Open the runs of a study in a worker elsewhere."""
    folder = Path(settings["folder"])
    return StudyRuns(folder, RunMaker(folder, settings["processes"], settings["keep"]), settings["keys"])


def work(folder: Path, maker: RunMaker, keys: Sequence[str]) -> None:
    """Make the open runs among `keys`."""
    runs = StudyRuns(folder, maker, keys)
    runs.make_some(runs.runs)


def stop_with_parent() -> None:
    """Stop this process when its standard input ends, as happens when the process at the other end dies."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        while True:  # repeated: a run may end just when it is asked to stop
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(PATIENCE)

    threading.Thread(target=wait, daemon=True).start()


@contextlib.contextmanager
def on_stop_signal(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Call `handler` at SIGTERM and SIGINT inside the block."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextlib.contextmanager
def logged(path: Path) -> Iterator[None]:
    """Append everything that is printed inside the block, by subprocesses too, to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    streams = os.dup(1), os.dup(2)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        _redirect(file, file)
        yield
    finally:
        _redirect(*streams)
        for handle in (*streams, file):
            os.close(handle)


def _redirect(out: int, err: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # a log on a full disk: what is left is printed where the stream leads next
            stream.flush()
    os.dup2(out, 1)
    os.dup2(err, 2)


def run_locally(
    folder: Path,
    runs: Sequence[Run],
    workers: int,
    flags: Sequence[str],
    costs: Costs,
    say: Callable[[str], None],
    after_run: Callable[[], object],
    gpus: Sequence[Sequence[str]] = (),
) -> bool:
    """Make all open runs with `workers` processes; `gpus` are the GPUs of each worker.

    Returns False if a signal asked for a stop; the same command continues later.
    """
    runs = distinct(runs)
    waiting = [run for run in runs if not run_queue.is_finished(folder, run.key)]
    if not waiting:
        return True
    begin, done = time.monotonic(), len(runs) - len(waiting)
    say(f"{len(waiting)} of {len(runs)} runs to go, {workers} at a time; logs in {folder / run_queue.LOGS}")
    say(f"about {duration(costs.left(waiting, workers))}, a first guess until runs have been timed")
    # Workers get the keys of their runs: the queue also holds runs of other calls, which may run at the same time.
    options = ["--only", *(run.key for run in waiting), "--while-input-open", *flags]
    command = [sys.executable, "-m", "dinorankclip", "study", "work", str(folder), *options]
    caches = list(run_cell.needed_caches(waiting))
    run_cell.forget_caches(folder)
    stop: list[int] = []
    with on_stop_signal(lambda number, frame: stop.append(number)), WorkerPool(command, workers, gpus) as pool:
        while waiting and not stop:
            time.sleep(run_queue.POLL)
            for spec in [*caches]:
                if outcome := run_cell.cache_outcome(folder, spec):
                    caches.remove(spec)
                    failed = "error" in outcome
                    text = f"FAILED: {outcome['error']}" if failed else f"ready after {duration(outcome['seconds'])}"
                    say(f"features of {spec}: {text}")
            pool.replace_dead(folder, waiting, caches)
            over = not pool.alive() and not any(run_queue.is_running(folder, run.key) for run in waiting)
            for run in [run for run in waiting if run_queue.is_over(folder, run.key)]:
                waiting.remove(run)
                done += 1
                left = f"{_outcome(folder, run, costs)}; {duration(time.monotonic() - begin)} so far, "
                left += f"{duration(costs.left(waiting, workers)) if waiting else 'nothing'} left"
                say(f"[{done}/{len(runs)}] {left}")
                after_run()
            if over:
                break  # the remaining runs failed, or no worker could start
        if stop:
            say("stopping: runs save and leave; the same command goes on")
    return not stop


def _outcome(folder: Path, run: Run, costs: Costs) -> str:
    rate = f", learning rate {run.settings.optim.lr:g}" if not run.score else ""
    if run_queue.is_finished(folder, run.key):
        outcome = f"took {duration(costs.learn(folder, run))}"
    else:
        outcome = f"FAILED: {run_queue.why_failed(folder, run.key)} (see {folder / run_queue.LOGS / run.key}.log)"
    return f"{run.cell}, seed {run.seed}{rate}: {outcome}"


def visible_gpus() -> list[str]:
    """Return the GPUs as CUDA_VISIBLE_DEVICES names them."""
    import torch

    count = torch.cuda.device_count()
    names = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return names[:count] if names else [str(number) for number in range(count)]


def shared_gpus(workers: int, each: int, visible: Sequence[str]) -> list[list[str]]:
    """Give each worker `each` GPUs of its own, or shared GPUs where there are fewer.

    No worker gets a GPU twice, which CUDA would take for no GPU at all.
    """
    if not visible:
        return []
    shares = ([visible[(at * each + turn) % len(visible)] for turn in range(each)] for at in range(workers))
    return [list(dict.fromkeys(share)) for share in shares]


class WorkerPool:
    """Holds one command's worker processes. Crashed workers are replaced; the end of a `with` block stops them all."""

    def __init__(self, command: Sequence[str], count: int, gpus: Sequence[Sequence[str]] = ()) -> None:
        self.command, self.gpus = list(command), gpus
        self.workers = [self._start(at) for at in range(count)]
        self.begun = [time.monotonic()] * count

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _start(self, at: int) -> subprocess.Popen:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        if self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus[at])
        # In a session of its own, so that Ctrl-C reaches this process alone, which then asks the workers to stop.
        # The standard input is a pipe that ends with this process, however it dies.
        return subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment, start_new_session=True
        )

    def alive(self) -> list[subprocess.Popen]:
        return [worker for worker in self.workers if worker.poll() is None]

    def replace_dead(self, folder: Path, waiting: Sequence[Run], caches: Sequence[CacheSpec]) -> None:
        """Record the run of a crashed worker as a failure, and start another worker in its place."""
        for at, worker in enumerate(self.workers):
            if worker.poll() in (None, 0):
                continue
            why = f"the worker died ({_cause_of_death(worker.returncode)})"
            runs = [run for run in waiting if run_queue.was_locked_by(folder, run.key, worker.pid)]
            for run in runs:
                if not run_queue.is_over(folder, run.key):
                    run_queue.record_failure(folder, run, why)
            specs = [spec for spec in caches if run_queue.was_locked_by(folder, run_cell.cache_key(spec), worker.pid)]
            for spec in specs:
                if run_cell.cache_outcome(folder, spec) is None:
                    run_cell.record_cache_outcome(folder, spec, {"error": why})
            # A worker that died early and was making nothing cannot even start: it would die again and again. After
            # a longer life, another worker may have continued its run.
            if runs or specs or time.monotonic() - self.begun[at] > STARTED:
                self.workers[at] = self._start(at)
                self.begun[at] = time.monotonic()

    def stop(self) -> None:
        """Ask workers to stop, several times since a run may end just when it is asked, then kill them."""
        for _ in range(STOP_REQUESTS):
            for worker in self.alive():
                worker.terminate()
            deadline = time.monotonic() + STOP_PATIENCE / STOP_REQUESTS
            while self.alive() and time.monotonic() < deadline:
                time.sleep(run_queue.POLL / 10)
        for worker in self.workers:
            worker.kill()
            worker.wait()
            if worker.stdin is not None:
                worker.stdin.close()


def _cause_of_death(code: int) -> str:
    if code >= 0:
        return f"exit status {code}"
    return signal.Signals(-code).name + (", perhaps out of memory" if code == -signal.SIGKILL else "")
