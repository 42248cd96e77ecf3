"""One number with what it is made of, and what a scorer is.

A score keeps the contribution of every item, so that an interval can be drawn around it and two models compared on
the same items. Scorers see a set through a model (`seen.SeenSet`): embeddings and labels, never the model itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from dinorankclip.data.benchmark_sets import BenchmarkSet, LabelledSource, refuse_damage
from dinorankclip.evaluate.embeddings import EmbeddedImages, EmbeddingStore
from dinorankclip.evaluate.intervals import interval
from dinorankclip.formatting import Unit
from dinorankclip.types import Source


@dataclass(frozen=True)
class Score:
    """`value` is the (weighted) mean of `items` [N], if there are any; `clusters` [N] are the images they belong to."""

    name: str
    value: float
    n: int
    unit: Unit = "share"
    items: np.ndarray | None = None
    clusters: np.ndarray | None = None
    weights: np.ndarray | None = None
    low: float | None = None
    high: float | None = None
    chance: float | None = None  # what knowing nothing would give
    scorer: str = ""
    version: int = 0


class Scorer(Protocol):
    """`version` grows whenever the same embeddings would give another number."""

    name: str
    version: int

    def applies(self, seen: SeenSet) -> bool: ...
    def __call__(self, seen: SeenSet) -> Iterator[Score]: ...


def mean_score(
    name: str,
    items: np.ndarray,
    clusters: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    *,
    unit: Unit = "share",
    chance: float | None = None,
) -> Score:
    """The score that is the mean of its items."""
    items = np.asarray(items, dtype=np.float64)
    value = float(np.average(items, weights=weights))
    return Score(name, value, len(items), unit, items, clusters, weights, chance=chance)


def combined_score(name: str, value: float, sides: Sequence[tuple[np.ndarray, float]]) -> Score:
    """Σ weight · mean(items) over sides with items of their own, as the mean of centred contributions of all items.

    Their mean is `value`, and resampling them resamples every side: this gives differences and averages of scores on
    different images an interval.
    """
    total = sum(len(items) for items, _ in sides)
    parts = [value + weight * total / len(items) * (items - items.mean()) for items, weight in sides]
    return mean_score(name, np.concatenate(parts))


OWN_LEVEL = 0.95  # of intervals that a scorer takes itself


def average_score(name: str, scores: Sequence[Score]) -> Score:
    """The mean of scores of different sets, which count alike, however many items they have."""
    value = float(np.mean([score.value for score in scores]))
    sides = []
    for score in scores:
        assert score.items is not None, "scores just taken have their items"
        sides.append((score.items, 1 / len(scores)))
    return combined_score(name, value, sides)


def with_intervals(scores: Iterable[Score], level: float = 0.95, draws: int = 1000) -> Iterator[Score]:
    """Add an interval to every score that has items, and none of this level yet; scorers bring those of `OWN_LEVEL`."""
    for score in scores:
        if score.items is None or (score.low is not None and level == OWN_LEVEL):
            yield score
            continue
        low, high = interval(score.items, score.clusters, level=level, draws=draws, weights=score.weights)
        yield replace(score, low=low, high=high)


# -------- seen
# A set through the eyes of a model: all that scorers get. Everything is computed when it is first asked for.
#
# Shapes: N usable images of a part, T texts, D width of the rows.


class SeenSet:
    """`kinds` of rows are computed in one pass over the images: embeddings, and features for probes."""

    def __init__(
        self,
        benchmark: BenchmarkSet,
        split: str,
        model: Any,
        store: EmbeddingStore,
        kinds: Sequence[str] = ("embedding",),
        max_damaged: float = 0.0,
    ) -> None:
        self.benchmark = benchmark
        self.split = split
        self.kinds = tuple(kinds)
        self.max_damaged = max_damaged
        self._model, self._store = model, store
        self._sources: dict[str, Source] = {}
        self._embedded: dict[str, EmbeddedImages] = {}
        self._texts: dict[tuple[str, ...], Tensor] = {}

    @property
    def name(self) -> str:
        return self.benchmark.name

    @property
    def kind(self) -> str:
        return self.benchmark.kind

    def source(self, split: str | None = None) -> Source:
        """The samples of a part; the scored one by default, here and below."""
        split = split or self.split
        if split not in self._sources:
            self._sources[split] = self.benchmark.open(split)
        return self._sources[split]

    def images(self, kind: str = "embedding", split: str | None = None) -> Tensor:
        """Rows of the usable images, fp32 [N, D]: unit-norm for "embedding", the trunk's own for "features"."""
        return self._pass(split or self.split).rows[kind]

    def indices(self, split: str | None = None) -> np.ndarray:
        """Where the usable images stand in the source, [N]."""
        return self._pass(split or self.split).indices

    def keys(self, split: str | None = None) -> list[str]:
        return [self.source(split).key(int(index)) for index in self.indices(split)]

    def labels(self, split: str | None = None) -> np.ndarray:
        """Class indices of the usable images, int64 [N]; of classification sets."""
        source = self.source(split)
        assert isinstance(source, LabelledSource), f"{self.name} has captions, no classes"
        return source.labels[self.indices(split)]

    def captions(self) -> list[tuple[str, ...]]:
        """Captions of every usable image; of retrieval sets."""
        return [self.source().captions(int(index)) for index in self.indices()]

    def caption_rows(self) -> tuple[Tensor, np.ndarray]:
        """Embeddings of all captions, image by image [T, D], and which image each belongs to [T]; of retrieval sets."""
        captions = self.captions()
        rows = self.texts([text for group in captions for text in group])
        return rows, np.repeat(np.arange(len(captions)), [len(group) for group in captions])

    def texts(self, texts: Sequence[str]) -> Tensor:
        """Unit-norm embeddings of captions or prompts, fp32 [T, D]."""
        wanted = tuple(texts)
        if wanted not in self._texts:
            self._texts[wanted] = self._store.texts(self._model, wanted, label=f"{self.name}: texts")
        return self._texts[wanted]

    def _pass(self, split: str) -> EmbeddedImages:
        if split not in self._embedded:
            source = self.source(split)
            found = self._store.images(
                self._model,
                source,
                self.kinds,
                label=f"{self.name}: {split} images",
                max_pixels=self.benchmark.reading.max_pixels,
            )
            refuse_damage(f"{self.name}/{split}", found.damaged, len(source), self.max_damaged)
            self._embedded[split] = found
        return self._embedded[split]
