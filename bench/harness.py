"""Comparisons on one machine, of sides that were timed in turn: ratios with their spread, and the dated record of them.

A ratio is taken within a round; what is reported is the median over rounds with its range. Noise is the spread of one
side against itself, (slowest - fastest) / median: a ratio means nothing below it.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.dated_record import today, told, write_dated
from bench.machine import in_words
from bench.ratios import ratio, written


@dataclass
class Comparison:
    """Seconds of each side, round by round. `base` is the side that the others are measured against.

    As a speed (the default) a ratio says how many times faster than `base` a side is, and `wanted` is the least;
    as a cost it says how many times longer a side takes, and `wanted` is the most.
    """

    title: str
    seconds: dict[str, list[float]]
    base: str
    items: int  # pairs or images that one run of a side handles
    unit: str = "pairs"
    cost: bool = False
    wanted: dict[str, float] = field(default_factory=dict)
    note: str = ""

    def ratio(self, side: str) -> dict[str, float]:
        own, base = self.seconds[side], self.seconds[self.base]
        return ratio(own, base) if self.cost else ratio(base, own)

    def noise(self, side: str) -> float:
        values = self.seconds[side]
        return (max(values) - min(values)) / statistics.median(values)

    def met(self, side: str) -> bool | None:
        """Whether the median reaches what was wanted; None if nothing was."""
        if side not in self.wanted:
            return None
        median = self.ratio(side)["median"]
        return median <= self.wanted[side] if self.cost else median >= self.wanted[side]

    def as_record(self) -> dict:
        sides = {
            side: {"ratio": self.ratio(side), "noise": self.noise(side), "met": self.met(side)} for side in self.seconds
        }
        return asdict(self) | {"sides": sides}

    def as_markdown(self) -> str:
        what = f"times as long as {self.base}" if self.cost else f"times faster than {self.base}"
        lines = [
            f"## {self.title}",
            "",
            *([self.note, ""] if self.note else []),
            f"| side | seconds | {self.unit}/s | noise | {what}, median (range) | wanted |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for side, values in self.seconds.items():
            middle = statistics.median(values)
            wanted = f"{'≤' if self.cost else '≥'} {self.wanted[side]:g}" if side in self.wanted else ""
            shown = "" if side == self.base else written(self.ratio(side))
            lines.append(
                f"| {side} | {middle:.4g} | {self.items / middle:.4g} | {self.noise(side):.0%} | {shown} | {wanted} |"
            )
        return "\n".join(lines) + "\n"


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The flags of every bench that makes comparisons."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", default="scenes", help="real pairs: a retrieval-layout folder; default: built in")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="torch threads of the measured process")
    parser.add_argument("--rounds", type=int, help="timed rounds; default: the bench's own")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs; not for the record")
    parser.add_argument("--out", type=Path, default=Path("docs/bench"), help="folder for the dated JSON and Markdown")
    return parser


def write_record(
    name: str, comparisons: Sequence[Comparison], options: argparse.Namespace, about: dict, extra: str = "", **more
) -> None:
    """`name-DATE.json` and `.md` in `options.out`. `about` is `machine_now()` from before the first timing."""
    date = today()
    record = {"bench": name, "date": date, "machine": about, "options": told(options)}
    record |= {"comparisons": [one.as_record() for one in comparisons]} | more
    text = "\n".join([heading(name, date, about, options), *(one.as_markdown() for one in comparisons), extra])
    write_dated(options.out, f"{name}{'-quick' * options.quick}", date, record, text)


def heading(name: str, date: str, about: dict, options: argparse.Namespace) -> str:
    return (
        f"# Bench: {name}, {date}\n\n"
        f"{in_words(about)}. Pairs: {Path(options.pairs).name}.\n"
        "Ratios: median (range) over alternating rounds. Noise: (slowest - fastest) / median of one side.\n"
    )
