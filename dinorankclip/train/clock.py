"""Measures the time that steps take: pairs a second on the clock, and seconds of all cores in all."""

from __future__ import annotations

import multiprocessing
import time

from dinorankclip.system import core_seconds


class Clock:
    """Measures pairs per second since the last log line, and core-seconds of the whole run, without scoring and
    saving. `core_seconds` are those of this process and its reading processes, at a resumption those so far."""

    def __init__(self, batch: int, core_seconds: float = 0.0):
        self.batch = batch
        self.pairs, self.seconds = 0, 0.0
        self.core_seconds = core_seconds
        self.last, self._last_cores = time.perf_counter(), core_time()

    def tick(self) -> None:
        """Count the step that ends now."""
        now, cores = time.perf_counter(), core_time()
        self.seconds += now - self.last
        self.core_seconds += cores - self._last_cores
        self.pairs += self.batch
        self.last, self._last_cores = now, cores

    def pause(self) -> None:
        """Start to count anew from here: what came before was no step."""
        self.last, self._last_cores = time.perf_counter(), core_time()

    def numbers(self) -> dict[str, float]:
        rate = self.pairs / max(self.seconds, 1e-9)
        self.pairs, self.seconds = 0, 0.0
        return {"pairs/s": round(rate, 1)}


def core_time() -> float:
    """Return the seconds that all cores have spent on this process and on its reading processes, live and ended."""
    return core_seconds(child.pid for child in multiprocessing.active_children() if child.pid is not None)
