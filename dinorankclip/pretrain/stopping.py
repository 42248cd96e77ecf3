"""Ctrl-C and SIGTERM ask the loop to save and leave after the current step; a second Ctrl-C leaves at once."""

from __future__ import annotations

import signal
from types import FrameType

from dinorankclip import comm


class StopRequest:
    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True

    def agreed(self) -> bool:
        """Whether any process was asked; all of them must call this at the same step."""
        return comm.any_process(self.asked)[0]
