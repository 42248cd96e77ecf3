"""Sides timed in turn, so that whatever slows the machine for a while slows all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from tqdm import tqdm

Measured = Mapping[str, float]


def alternate(
    sides: Mapping[str, Callable[[], Measured]],
    rounds: int,
    warmups: int = 1,
    title: str = "",
    there_and_back: bool = True,
) -> dict[str, list[float]]:
    """`seconds` of each side in each round, after `warmups` rounds that are not counted."""
    found = in_turn(sides, rounds, warmups, title, there_and_back)
    return {name: [one["seconds"] for one in measured] for name, measured in found.items()}


def in_turn(
    sides: Mapping[str, Callable[[], Measured]],
    rounds: int,
    warmups: int = 1,
    title: str = "",
    there_and_back: bool = True,
) -> dict[str, list[Measured]]:
    """All that each side measured of itself, round by round.

    A round runs every side once. Every second round runs them backwards, unless `there_and_back` is off: going back,
    the last side of a round is the first of the next, and runs with what its own run has just left behind.
    """
    found: dict[str, list[Measured]] = {name: [] for name in sides}
    for turn in tqdm(range(warmups + rounds), desc=title, unit="round", leave=False):
        for name in list(sides)[:: -1 if there_and_back and turn % 2 else 1]:
            measured = sides[name]()
            if turn >= warmups:
                found[name].append(measured)
    return found


def timed(run: Callable[[], object]) -> Callable[[], Measured]:
    """A side of this process."""
    return lambda: {"seconds": seconds(run)}


def seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin
