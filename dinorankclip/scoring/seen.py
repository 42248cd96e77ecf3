"""A set through the eyes of a model: all that scorers get. Everything is computed when it is first asked for.

Shapes: N usable images of a part, T texts, D width of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from dinorankclip.data.benchmark_sets import BenchmarkSet, refuse_damage
from dinorankclip.data.labelled import LabelledSource
from dinorankclip.scoring.embed import EmbeddedImages
from dinorankclip.scoring.embedding_store import EmbeddingStore
from dinorankclip.types import Source


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
