"""Makes pieces by actors of Ray: one for each GPU, or for each core where there is none.

The leading process hands each number to a free actor. Each actor receives the folder of the call (crew.py) and numbers;
it opens model and data itself. When an actor, its node or its Ray is lost, the piece goes to another actor, and a new
actor waits for a free place: a node that comes back works again. A piece that fails several times ends the call.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

from tqdm import tqdm

from dinorankclip.extras import naming_extras
from dinorankclip.pieces.account import Account
from dinorankclip.pieces.contract import Pieces, Where
from dinorankclip.pieces.crew import Crew
from dinorankclip.system import usable_cores
from dinorankclip.types import UserError, first_line

LOOK = 1.0  # seconds between looks at the notes of workers
TRIALS = 3  # of a piece whose workers are lost, or which fails
STARTS = 30  # of workers that are lost before they have opened the work
STORE_BYTES = 80_000_000  # for Ray's own objects: nothing of ours lies there
WAITING_AFTER = 60.0  # seconds without any worker at a piece before a message says so


def run_on_ray(
    pieces: Pieces, missing: list[int], crew: Crew, where: Where, device: str, bar: tqdm, account: Account
) -> None:
    address = where.ray.address or os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if not address:  # read when Ray is imported; by default it takes loopback on macOS and Windows alone
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    with naming_extras("--on ray", "ray"):
        import ray
    _connect(ray, address)
    try:
        _Dealer(ray, pieces, missing, crew, where, device, bar, account).run()
    finally:
        ray.shutdown()  # actors end with the call; a Ray of our own ends, too


def _connect(ray: Any, address: str | None) -> None:
    """Join a running cluster, or start Ray on this machine alone: on loopback, without pages, reports or downloads."""
    quiet = {"log_to_driver": False, "logging_level": "error", "configure_logging": False}
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            ray.init(
                address="local", num_cpus=usable_cores(), include_dashboard=False,
                object_store_memory=STORE_BYTES, **quiet,
            )  # fmt: skip
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        what = f"no Ray cluster answers at {address}" if address else "Ray does not start here"
        raise UserError(f"{what} ({first_line(error)}); start one with: ray start --head") from error


def _actor_class(ray: Any) -> Any:
    """Return the actor. It is defined here so that Ray sends its few lines, and a node without this package can say
    so."""

    @ray.remote(max_restarts=0)
    class Maker:
        def __init__(self, folder: str, place: str, paths: list[str], environment: dict[str, str]) -> None:
            self.folder, self.place, self.paths, self.environment = folder, place, paths, environment

        def open(self) -> str:
            """Open the work; return why that is impossible, or nothing."""
            import contextlib
            import os
            import platform
            import sys
            from pathlib import Path

            os.environ.update(self.environment)  # before the package is imported, which reads it
            sys.path[:0] = [path for path in self.paths if path not in sys.path]
            try:
                os.chdir(self.place)
                from dinorankclip.pieces.crew import Worker
            except OSError as error:
                return (
                    f"{platform.node()} has no folder {self.place} ({error.strerror}): workers need output, data and "
                    "model under the same paths as here, on a disk that all machines share"
                )
            except ImportError as error:
                return f"{platform.node()} cannot import dinorankclip ({error}): install it there, as here"
            return self._trying(lambda: self._open(Worker(Path(self.folder)), contextlib.ExitStack()))

        def _open(self, worker: Any, stack: Any) -> None:
            self.stack, self.worker = stack, stack.enter_context(worker.at_work())

        def make(self, number: int) -> str:
            return self._trying(lambda: self.worker.make(number))

        def _trying(self, work: Any) -> str:
            import traceback

            try:
                work()
            except Exception as error:
                from dinorankclip.types import UserError

                return str(error) if isinstance(error, UserError) else traceback.format_exc()
            return ""

    return Maker


class _Dealer:
    """Hands out numbers and receives answers."""

    def __init__(
        self, ray: Any, pieces: Pieces, missing: list[int], crew: Crew, where: Where, device: str, bar: tqdm,
        account: Account,
    ) -> None:  # fmt: skip
        self.ray, self.pieces, self.crew, self.bar, self.account = ray, pieces, crew, bar, account
        self.todo, self.left = deque(missing), set(missing)
        self.trials: Counter[int | None] = Counter()  # by piece; None: starts of workers
        self.idle: list[Any] = []
        self.busy: dict[Any, tuple[Any, int | None]] = {}  # answer → actor and its piece; None: it opens the work
        gpus = int(ray.cluster_resources().get("GPU", 0)) if device != "cpu" else 0
        cores = where.ray.cores
        self.resources = {"num_cpus": cores, "num_gpus": int(gpus > 0)}
        places = gpus or max(1, int(ray.cluster_resources().get("CPU", 0)) // cores)
        self.wanted = min(where.workers or places, len(missing))
        self.actor = _actor_class(ray)
        self.items, self.spoken = 0.0, time.monotonic()

    def run(self) -> None:
        for _ in range(self.wanted):
            self._hire()
        while self.left:
            ready, _ = self.ray.wait(list(self.busy), timeout=LOOK)
            for answer in ready:
                self._take(answer)
            if ready:
                self.pieces.gather()
            self._show()
        for actor, _ in self.busy.values():
            self.ray.kill(actor)
        for note in self.crew.read_notes():
            self.account.add(note.worker, note.pieces, note.core_seconds)

    def _hire(self) -> None:
        environment = {name: value for name, value in os.environ.items() if name.startswith("DINORANKCLIP_")}
        paths = [str(Path(__file__).parents[2]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        actor = self.actor.options(**self.resources).remote(str(self.crew.folder), os.getcwd(), paths, environment)
        self.busy[actor.open.remote()] = actor, None

    def _take(self, answer: Any) -> None:
        actor, number = self.busy.pop(answer)
        try:
            refusal = self.ray.get(answer)
        except self.ray.exceptions.RayError as error:
            self.account.lost += 1
            self._again(number, first_line(error))
            self._hire()
        else:
            if refusal and number is None:
                self._refused(refusal)
                return
            if refusal:
                self._again(number, refusal)
                self.todo.rotate(-1)  # another worker tries it, if there is one: this one's machine may be broken
                self.idle.insert(0, actor)
            else:
                self.left.discard(number)
                self.idle.append(actor)
        while self.todo and self.idle:
            actor, number = self.idle.pop(), self.todo.popleft()
            self.busy[actor.make.remote(number)] = actor, number

    def _refused(self, refusal: str) -> None:
        """Go on without a machine that cannot open the work, as long as there is another one."""
        if not self.busy and not self.idle:
            raise UserError(refusal)
        self.bar.write(f"one worker less: {refusal}", file=sys.stderr)

    def _again(self, number: int | None, why: str) -> None:
        """Put a piece back to the front, unless it, or the start of workers, has failed too often."""
        self.trials[number] += 1
        if self.trials[number] >= (TRIALS if number is not None else STARTS):
            what = f"piece {number}" if number is not None else "the start of workers"
            raise UserError(f"{self.pieces.title}: {what} failed {self.trials[number]} times, at last: {why}")
        if number is not None:
            self.account.again += 1
            self.todo.appendleft(number)

    def _show(self) -> None:
        items = sum(note.items for note in self.crew.read_notes())
        if items > self.items:  # a lost worker's unfinished piece is not counted back
            self.bar.update(items - self.items)
            self.items = items
        if any(number is not None for _, number in self.busy.values()):
            self.spoken = time.monotonic()
        elif time.monotonic() - self.spoken > WAITING_AFTER:
            places = ", ".join(f"{number} {name.removeprefix('num_')}" for name, number in self.resources.items())
            self.bar.write(f"no worker has begun: they load, or wait for a free place ({places})", file=sys.stderr)
            self.spoken = time.monotonic()
