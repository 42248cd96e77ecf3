"""Defines a score, a scorer, and the embedded set that scorers read.

A score stores the contribution of every item, so that an interval can be drawn around it and two models can be compared
on the same items. A scorer reads embeddings and labels of a set (`EmbeddedSet`), never the model itself.

Shapes: N usable images of a part, T texts, D width of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from dinorankclip.data.benchmark_sets import BenchmarkSet, LabelledSource
from dinorankclip.data.damage import refuse_damage
from dinorankclip.data.splits import SplitPart
from dinorankclip.evaluate.embeddings import EmbeddedImages, EmbeddingStore
from dinorankclip.evaluate.intervals import interval
from dinorankclip.formatting import Unit
from dinorankclip.types import Source

OWN_LEVEL = 0.95  # level of intervals that a scorer computes itself


@dataclass(frozen=True)
class Score:
    """Holds `value`, the (weighted) mean of `items` [N], if there are any; `clusters` [N] say which items belong
    together: those of one image, and of images with the same captions."""

    name: str
    value: float
    n: int
    unit: Unit = "share"
    items: np.ndarray | None = None
    clusters: np.ndarray | None = None
    weights: np.ndarray | None = None
    low: float | None = None
    high: float | None = None
    chance: float | None = None  # the score of a model that knows nothing
    scorer: str = ""
    version: int = 0


class Scorer(Protocol):
    """Takes scores of one set. Increase `version` whenever the same embeddings would give another number."""

    name: str
    version: int

    def applies(self, embedded: EmbeddedSet) -> bool: ...
    def __call__(self, embedded: EmbeddedSet) -> Iterator[Score]: ...


def mean_score(
    name: str,
    items: np.ndarray,
    clusters: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    *,
    unit: Unit = "share",
    chance: float | None = None,
) -> Score:
    """Return the score that is the mean of its items."""
    items = np.asarray(items, dtype=np.float64)
    value = float(np.average(items, weights=weights))
    return Score(name, value, len(items), unit, items, clusters, weights, chance=chance)


def combined_score(name: str, value: float, sides: Sequence[tuple[np.ndarray, float]]) -> Score:
    """Return Σ weight · mean(items) over sides with items of their own, as a mean over the items of all sides.

    Items are centred so that their mean is `value`, and resampling them resamples every side. This gives an interval
    to differences and averages of scores on different images.
    """
    total = sum(len(items) for items, _ in sides)
    parts = [value + weight * total / len(items) * (items - items.mean()) for items, weight in sides]
    return mean_score(name, np.concatenate(parts))


def average_score(name: str, scores: Sequence[Score]) -> Score:
    """Return the mean of scores of different sets. Sets count alike, however many items they have."""
    value = float(np.mean([score.value for score in scores]))
    sides = [(score.items, 1 / len(scores)) for score in scores if score.items is not None]
    assert len(sides) == len(scores), "a fresh score has its items"
    return combined_score(name, value, sides)


def with_intervals(scores: Iterable[Score], level: float = 0.95, draws: int = 1000) -> Iterator[Score]:
    """Add an interval to every score that has items and no interval of this level yet (scorers take `OWN_LEVEL`)."""
    for score in scores:
        if score.items is None or (score.low is not None and level == OWN_LEVEL):
            yield score
            continue
        low, high = interval(score.items, score.clusters, level=level, draws=draws, weights=score.weights)
        yield replace(score, low=low, high=high)


class EmbeddedSet:
    """Holds one part of an evaluation set with the embeddings of a model: all inputs of a scorer.

    Everything is computed when it is first asked for. All `kinds` of rows ("embedding", and "features" for probes) are
    computed in one pass over the images.
    """

    def __init__(
        self,
        benchmark: BenchmarkSet,
        split: str,
        model: Any,
        store: EmbeddingStore,
        kinds: Sequence[str] = ("embedding",),
        max_damaged: float = 0.0,
        most: int | None = None,
    ) -> None:
        self.benchmark, self.split, self.kinds = benchmark, split, tuple(kinds)
        self._model, self._store, self._max_damaged = model, store, max_damaged
        self._most = most  # pairs alone: more images than these are thinned evenly
        self._sources: dict[str, Source] = {}
        self._images: dict[str, EmbeddedImages] = {}
        self._texts: dict[tuple[str, ...], Tensor] = {}

    @property
    def name(self) -> str:
        return self.benchmark.name

    @property
    def kind(self) -> str:
        """Return the kind of the set: "classification" or "retrieval"."""
        return self.benchmark.kind

    def source(self, split: str | None = None) -> Source:
        """Return the samples of a part; the default, here and below, is the part that is scored."""
        split = split or self.split
        if split not in self._sources:
            source = self.benchmark.open(split)
            if self._most is not None and len(source) > self._most and self.kind == "retrieval":
                source = SplitPart(source, np.linspace(0, len(source) - 1, self._most).astype(np.int64))
            self._sources[split] = source
        return self._sources[split]

    def images(self, kind: str = "embedding", split: str | None = None) -> Tensor:
        """Return rows of the usable images, fp32 [N, D]: unit-norm "embedding", or the trunk's own "features"."""
        return self._embedded(split).rows[kind]

    def indices(self, split: str | None = None) -> np.ndarray:
        """Return the places of the usable images in the source, [N]."""
        return self._embedded(split).indices

    def keys(self, split: str | None = None) -> list[str]:
        return [self.source(split).key(int(index)) for index in self.indices(split)]

    def labels(self, split: str | None = None) -> np.ndarray:
        """Return class indices of the usable images of a classification set, int64 [N]."""
        source = self.source(split)
        assert isinstance(source, LabelledSource), f"{self.name} has captions, no classes"
        return source.labels[self.indices(split)]

    def captions(self) -> list[tuple[str, ...]]:
        """Return the captions of every usable image of a retrieval set."""
        return [self.source().captions(int(index)) for index in self.indices()]

    def caption_rows(self) -> tuple[Tensor, np.ndarray]:
        """Return embeddings of all captions of a retrieval set, image by image [T, D], and the image of each [T]."""
        captions = self.captions()
        rows = self.texts([text for group in captions for text in group])
        return rows, np.repeat(np.arange(len(captions)), [len(group) for group in captions])

    def texts(self, texts: Sequence[str]) -> Tensor:
        """Return unit-norm embeddings of captions or prompts, fp32 [T, D]."""
        key = tuple(texts)
        if key not in self._texts:
            self._texts[key] = self._store.texts(self._model, key, label=f"{self.name}: texts")
        return self._texts[key]

    def _embedded(self, split: str | None) -> EmbeddedImages:
        split = split or self.split
        if split not in self._images:
            source, label = self.source(split), f"{self.name}: {split} images"
            max_pixels = self.benchmark.reading.max_pixels
            images = self._store.images(self._model, source, self.kinds, label, max_pixels)
            refuse_damage(f"{self.name}/{split}", images.damaged, len(source), self._max_damaged)
            self._images[split] = images
        return self._images[split]
