"""What a step costs, from the dated records under docs/bench. Study runs share a machine and time nothing.

`bench/orders.py` times a step of every order and of the full method in alternating rounds; the newest record counts.
A ratio of two sides is taken round by round, like a difference of two cells seed by seed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAPER_TRUNK = "ViT-B-32"  # in the title of the comparison on the paper's trunk

Seconds = Mapping[str, Sequence[float]]  # side → seconds of each round


@dataclass(frozen=True)
class Bench:
    """`comparisons`: title → what was timed in turn; `latency`: rows of the newest latency record, `latency_about`: on
    what and how they were timed. Empty: not measured."""

    source: str = ""  # name of the record
    machine: str = ""
    comparisons: Mapping[str, Seconds] = field(default_factory=dict)
    latency: Sequence[Mapping[str, Any]] = ()
    latency_about: str = ""

    @property
    def title(self) -> str:
        """Of the comparison with most sides: all orders are timed on one trunk alone."""
        return max(self.comparisons, key=lambda title: len(self.comparisons[title]), default="")

    @property
    def seconds(self) -> Seconds:
        return self.comparisons.get(self.title, {})

    @staticmethod
    def order(order: int) -> str:
        """The side that is this plain order."""
        return f"order {order}"

    @staticmethod
    def full(order: int = 3) -> str:
        """The side that is the full method at this order."""
        return f"full method, order {order}"

    def ratio(self, side: str, to: str, trunk: str | None = None) -> dict[int, float]:
        """Round → how many times as long as `to` it takes; empty if either was not timed (on that trunk)."""
        on_trunk = (told for title, told in self.comparisons.items() if trunk and trunk in title)
        seconds = self.seconds if trunk is None else next(on_trunk, {})
        if side not in seconds or to not in seconds:
            return {}
        return {at: a / b for at, (a, b) in enumerate(zip(seconds[side], seconds[to]))}


def load_bench(folder: str | Path) -> Bench:
    """The newest records in a folder; what is missing stays empty."""
    latency, record = _newest(Path(folder), "latency"), _newest(Path(folder), "orders")
    rows, how = (json.loads(latency.read_text()), _first_line(latency.with_suffix(".md"))) if latency else ((), "")
    if record is None:
        return Bench(latency=rows, latency_about=how)
    stored = json.loads(record.read_text())
    about = stored["machine"]
    return Bench(
        record.name,
        f"{about.get('processor', '?')}, {about.get('threads', '?')} threads",
        {one["title"]: one["seconds"] for one in stored["comparisons"]},
        rows,
        how,
    )


def _first_line(words: Path) -> str:
    """Of the text that is written beside a record: the machine, its threads, the rounds."""
    return words.read_text(encoding="utf-8").partition("\n")[0] if words.is_file() else ""


def _newest(folder: Path, kind: str) -> Path | None:
    """Dates in the names sort; `-quick` records are trials and not among them."""
    return max(folder.glob(f"{kind}-2*.json"), key=lambda path: path.name, default=None)
