"""Runs all scorers on all sets for `dinorankclip score`. A set that cannot be scored becomes an error message.

Each set is opened, checked against the catalogue, embedded once and given to every scorer that applies; intervals are
added. Scores that need several sets (shift, averages) come at the end. A new scorer is a line in `all_scorers`, or
a plug-in.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dinorankclip.data.benchmark_sets import BenchmarkSet, SetLocation, open_set
from dinorankclip.data.damage import Damage
from dinorankclip.evaluate.catalogue import Average, catalogue
from dinorankclip.evaluate.embeddings import EmbeddingStore
from dinorankclip.evaluate.geometry import ModalityGapScorer
from dinorankclip.evaluate.probe import ProbeScorer
from dinorankclip.evaluate.rank_metrics import OrderAgreementScorer, RankingQualityScorer
from dinorankclip.evaluate.retrieval import RetrievalScorer
from dinorankclip.evaluate.scores import EmbeddedSet, Score, Scorer, average_score, with_intervals
from dinorankclip.evaluate.zero_shot import SHIFT, SHIFT_VERSION, Shift, ZeroShotScorer, shift_scores, unlike
from dinorankclip.io import digest
from dinorankclip.plugins import Registry
from dinorankclip.types import UserError

PROBE = ProbeScorer.name
AVERAGES = "averages"  # the name under which means over sets are reported


def all_scorers(equal_captions: bool = True) -> list[Scorer]:
    """Return the built-in scorers, then those that are plugged in."""
    return [
        RetrievalScorer(equal_captions),
        ZeroShotScorer(),
        ProbeScorer(),
        ModalityGapScorer(),
        OrderAgreementScorer(),
        RankingQualityScorer(),
        *(scorer for _, scorer in REGISTRY.plugged_in()),
    ]


def _checked(name: str, scorer: Any) -> Scorer:
    """Return a plugged-in scorer, made if it is a class, or say what it lacks."""
    scorer = scorer() if isinstance(scorer, type) else scorer
    missing = [part for part in ("name", "version", "applies", "__call__") if not hasattr(scorer, part)]
    if missing or scorer.name.replace(" ", "-") != name:
        wrong = f"it lacks {', '.join(missing)}" if missing else f"its name is {scorer.name!r}"
        raise UserError(f"scorer {name!r} must have what `Scorer` in evaluate/scores.py asks for: {wrong}")
    return scorer


BUILT_IN = (RetrievalScorer, ZeroShotScorer, ProbeScorer, ModalityGapScorer, OrderAgreementScorer, RankingQualityScorer)
REGISTRY: Registry[Scorer] = Registry(
    "scorers", "scorer", {kind.name.replace(" ", "-"): kind() for kind in BUILT_IN}, _checked
)


def register_scorer(scorer: Scorer) -> None:
    """Add a scorer for this process; `score` takes its name after --metrics, with hyphens for spaces."""
    REGISTRY.register(scorer.name.replace(" ", "-"), scorer)


@dataclass(frozen=True)
class SuiteOptions:
    metrics: tuple[str, ...] | None = None  # None: all, but probes of known sets only where the catalogue says so
    split: str | None = None
    max_damaged: float = 0.0
    shifts: tuple[Shift, ...] = ()  # shifts besides those of the catalogue
    level: float = 0.95
    draws: int = 1000


@dataclass
class SetResult:
    """Holds scores of one set (or of several sets together), in the order they were taken."""

    name: str
    kind: str
    split: str
    images: int
    fingerprint: str
    scores: dict[str, Score] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass
class SuiteResult:
    """Holds results by the names of the sets; the name of a result includes the part, if it is not the usual part."""

    sets: dict[str, SetResult] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    embedded: dict[str, EmbeddedSet] = field(default_factory=dict)  # embedded sets, for pictures
    level: float = 0.95  # level of the intervals


def run_suite(
    model: Any,
    places: Sequence[SetLocation],
    scorers: Sequence[Scorer],
    store: EmbeddingStore,
    options: SuiteOptions | None = None,
    report: Callable[[SetResult], None] = lambda result: None,
) -> SuiteResult:
    """Score a loaded model on sets; `report` is called with the result of each set when it is done."""
    options, known = options or SuiteOptions(), catalogue()
    places = [replace(place, name=known.name_of(place.name)) for place in places]
    shifts = (Shift(known.name_of(shift.base), tuple(map(known.name_of, shift.renditions))) for shift in options.shifts)
    options = replace(options, shifts=tuple(shifts))
    _refuse_doubles(places)
    suite = SuiteResult(level=options.level)
    for place in places:
        try:
            embedded = _embed(model, place, scorers, store, options)
            usual, name = embedded.split == embedded.benchmark.usual_split, embedded.name
            result = SetResult(
                name if usual else f"{name} {embedded.split}", embedded.kind, embedded.split, len(embedded.indices()),
                embedded.source().fingerprint, notes=list(embedded.benchmark.notes),
            )  # fmt: skip
        except Exception as error:
            suite.errors[place.name] = _message(error)
            continue
        for scorer in _scorers_of(embedded.benchmark, scorers, options):
            try:
                if scorer.applies(embedded):
                    add_scores(result, scorer(embedded), scorer.name, scorer.version, options)
            except Exception as error:
                suite.errors[f"{name}, {scorer.name}"] = _message(error)
        suite.sets[name], suite.embedded[name] = result, embedded
        report(result)
    for result in [*_shifts(suite, options), _averages(suite, options)]:
        if result.scores:
            suite.sets[result.name] = result
            report(result)
    return suite


def embed_set(
    model: Any, place: SetLocation, scorers: Sequence[Scorer], store: EmbeddingStore, options: SuiteOptions
) -> None:
    """Store all rows that scores of a set read, images and texts; nothing is scored."""
    embedded = _embed(model, place, scorers, store, options)
    for scorer in _scorers_of(embedded.benchmark, scorers, options):
        if scorer.name != PROBE and scorer.applies(embedded):  # probes read images alone, and take long
            list(scorer(embedded))


def add_scores(result: SetResult, scores: Iterable[Score], scorer: str, version: int, options: SuiteOptions) -> None:
    """Put scores into a result, with intervals and with the scorer that took them."""
    for score in with_intervals(scores, options.level, options.draws):
        result.scores[score.name] = replace(score, scorer=scorer, version=version)


def _refuse_doubles(places: Sequence[SetLocation]) -> None:
    where: dict[str, str] = {}
    for place in places:
        if (first := where.setdefault(place.name, place.where)) != place.where:
            raise UserError(f"two sets are called {place.name}: {first} and {place.where}; score them apart")


def _message(error: Exception) -> str:
    """Return the message of an error in one set or scorer; the other sets are scored. A bug prints its traceback."""
    if isinstance(error, UserError | Damage | OSError):
        return str(error)
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"


def _scorers_of(benchmark: BenchmarkSet, scorers: Sequence[Scorer], options: SuiteOptions) -> list[Scorer]:
    if options.metrics is not None:
        return [scorer for scorer in scorers if scorer.name in options.metrics]
    listed = catalogue().find(benchmark.name)
    return [scorer for scorer in scorers if scorer.name != PROBE or listed is None or PROBE in listed.tasks]


def _embed(
    model: Any, place: SetLocation, scorers: Sequence[Scorer], store: EmbeddingStore, options: SuiteOptions
) -> EmbeddedSet:
    """Open a set, check it against the catalogue, and embed the part that is scored."""
    benchmark = open_set(place)
    split = benchmark.scored_split(options.split)
    probed = any(scorer.name == PROBE for scorer in _scorers_of(benchmark, scorers, options))
    kinds = ("embedding", "features") if probed and "train" in benchmark.splits else ("embedding",)
    embedded = EmbeddedSet(benchmark, split, model, store, kinds, options.max_damaged)
    parts = (split, "train") if len(kinds) > 1 else (split,)
    notes = dict.fromkeys(catalogue().check(benchmark, part, len(embedded.source(part))) for part in parts)
    embedded.benchmark = replace(benchmark, notes=(*benchmark.notes, *filter(None, notes)))
    embedded.indices()
    return embedded


def _shifts(suite: SuiteResult, options: SuiteOptions) -> Iterator[SetResult]:
    if options.metrics is not None and SHIFT not in options.metrics:
        return
    for shift in (*options.shifts, *catalogue().shifts):
        try:
            result = _shift_result(shift, suite, asked=shift in options.shifts)
            if result is not None:
                add_scores(result, shift_scores(shift, suite.embedded), SHIFT, SHIFT_VERSION, options)
                yield result
        except Exception as error:
            suite.errors[shift.name] = _message(error)


def _shift_result(shift: Shift, suite: SuiteResult, asked: bool) -> SetResult | None:
    """Return an empty result for a shift whose base and some renditions were scored.

    Classes that do not fit are an error. Sets that were not scored are an error if the user `asked` for the shift.
    """
    there = [name for name in shift.renditions if name in suite.embedded]
    if shift.base not in suite.embedded or not there:
        if asked:
            missing = ", ".join(name for name in (shift.base, *shift.renditions) if name not in suite.embedded)
            scored = ", ".join(suite.embedded) or "none"
            raise UserError(f"--shift names {missing}, which was not scored; sets are {scored}")
        return None
    for name in there:
        if reason := unlike(suite.embedded[shift.base], suite.embedded[name]):
            raise UserError(reason)
    parts = [suite.sets[name] for name in (shift.base, *there)]
    fingerprint = digest("shift", *(part.fingerprint for part in parts))
    result = SetResult(shift.name, "shift", parts[0].split, sum(part.images for part in parts), fingerprint)
    if left_out := [name for name in shift.renditions if name not in there]:
        result.notes.append(f"without {', '.join(left_out)}")
    return result


def _averages(suite: SuiteResult, options: SuiteOptions) -> SetResult:
    """Average probe accuracies over all probed sets and over the fine-grained sets; add the catalogue's own means."""
    probed = {name: result for name, result in suite.sets.items() if _probe_scores(result)}
    fine = [name for name in probed if catalogue().is_fine_grained(name) or suite.embedded[name].benchmark.families]
    listed_averages = [each for each in catalogue().averages if all(name in suite.sets for name in each.sets)]
    averaged = probed | {name: suite.sets[name] for each in listed_averages for name in each.sets}
    images = sum(result.images for result in averaged.values())
    fingerprint = digest("average", *(f"{name}/{result.fingerprint}" for name, result in averaged.items()))
    average = SetResult(AVERAGES, "average", "", images, fingerprint)
    for title, names in (("linear probe", list(probed)), ("Fine-grained Probe", fine)):
        if len(names) < 2:
            continue
        for metric in _probe_scores(probed[names[0]]):
            if all(metric in probed[name].scores for name in names):
                scores = [probed[name].scores[metric] for name in names]
                mean, version = average_score(f"{title}: {metric.split()[0]}", scores), max(s.version for s in scores)
                add_scores(average, [mean], PROBE, version, options)
        average.notes.append(f"{title}: mean of {', '.join(names)}")
    for listed in listed_averages:
        _add_average(suite, average, listed, options)
    return average


def _add_average(suite: SuiteResult, average: SetResult, listed: Average, options: SuiteOptions) -> None:
    """Add means that the catalogue names: one for each score that ends as named and that all the sets have."""
    for metric in suite.sets[listed.sets[0]].scores:
        if metric.endswith(listed.score) and all(metric in suite.sets[name].scores for name in listed.sets):
            scores = [suite.sets[name].scores[metric] for name in listed.sets]
            kind = metric.removesuffix(listed.score).strip() or metric
            mean = average_score(f"{listed.title}: {kind}", scores)
            add_scores(average, [mean], scores[0].scorer, max(score.version for score in scores), options)
            average.notes.append(f"{listed.title}: mean of {', '.join(listed.sets)}")


def _probe_scores(result: SetResult) -> list[str]:
    return [name for name, score in result.scores.items() if score.scorer == PROBE and name.endswith("accuracy")]
