"""Runs long work once, in a thread of its own: requests get its result, or 202 (accepted) and how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from dinorankclip.serve.answers import Refused, Stopped
from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip.serve.state import ServedState

Result = TypeVar("Result")
Advance = Callable[[int, int], None]  # gets the items that are done, and all items
PATIENCE = 0.5  # seconds that a request waits for a result before it answers how far the work is


class LongWork(Generic[Result]):
    """Runs `make(advance)` when it is first asked for. `title` says what is done, in the words of an answer."""

    def __init__(self, state: ServedState, title: str, make: Callable[[Advance], Result]) -> None:
        self._state, self._title, self._make = state, title, make
        self._lock, self._ended, self._began = threading.Lock(), threading.Event(), False
        self._results: list[Result] = []  # one, when the work is done
        self._failed = ""
        self._done, self._total = 0, 0

    def begin(self) -> None:
        """Begin the work, unless it has begun before."""
        with self._lock:
            if self._began:
                return
            self._began = True
        self._state.begin(self._run)

    def peek(self) -> Result | None:
        """Return the result if it is there."""
        return self._results[0] if self._results else None

    @property
    def progress(self) -> tuple[int, int] | None:
        """Return items that are done and all items; None before the work and after it."""
        return (self._done, self._total) if self._began and not self._ended.is_set() else None

    def result(self) -> Result:
        """Return the result; begin the work if need be, and end the request if it takes longer than a moment."""
        self.begin()
        self._ended.wait(PATIENCE)
        if self._failed:
            raise Refused(409, self._failed)
        if not self._results:
            counted = f": {self._done:,} of {self._total:,}" if self._total else ""
            raise Refused(202, f"{self._title}{counted}", 1)
        return self._results[0]

    def _run(self) -> None:
        try:
            self._results.append(self._make(self._advance))
        except Stopped:
            return
        except (UserError, OSError) as error:
            self._failed = str(error)
        except BaseException as error:
            self._failed = f"{self._title} failed: {type(error).__name__}; the terminal has more"
            raise
        finally:
            self._ended.set()

    def _advance(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        if self._state.stopping.is_set():
            raise Stopped
