"""Ctrl-C and SIGTERM ask the loop to save and leave after the current step; a second Ctrl-C leaves at once."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

from dinorankclip import comm


class StopRequest:
    def __init__(self) -> None:
        self.signal: int | None = None  # the first that came to this process
        self._before: dict[int, Any] = {}  # handlers

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or number

    def agreed(self) -> bool:
        """Whether any process was asked; all of them must call this at the same step."""
        return comm.any_process(self.signal is not None)[0]

    @property
    def status(self) -> int:
        """The exit status that says "stopped by that signal", so that scripts do not go on to their next line.

        A process that left because another one was asked says SIGTERM.
        """
        return 128 + (self.signal or signal.SIGTERM)
