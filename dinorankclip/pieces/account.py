"""Counts who made the pieces, what was lost, and what it took."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Account:
    """Holds the final account of one call. Workers are named HOST.PROCESS."""

    made: Counter[str] = field(default_factory=Counter)  # worker → pieces
    core_seconds: dict[str, float] = field(default_factory=dict)  # by worker, its start included
    again: int = 0  # pieces that were begun anew because a worker was lost or failed
    lost: int = 0  # workers that ended in the middle
    seconds: float = 0.0  # by the clock, from the first look to the last piece

    def add(self, worker: str, pieces: int, core_seconds: float) -> None:
        """Note what a worker has done in all."""
        self.made[worker], self.core_seconds[worker] = pieces, core_seconds

    def __str__(self) -> str:
        total, workers = sum(self.made.values()), [name for name, pieces in self.made.items() if pieces]
        spent = f"{self.seconds:.0f} s, {sum(self.core_seconds.values()):.0f} core-seconds"
        text = f"{total} piece{'s' * (total != 1)} in {spent}"
        if len(workers) > 1 or self.lost:
            text += ", by " + ", ".join(f"{name} ({self.made[name]})" for name in workers[:_SHOWN])
            text += f" and {len(workers) - _SHOWN} more" if len(workers) > _SHOWN else ""
        if self.lost or self.again:
            text += f"; workers lost: {self.lost}, pieces begun again: {self.again}"
        return text


_SHOWN = 8
