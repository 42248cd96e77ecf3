"""Computes the numbers of a claim for each seed: scores of cells, their differences and relative gains, telemetry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter, methodcaller

from dinorankclip.run_files import MODALITIES, spread_name
from dinorankclip_studies.papers.paper_data import ABOVE_09, CENTRED_COSINE, COSINE, GRAM_DISTANCE, Measures
from dinorankclip_studies.results import Results
from dinorankclip_studies.run_times import Bench
from dinorankclip_studies.verdicts import Unit


@dataclass(frozen=True)
class Context:
    """Holds everything that a claim is judged by."""

    results: Results
    measures: Measures
    bench: Bench = field(default_factory=Bench)


Score = str | Callable[[Measures], str]  # a name, or a function that names it in a kind of study
PerSeed = Callable[[Context], Mapping[int, float]]

DECIDES = "<accuracy>"  # stands in labels for the word that the study has for "accuracy"
LOGGED = "log:"  # begins the name of a value of the training log


@dataclass(frozen=True)
class NamedScore:
    """Holds a score under the name that claims.toml uses. `word` follows the cells in a label; it may be empty."""

    score: Score
    word: str
    unit: Unit = "points"


SCORES: Mapping[str, NamedScore] = {
    "accuracy": NamedScore(attrgetter("accuracy"), DECIDES),
    "T@1": NamedScore(attrgetter("top1"), "T@1"),
    "unshifted": NamedScore(attrgetter("base_top1"), "T@1"),
    "shift": NamedScore(attrgetter("shift"), "shift"),
    "mean R@1": NamedScore(attrgetter("mean_r1"), "R@1"),
    "fine probe": NamedScore(attrgetter("fine_probe"), "fine probe"),
    "coarse probe": NamedScore(attrgetter("coarse_probe"), "coarse probe"),
    "probe mean": NamedScore(attrgetter("probe_average"), "probe mean"),
    "errors in family": NamedScore(attrgetter("fine_errors_in_family"), "errors in family"),
    "near misses": NamedScore(attrgetter("near_misses"), "near misses"),
    "ranking τ-b": NamedScore(attrgetter("ranking_quality"), "ranking τ-b", "number"),
    "cone separation": NamedScore(attrgetter("cone"), "", "degrees"),
    "cosine": NamedScore(COSINE, "cosine", "number"),
    "cosine without the teacher's mean": NamedScore(CENTRED_COSINE, "cosine without the teacher's mean", "number"),
    "share above 0.9": NamedScore(ABOVE_09, "share above 0.9"),
    "Gram distance": NamedScore(GRAM_DISTANCE, "", "number"),
    **{
        f"{arrow} R@{k}": NamedScore(methodcaller("recall", way, k), f"{arrow} R@{k}")
        for way, arrow in (("i2t", "i→t"), ("t2i", "t→i"))
        for k in (1, 5, 10)
    },
}


def score_name(score: Score, measures: Measures) -> str:
    return score if isinstance(score, str) else score(measures)


@dataclass(frozen=True)
class Quantity:
    """Holds a number for each seed; `cells` and `scores` name its sources."""

    values: PerSeed
    cells: tuple[str, ...] = ()
    scores: tuple[Score, ...] = ()

    def __sub__(self, other: Quantity) -> Quantity:
        """Subtract seed by seed, over the seeds that both have."""

        def values(context: Context) -> dict[int, float]:
            ours, theirs = self.values(context), other.values(context)
            return {seed: ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())}

        return Quantity(values, _union(self.cells, other.cells), _union(self.scores, other.scores))

    def __truediv__(self, divisor: Callable[[Context], float | None]) -> Quantity:
        """Divide by a number of the context; without that number there are no values."""

        def values(context: Context) -> dict[int, float]:
            by = divisor(context)
            return {seed: value / by for seed, value in self.values(context).items()} if by else {}

        return Quantity(values, self.cells, self.scores)


def of(cell: str, score: Score) -> Quantity:
    """Return the score of a cell, or a value that its runs logged (`log:` and its name)."""
    if isinstance(score, str) and score.startswith(LOGGED):
        name = score.removeprefix(LOGGED)
        return Quantity(lambda context: context.results.telemetry(cell, name), (cell,), (name,))
    return Quantity(
        lambda context: context.results.values(cell, score_name(score, context.measures)), (cell,), (score,)
    )


def gain(cell: str, over: str, score: Score) -> Quantity:
    """Return cell - over, seed by seed."""
    return of(cell, score) - of(over, score)


def relative_gain(cell: str, over: str, score: Score) -> Quantity:
    """Return cell / over - 1, seed by seed; seeds where `over` scored nothing are left out."""
    ours, theirs = of(cell, score), of(over, score)

    def values(context: Context) -> dict[int, float]:
        a, b = ours.values(context), theirs.values(context)
        return {seed: a[seed] / b[seed] - 1 for seed in sorted(a.keys() & b.keys()) if b[seed] > 0}

    return Quantity(values, (cell, over), (score,))


def spreads(results: Results, cell: str, order: int) -> dict[int, float]:
    """Return by seed how far the correction of an order spreads beside θ at the end of training, in the modality where
    the order acts more. An order that spreads too little is inert (D13)."""
    image, text = (results.telemetry(cell, spread_name(order, side)) for side in MODALITIES)
    return {seed: max(image.get(seed, 0.0), text.get(seed, 0.0)) for seed in sorted(image.keys() | text.keys())}


def spread(results: Results, cell: str, order: int) -> float | None:
    """Return the mean of `spreads`, None if no run logged it."""
    by_seed = spreads(results, cell, order)
    return sum(by_seed.values()) / len(by_seed) if by_seed else None


def _union(a: tuple, b: tuple) -> tuple:
    return tuple(dict.fromkeys((*a, *b)))
