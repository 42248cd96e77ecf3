"""Numbers a claim is about, one for each seed: scores of cells, differences and relative gains of them, telemetry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter, methodcaller

from dinorankclip.run_files import MODALITIES, spread_name
from dinorankclip_studies.papers.dinorankclip.measures import SCENES, Measures
from dinorankclip_studies.results import Results
from dinorankclip_studies.run_times import Bench


@dataclass(frozen=True)
class Context:
    """All that a claim is judged by."""

    results: Results
    measures: Measures = SCENES
    bench: Bench = field(default_factory=Bench)


Score = str | Callable[[Measures], str]  # a name, or what stands for it in a kind of study
PerSeed = Callable[[Context], Mapping[int, float]]

ACCURACY: Score = attrgetter("accuracy")
DECIDES = "<accuracy>"  # stands in labels for what ACCURACY is called in the study
MEAN_R1: Score = attrgetter("mean_r1")
TOP1: Score = attrgetter("top1")
UNSHIFTED: Score = attrgetter("base_top1")
SHIFT: Score = attrgetter("shift")
FINE: Score = attrgetter("fine_probe")
FINE_ERRORS: Score = attrgetter("fine_errors_in_family")
NEAR_MISSES: Score = attrgetter("near_misses")
COARSE_PROBE: Score = attrgetter("coarse_probe")
PROBE_AVERAGE: Score = attrgetter("probe_average")
CONE: Score = attrgetter("cone")
QUALITY: Score = attrgetter("ranking_quality")


def recall(way: str, k: int) -> Score:
    return methodcaller("recall", way, k)


def score_name(score: Score, measures: Measures) -> str:
    return score if isinstance(score, str) else score(measures)


@dataclass(frozen=True)
class Quantity:
    """`cells` and `scores` say what it is made of."""

    values: PerSeed
    cells: tuple[str, ...] = ()
    scores: tuple[Score, ...] = ()

    def __sub__(self, other: Quantity) -> Quantity:
        def values(context: Context) -> dict[int, float]:
            ours, theirs = self.values(context), other.values(context)
            return {seed: ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())}

        return Quantity(values, _union(self.cells, other.cells), _union(self.scores, other.scores))

    def __truediv__(self, divisor: Callable[[Context], float | None]) -> Quantity:
        """By a number that the context knows; without it there are no values."""

        def values(context: Context) -> dict[int, float]:
            by = divisor(context)
            return {seed: value / by for seed, value in self.values(context).items()} if by else {}

        return Quantity(values, self.cells, self.scores)


def of(cell: str, score: Score) -> Quantity:
    return Quantity(
        lambda context: context.results.values(cell, score_name(score, context.measures)), (cell,), (score,)
    )


def gain(cell: str, over: str, score: Score) -> Quantity:
    """cell - over, seed by seed."""
    return of(cell, score) - of(over, score)


def relative_gain(cell: str, over: str, score: Score) -> Quantity:
    """cell / over - 1, seed by seed; seeds where `over` scored nothing are left out."""
    ours, theirs = of(cell, score), of(over, score)

    def values(context: Context) -> dict[int, float]:
        a, b = ours.values(context), theirs.values(context)
        return {seed: a[seed] / b[seed] - 1 for seed in sorted(a.keys() & b.keys()) if b[seed] > 0}

    return Quantity(values, (cell, over), (score,))


def telemetry(cell: str, name: str) -> Quantity:
    return Quantity(lambda context: context.results.telemetry(cell, name), (cell,), (name,))


def step_ratio(side: str, to: str, trunk: str | None = None) -> Quantity:
    """Round → cost of a side of the bench."""
    return Quantity(lambda context: context.bench.ratio(side, to, trunk))


def shifted(quantity: Quantity, by: float) -> Quantity:
    """Less a constant."""
    values = quantity.values
    return Quantity(
        lambda context: {seed: value - by for seed, value in values(context).items()}, quantity.cells, quantity.scores
    )


def spreads(results: Results, cell: str, order: int) -> dict[int, float]:
    """D13: how far an order's correction spreads beside θ at the end, by seed, of the modality where it acts more."""
    image, text = (results.telemetry(cell, spread_name(order, side)) for side in MODALITIES)
    return {seed: max(image.get(seed, 0.0), text.get(seed, 0.0)) for seed in sorted(image.keys() | text.keys())}


def spread(results: Results, cell: str, order: int) -> float | None:
    """The mean of `spreads`; None if no run tells."""
    found = spreads(results, cell, order)
    return sum(found.values()) / len(found) if found else None


def _union(a: tuple, b: tuple) -> tuple:
    return tuple(dict.fromkeys((*a, *b)))
