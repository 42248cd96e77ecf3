"""Random numbers that depend on names alone: no global state, the same in every process.

Only `Generator.random` is used downstream. It is the part of numpy's random streams least likely ever to change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar
from zlib import crc32

import numpy as np

T = TypeVar("T")


class Chance:
    """A stream of choices for one (seed, split, index, purpose).

    Purposes (content, captions, drawing) have streams of their own: a change in how scenes are drawn leaves
    their captions as they were.
    """

    def __init__(self, seed: int, split: str, index: int, purpose: str) -> None:
        key = np.random.SeedSequence([seed, crc32(split.encode()), index, crc32(purpose.encode())])
        self.random = np.random.Generator(np.random.Philox(key)).random

    def within(self, low: float, high: float) -> float:
        return low + (high - low) * self.random()

    def happens(self, probability: float) -> bool:
        return self.random() < probability

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    def weighted(self, odds: Mapping[T, float]) -> T:
        """A key, with probability proportional to its value."""
        left = self.random() * sum(odds.values())
        for option, weight in odds.items():  # noqa: B007 - the last one also catches rounding
            left -= weight
            if left < 0:
                break
        return option

    def shuffled(self, options: Sequence[T]) -> list[T]:
        rest = list(options)
        return [rest.pop(int(self.random() * len(rest))) for _ in range(len(rest))]
