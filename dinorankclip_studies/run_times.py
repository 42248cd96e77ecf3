"""Estimates the time of runs for `study plan`, and reads the timings of training steps that the benches recorded.

`Costs` learns from finished runs; before the first, it uses measured ratios between methods. Study runs share a
machine, so claims about cost use `Bench` instead: records under docs/bench, where `bench/orders.py` times a step of
every order and of the full method in alternating rounds. A ratio of two sides is taken round by round, as a difference
of two cells is taken seed by seed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from dinorankclip_studies.results import CELLS, read_record
from dinorankclip_studies.study import Run, Study, distinct

# Cost of a run relative to CLIP's on one thread: 48 px trunk, batch 128, scoring included. CLIP and the full method
# were timed, other orders follow the ranking benchmark; finished runs correct the estimate.
ORDER_RATIO = (1.0, 1.15, 1.6, 2.0, 2.8, 3.6)
STUDENTS_RATIO = 1.5  # added cost of two students, their losses and fusion
PAPER_TRUNK = "ViT-B-32"  # part of the title of the comparison on the paper's trunk

Seconds = Mapping[str, Sequence[float]]  # side → seconds of each round


class Costs:
    """Estimates the seconds of a run: the median of the cell's finished runs (the machine may have slept during one).

    Cells without finished runs get an estimate, scaled by how finished runs compare with their estimates.
    """

    def __init__(self, folder: Path, runs: Iterable[Run], study: Study) -> None:
        self.study = study
        self.measured: dict[str, list[float]] = defaultdict(list)
        self.scale: list[float] = []
        for run in distinct(runs):
            if read_record(folder / CELLS / run.key) is not None:
                self.learn(folder, run)

    def learn(self, folder: Path, run: Run) -> float:
        """Take the time of a finished run into account, and return it."""
        record = read_record(folder / CELLS / run.key)
        assert record is not None, "only finished runs have a time"
        self.measured[run.cell].append(record.seconds)
        self.scale.append(record.seconds / self.guess(run))
        return record.seconds

    def of(self, run: Run) -> float:
        if self.measured[run.cell]:
            return median(self.measured[run.cell])
        return self.guess(run) * (median(self.scale) if self.scale else 1.0)

    def left(self, runs: Iterable[Run], workers: int) -> float:
        """Return the seconds until `workers` have made all runs; work done on unfinished runs is not counted."""
        costs = [self.of(run) for run in runs]
        return max(sum(costs) / max(workers, 1), max(costs, default=0.0))

    def guess(self, run: Run) -> float:
        """Estimate from ratios alone; only relations between runs matter once one run has been timed."""
        settings = run.settings
        listed = min(settings.loss.list_length or settings.budget.batch, settings.budget.batch) / settings.budget.batch
        ratio = 1 + listed * (ORDER_RATIO[settings.loss.order] - 1)  # positions of a list are ranked one by one
        if settings.fusion.variant != "none" or settings.distil.cache is not None:
            ratio += STUDENTS_RATIO
        epoch_of_clip = self.study.pairs_of(settings) * self.study.pair_seconds
        return ratio * settings.budget.epochs * epoch_of_clip


def duration(seconds: float) -> str:
    """Write seconds as `45 s`, `12 min` or `3.4 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True)
class Bench:
    """Holds recorded timings; empty where nothing was measured.

    `comparisons`: title → seconds of the sides that were timed in turn. `latency`: rows of the newest latency record;
    `latency_about`: machine and method of that record.
    """

    source: str = ""  # name of the record
    machine: str = ""
    comparisons: Mapping[str, Seconds] = field(default_factory=dict)
    latency: Sequence[Mapping[str, Any]] = ()
    latency_about: str = ""

    @property
    def title(self) -> str:
        """Return the title of the comparison with most sides: all orders are timed on one trunk alone."""
        return max(self.comparisons, key=lambda title: len(self.comparisons[title]), default="")

    @property
    def seconds(self) -> Seconds:
        return self.comparisons.get(self.title, {})

    @staticmethod
    def order(order: int) -> str:
        """Return the name of the side that is this plain order."""
        return f"order {order}"

    @staticmethod
    def full(order: int = 3) -> str:
        """Return the name of the side that is the full method at this order."""
        return f"full method, order {order}"

    def ratio(self, side: str, to: str, trunk: str | None = None) -> dict[int, float]:
        """Return round → time of `side` divided by that of `to`; empty if either was not timed (on that trunk)."""
        on_trunk = (sides for title, sides in self.comparisons.items() if trunk and trunk in title)
        seconds = self.seconds if trunk is None else next(on_trunk, {})
        if side not in seconds or to not in seconds:
            return {}
        return {at: a / b for at, (a, b) in enumerate(zip(seconds[side], seconds[to]))}


def load_bench(folder: str | Path) -> Bench:
    """Read the newest records in a folder. Dates in their names sort; names of trials (`-quick`) do not match."""

    def newest(kind: str) -> Path | None:
        return max(Path(folder).glob(f"{kind}-2*.json"), key=lambda path: path.name, default=None)

    latency, record = newest("latency"), newest("orders")
    rows: Sequence[Mapping[str, Any]] = ()
    about = ""
    if latency is not None:
        rows, text = json.loads(latency.read_text(encoding="utf-8")), latency.with_suffix(".md")
        about = text.read_text(encoding="utf-8").partition("\n")[0] if text.is_file() else ""
    if record is None:
        return Bench(latency=rows, latency_about=about)
    stored = json.loads(record.read_text(encoding="utf-8"))
    machine = f"{stored['machine'].get('processor', '?')}, {stored['machine'].get('threads', '?')} threads"
    comparisons = {entry["title"]: entry["seconds"] for entry in stored["comparisons"]}
    return Bench(record.name, machine, comparisons, rows, about)
