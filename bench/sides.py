"""The sides of a comparison, each in a process of its own that waits while another one runs.

Processes of their own, since a side may change what a process has only once: the memory allocator, thread pools,
compiled code. They are forked from a server that has imported what both sides need and computed nothing, because
OpenMP's threads do not survive a fork.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bench.resident import forget_peak, resident

Run = Callable[[], object]
Built = tuple[Run, dict[str, Any]]  # what is timed, and what the side wants to say about itself

_PRELOADED = ["bench.open_clip_side", "bench.our_side"]


class Side:
    """A process that has called `build()` and runs what that returned whenever it is told to.

    `build` must be picklable: a function of a module, or a `functools.partial` of one.
    """

    def __init__(self, build: Callable[[], Built], threads: int, environment: dict[str, str] | None = None):
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(_PRELOADED)
        self._channel, theirs = server.Pipe()
        self._process = server.Process(target=_serve, args=(theirs, build, threads, environment or {}))
        self._process.start()
        theirs.close()
        self._facts: dict[str, Any] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Waits until the side is built."""
        if self._facts is None:
            self._facts = self._answer()
        return self._facts

    def begin(self) -> None:
        """Start a run; `end` waits for it."""
        assert self.facts is not None
        self._channel.send("run")

    def end(self) -> dict[str, float]:
        """`seconds` of the run, `bytes` of resident memory that it added at its peak."""
        return self._answer()

    def __call__(self) -> dict[str, float]:
        self.begin()
        return self.end()

    def close(self) -> None:
        if self._process.is_alive():
            try:
                self._channel.send("leave")
                self._process.join(10)
            except OSError:  # it has died
                pass
        self._process.kill()
        self._process.join()

    def _answer(self) -> dict[str, Any]:
        try:
            answer = self._channel.recv()
        except EOFError:
            self._process.join()
            raise SystemExit(f"a side of the comparison died (exit code {self._process.exitcode})") from None
        if isinstance(answer, str):
            raise SystemExit(f"a side of the comparison failed:\n{answer}")
        return answer


@contextmanager
def running(builders: dict[str, Callable[[], Built]], threads: int) -> Iterator[dict[str, Side]]:
    """Sides by name, built one after the other."""
    sides: dict[str, Side] = {}
    try:
        for name, build in builders.items():
            sides[name] = Side(build, threads)
            assert sides[name].facts is not None
        yield sides
    finally:
        for side in sides.values():
            side.close()


def _serve(channel: Any, build: Callable[[], Built], threads: int, environment: dict[str, str]) -> None:
    # A child of the server would start its own workers through that server; Linux's usual way is to fork.
    multiprocessing.set_start_method("fork", force=True)
    os.environ.update(environment)
    torch.set_num_threads(threads)
    try:
        run, facts = build()
        channel.send(facts)
        while channel.recv() == "run":
            before = resident("VmRSS")
            forget_peak()
            begin = time.perf_counter()
            run()
            seconds = time.perf_counter() - begin
            channel.send({"seconds": seconds, "bytes": max(0, resident("VmHWM") - before)})
    except EOFError:  # whoever told us to run is gone
        pass
    except BaseException:
        channel.send(traceback.format_exc())
