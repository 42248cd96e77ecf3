"""How long runs take, from those that are finished; before there are any, from measured ratios between methods."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from .outline import Run, Study, once
from .results import CELLS, read_record

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
