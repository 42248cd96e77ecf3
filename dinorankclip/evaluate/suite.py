"""Every scorer there is. A new one is a class by the protocol in `scores`, and a line here."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dinorankclip.data.benchmark_sets import BenchmarkSet, Place, open_set
from dinorankclip.data.damage import Damage
from dinorankclip.evaluate import zero_shot as shifting
from dinorankclip.evaluate.catalogue import Catalogue, catalogue
from dinorankclip.evaluate.embeddings import EmbeddingStore
from dinorankclip.evaluate.graded import OrderAgreementScorer, RankingQualityScorer
from dinorankclip.evaluate.modality_gap import ModalityGapScorer
from dinorankclip.evaluate.probe import ProbeScorer
from dinorankclip.evaluate.retrieval import RetrievalScorer
from dinorankclip.evaluate.scores import Score, Scorer, SeenSet, average_score, with_intervals
from dinorankclip.evaluate.zero_shot import Shift, ZeroShotScorer
from dinorankclip.io import digest
from dinorankclip.types import UserError


def all_scorers(equal_captions: bool = True) -> list[Scorer]:
    return [
        RetrievalScorer(equal_captions),
        ZeroShotScorer(),
        ProbeScorer(),
        ModalityGapScorer(),
        OrderAgreementScorer(),
        RankingQualityScorer(),
    ]


# -------- suite
# All scorers on all sets. A set that cannot be scored becomes an error in words, and the others are scored.
#
# open → check against the catalogue → embed once → every scorer that applies → intervals; at the end what needs several
# sets: shift and averages.

PROBE = "probe"
AVERAGES = "averages"  # the name under which means over sets are reported


@dataclass(frozen=True)
class SuiteOptions:
    metrics: tuple[str, ...] | None = None  # None: all, but probes of known sets only where the catalogue says so
    split: str | None = None
    max_damaged: float = 0.0
    shifts: tuple[Shift, ...] = ()  # besides the catalogue's
    level: float = 0.95
    draws: int = 1000


@dataclass
class SetResult:
    """Scores of one set (or of several together), in the order they were taken."""

    name: str
    kind: str
    split: str
    images: int
    fingerprint: str
    scores: dict[str, Score] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass
class SuiteResult:
    """By the names of the sets; a result's own name also says the part, if it is not the usual one."""

    sets: dict[str, SetResult] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    seen: dict[str, SeenSet] = field(default_factory=dict)  # for pictures
    level: float = 0.95  # of the intervals


Report = Callable[[SetResult], None]


def run_suite(
    model: Any,
    places: Sequence[Place],
    scorers: Sequence[Scorer],
    store: EmbeddingStore,
    options: SuiteOptions | None = None,
    known: Catalogue | None = None,
    report: Report = lambda result: None,
) -> SuiteResult:
    """Score a loaded model on sets; `report` hears of each set when it is done."""
    options, known = options or SuiteOptions(), known or catalogue()
    places = [replace(place, name=known.name_of(place.name)) for place in places]
    named = (Shift(known.name_of(one.base), tuple(map(known.name_of, one.renditions))) for one in options.shifts)
    options = replace(options, shifts=tuple(named))
    _refuse_doubles(places)
    found = SuiteResult(level=options.level)
    for place in places:
        try:
            seen = _see(model, place, scorers, store, options, known)
            result = SetResult(_title(seen), seen.kind, seen.split, len(seen.indices()), seen.source().fingerprint)
        except Exception as error:
            found.errors[place.name] = _in_words(error)
            continue
        result.notes += seen.benchmark.notes
        _score(seen, _wanted(seen.benchmark, scorers, options, known), result, found.errors, options)
        found.sets[seen.name], found.seen[seen.name] = result, seen
        report(result)
    for result in _over_sets(found, options, known):
        found.sets[result.name] = result
        report(result)
    return found


def _in_words(error: Exception) -> str:
    """What one set or scorer meets must not cost what others found; a fault of ours still shows where it came from."""
    if isinstance(error, UserError | Damage | OSError):
        return str(error)
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"


def _see(
    model: Any, place: Place, scorers: Sequence[Scorer], store: EmbeddingStore, options: SuiteOptions, known: Catalogue
) -> SeenSet:
    """Open a set, refuse what does not look as it should, embed the part that is scored."""
    benchmark = open_set(place)
    split = benchmark.scored_split(options.split)
    probed = any(scorer.name == PROBE for scorer in _wanted(benchmark, scorers, options, known))
    kinds = ("embedding", "features") if probed and "train" in benchmark.splits else ("embedding",)
    seen = SeenSet(benchmark, split, model, store, kinds, options.max_damaged)
    known.check(benchmark, split, len(seen.source()))
    if len(kinds) > 1:
        known.check(benchmark, "train", len(seen.source("train")))
    seen.indices()
    return seen


