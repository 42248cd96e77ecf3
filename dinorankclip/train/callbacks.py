"""Calls functions of a user during training: at each log line, each score, and the end.

A callback is a function of an `Event`. It sees numbers as metrics.jsonl stores them, on the leading process alone, and
may call `event.stop()`: the run is saved after the step and can be resumed. An error in a callback ends the run in the
same way, and is then raised under the callback's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dinorankclip.types import UserError, first_line


@dataclass(frozen=True)
class Event:
    """Describes a moment of a run. `numbers` are those of the log line or of the scores; at the end the final scores,
    empty for a run that was stopped."""

    kind: Literal["log", "score", "end"]
    step: int
    total_steps: int
    numbers: Mapping[str, float]
    run: Path
    _stop: Callable[[], None] = field(repr=False, default=lambda: None)

    def stop(self) -> None:
        """Ask training to save and leave after this step."""
        self._stop()


Callback = Callable[[Event], object]


class CallbackError(UserError):
    """Names the callback that failed, the moment and the error. Everything is saved, and the same call resumes."""


class Callbacks:
    """Calls all callbacks in their order. After an error none is called any more, and training is asked to stop."""

    def __init__(self, callbacks: Sequence[Callback] = ()) -> None:
        for callback in callbacks:
            if not callable(callback):
                raise UserError(f"callbacks are functions of an event; {type(callback).__name__} cannot be called")
        self._callbacks = tuple(callbacks)
        self.error: CallbackError | None = None
        self._stop: Callable[[], None] = lambda: None

    def stop_with(self, stop: Callable[[], None]) -> None:
        """Set the function that asks training to stop."""
        self._stop = stop

    def __call__(
        self, kind: Literal["log", "score", "end"], step: int, total: int, numbers: Mapping[str, Any], run: Path
    ) -> None:
        for callback in self._callbacks:
            if self.error is not None:
                return
            try:
                callback(Event(kind, step, total, dict(numbers), run, self._stop))
            except Exception as error:  # code of the user
                self.error = CallbackError(
                    f"the callback {_name(callback)} failed at step {step} ({kind}): {type(error).__name__}: "
                    f"{first_line(error)}; the run is saved in {run}, and the same call resumes it"
                )
                self.error.__cause__ = error
                self._stop()


def _name(callback: Callback) -> str:
    return getattr(callback, "__qualname__", None) or type(callback).__name__
