"""How long runs take, from those that are finished; before there are any, from measured ratios between methods."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from dinorankclip_studies.results import CELLS, read_record
from dinorankclip_studies.study import Run, Study, once

# Cost of a run beside CLIP's on one thread, 48 px trunk, batch 128, scoring included. Rough: CLIP and the full method
# were timed, other orders follow the ranking benchmark; finished runs correct it.
ORDER_RATIO = (1.0, 1.15, 1.6, 2.0, 2.8, 3.6)
STUDENTS_RATIO = 1.5  # added by two students, their losses and fusion


class Costs:
    """Seconds a run takes: the median of this cell's finished runs (one may have slept with its machine), else an
    estimate, scaled by how the finished ones compare with theirs."""

    def __init__(self, folder: Path, runs: Iterable[Run], study: Study) -> None:
        self.epoch_seconds = study.pairs * study.pair_seconds  # of CLIP
        self.seen: dict[str, list[float]] = defaultdict(list)
        self.scale: list[float] = []
        for run in once(runs):
            if read_record(folder / CELLS / run.key) is not None:
                self.learn(folder, run)

    def learn(self, folder: Path, run: Run) -> float:
        record = read_record(folder / CELLS / run.key)
        assert record is not None, "only finished runs can be learnt from"
        seconds = record.seconds
        self.seen[run.cell].append(seconds)
        self.scale.append(seconds / self.guess(run))
        return seconds

    def of(self, run: Run) -> float:
        if self.seen[run.cell]:
            return median(self.seen[run.cell])
        return self.guess(run) * (median(self.scale) if self.scale else 1.0)

    def left(self, runs: Iterable[Run], workers: int) -> float:
        """Seconds until `workers` have made all of them; what is done of runs under way is not counted."""
        costs = [self.of(run) for run in runs]
        return max(sum(costs) / max(workers, 1), max(costs, default=0.0))

    def guess(self, run: Run) -> float:
        """From ratios alone; only relations between runs matter once one of them has been timed."""
        settings = run.settings
        ratio = ORDER_RATIO[settings.loss.order]
        if settings.fusion.variant != "none" or settings.distil.cache is not None:
            ratio += STUDENTS_RATIO
        return ratio * settings.budget.epochs * self.epoch_seconds


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3.4 h`"""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# -------- bench_figures
# What a step costs, from the dated records under docs/bench. Study runs share a machine and time nothing.
#
# `bench/orders.py` times a step of every order and of the full method in alternating rounds; the newest record counts.
# A ratio of two sides is taken round by round, like a difference of two cells seed by seed.

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