def _title(seen: SeenSet) -> str:
    usual = seen.benchmark.usual_split
    return seen.name if seen.split == usual else f"{seen.name} {seen.split}"


def _wanted(
    benchmark: BenchmarkSet, scorers: Sequence[Scorer], options: SuiteOptions, known: Catalogue
) -> list[Scorer]:
    if options.metrics is not None:
        return [scorer for scorer in scorers if scorer.name in options.metrics]
    listed = known.find(benchmark.name)
    return [scorer for scorer in scorers if scorer.name != PROBE or listed is None or PROBE in listed.tasks]


def _score(
    seen: SeenSet, scorers: Iterable[Scorer], result: SetResult, errors: dict[str, str], options: SuiteOptions
) -> None:
    for scorer in scorers:
        if not scorer.applies(seen):
            continue
        try:
            add_scores(result, scorer(seen), scorer.name, scorer.version, options)
        except Exception as error:
            errors[f"{seen.name}, {scorer.name}"] = _in_words(error)


def add_scores(result: SetResult, scores: Iterable[Score], scorer: str, version: int, options: SuiteOptions) -> None:
    """Put scores into a result, with intervals and with the scorer they come from."""
    for score in with_intervals(scores, options.level, options.draws):
        result.scores[score.name] = replace(score, scorer=scorer, version=version)


def _over_sets(found: SuiteResult, options: SuiteOptions, known: Catalogue) -> Iterable[SetResult]:
    """What is said of several sets together."""
    if options.metrics is None or shifting.NAME in options.metrics:
        for shift in (*options.shifts, *known.shifts):
            result = _shift(shift, found, asked=shift in options.shifts)
            if result is None:
                continue
            try:
                add_scores(result, shifting.shift_scores(shift, found.seen), shifting.NAME, shifting.VERSION, options)
            except Exception as error:
                found.errors[shift.name] = _in_words(error)
                continue
            yield result
    averages = _averages(found, options, known)
    if averages.scores:
        yield averages


def _shift(shift: Shift, found: SuiteResult, asked: bool) -> SetResult | None:
    """An empty result for a shift whose base and some renditions were seen; classes that do not fit are an error, and
    so are sets that are not there, if somebody `asked` for them."""
    there = [name for name in shift.renditions if name in found.seen]
    if shift.base not in found.seen or not there:
        if asked:
            lacking = [name for name in (shift.base, *shift.renditions) if name not in found.seen]
            seen = ", ".join(found.seen) or "none"
            found.errors[shift.name] = f"--shift names {', '.join(lacking)}, which was not scored; sets are {seen}"
        return None
    for name in there:
        wrong = shifting.unlike(found.seen[shift.base], found.seen[name])
        if wrong:
            found.errors[shift.name] = wrong
            return None
    parts = [found.sets[name] for name in (shift.base, *there)]
    fingerprint = digest("shift", *(part.fingerprint for part in parts))
    result = SetResult(shift.name, "shift", parts[0].split, sum(part.images for part in parts), fingerprint)
    missing = [name for name in shift.renditions if name not in there]
    if missing:
        result.notes.append(f"without {', '.join(missing)}")
    return result


def _averages(found: SuiteResult, options: SuiteOptions, known: Catalogue) -> SetResult:
    """Means of probe accuracies: over all probed sets, and over the fine-grained ones."""
    probed = {name: result for name, result in found.sets.items() if _probe_scores(result)}
    fine = [name for name in probed if known.is_fine_grained(name) or found.seen[name].benchmark.families]
    result = SetResult(AVERAGES, "average", "", 0, "")
    for title, names in (("linear probe", list(probed)), ("Fine-grained Probe", fine)):
        if len(names) < 2:
            continue
        for metric in _probe_scores(probed[names[0]]):
            if all(metric in probed[name].scores for name in names):
                score = average_score(f"{title}: {metric.split()[0]}", [probed[name].scores[metric] for name in names])
                version = max(probed[name].scores[metric].version for name in names)
                add_scores(result, [score], PROBE, version, options)
        result.notes.append(f"{title}: mean of {', '.join(names)}")
    result.images = sum(probed[name].images for name in probed)
    result.fingerprint = digest("average", *(f"{name}/{probed[name].fingerprint}" for name in probed))
    return result


def _probe_scores(result: SetResult) -> Mapping[str, Score]:
    scores = result.scores.items()
    return {name: score for name, score in scores if score.scorer == PROBE and name.endswith("accuracy")}


def _refuse_doubles(places: Sequence[Place]) -> None:
    where: dict[str, str] = {}
    for place in places:
        if place.name in where and where[place.name] != place.where:
            both = f"{where[place.name]} and {place.where}"
            raise UserError(f"two sets are called {place.name}: {both}; score them apart")
        where[place.name] = place.where
