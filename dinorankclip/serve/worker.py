"""Runs work in a few threads with a bounded queue, so that many requests cannot exhaust memory or time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from dinorankclip.serve.answers import Refused

Result = TypeVar("Result")


class Worker:
    """Runs functions in `threads` threads; at most `waiting` more wait, and further requests are refused with 503."""

    def __init__(self, threads: int, waiting: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._most, self._pending, self._lock = threads + waiting, 0, threading.Lock()

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        with self._lock:
            if self._pending >= self._most:
                raise Refused(503, f"{self._pending} requests are being answered; ask again in a second", 1)
            self._pending += 1
        try:
            future: Future[Result] = self._pool.submit(function, *arguments)
        except RuntimeError:  # the pool is closed
            self._finished(None)
            raise Refused(503, "the server is stopping", 1) from None
        # Counted when the work ends, not when the client leaves: an abandoned request still takes its time.
        future.add_done_callback(self._finished)
        return await asyncio.wrap_future(future)

    def _finished(self, _: Any) -> None:
        with self._lock:
            self._pending -= 1

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
