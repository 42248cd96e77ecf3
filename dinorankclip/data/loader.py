"""Pairs → batches, with an exact position. The whole way of a sample:

1. A run is at global step s. With n pairs and a global batch of B, an epoch has n // B steps (the rest of the
   permutation is left out, another rest each epoch), so s names an epoch and a row of B places in it.
   A few pairs chosen from many (`reading.train_items`) come round more often: `steps_per_epoch` stays that of the
   many, so that schedules and validations do, and below an epoch is once through the few.
2. `permutation(seed, epoch)` says which pair stands at each place. Process r of W takes places r·B/W … of the
   row: one process and W processes see the same global batch.
3. A worker process is given the number s, nothing else, and builds this process's whole batch from it.
4. For each place it reads the pair's bytes from the source, decodes, draws a view (crop, flip) and one of
   the captions. The draws come from generators keyed by (seed, epoch, place): no state is carried from sample to
   sample, so starting at step s gives exactly what an uninterrupted run gets there, for any number of workers.
   Where the images' embeddings are known (`rows`, a frozen image side), only the captions are read.
5. A pair that cannot be used is replaced by another one, drawn by a generator of the same place, until one
   is good. All processes stay in step; the damaged ones travel in `Batch.damage` and are counted here.
6. Captions become token ids, cut to the longest of the batch; `teacher_features` (cached teacher features) are
   looked up by key and follow the view.
7. The main process receives batches in order through shared memory and hands them out.

Workers are forked: they start in milliseconds, need no second import of torch and share the index and the BPE
table with their parent. They touch no GPU, and use one thread each, so forking is safe here.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dinorankclip import seeds as streams
from dinorankclip.config import ReadingSettings
from dinorankclip.data.damage import Damage, DamageCount
from dinorankclip.data.decode import MAX_PIXELS, decode, read_header
from dinorankclip.data.samples import Recipe, Sample, render_whole
from dinorankclip.data.splits import chosen_among
from dinorankclip.data.streams import PipeLoader, PipeSource
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.data.workers import Refusal, counted, refusals_as_values, run_workers
from dinorankclip.types import Batch, TeacherFeatureProvider, ImageRows, ImageSpec, Source, UserError, View

MOST_ATTEMPTS = 64  # replacements tried for one place


class PairLoader:
    """Endless batches of this process, from global step `start` on.

    `batch` counts pairs over all `world` processes. `steps_per_epoch` is the same on each of them, `step` is the
    global step whose batch comes next, and `damage` counts what this process had to replace.
    """

    def __init__(
        self,
        source: Source,
        image: ImageSpec,
        tokenizer: Tokenizer,
        *,
        batch: int,
        seed: int,
        reading: ReadingSettings | None = None,
        rank: int = 0,
        world: int = 1,
        start: int = 0,
        second_caption: bool = False,
        teacher_features: TeacherFeatureProvider | None = None,
        rows: ImageRows | None = None,
    ) -> None:
        reading = reading or ReadingSettings()
        share = local_batch(batch, world)
        if len(source) < batch:
            raise UserError(
                f"{len(source)} pairs do not fill one batch of {batch}. Use a smaller --budget.batch "
                f"(at most {len(source)}; a quarter of it or less trains better)"
                + (", or more --reading.train-items." if reading.train_items is not None else ".")
            )
        recipe = Recipe(image, tokenizer.load(), reading, second_caption, teacher_features)
        self._steps = _Steps(source, recipe, batch, seed, first=rank * share, share=share, rows=rows)
        self._reading = reading
        self.steps_per_epoch = chosen_among(source) // batch
        self.step = start
        self.damage = DamageCount(reading.max_damaged)

    def __iter__(self) -> Generator[Batch, None, None]:
        stream = run_workers(self._steps, itertools.count(self.step), self._reading)
        for batch in counted(stream, self.damage):
            self.step += 1
            yield batch


Loader = PairLoader | PipeLoader


def load_pairs(
    source: Source | PipeSource,
    image: ImageSpec,
    tokenizer: Tokenizer,
    *,
    rows: ImageRows | None = None,
    **settings: Any,
) -> Loader:
    """The loader that fits the source: exact position, or `pipe:` shards that resume shard by shard.

    `settings` are those of `PairLoader`; both have `steps_per_epoch`, `step`, `damage` and yield batches.
    """
    if isinstance(source, PipeSource):
        assert rows is None, "rows are found by index, and a stream has none"
        return PipeLoader(source, image, tokenizer, **settings)
    return PairLoader(source, image, tokenizer, rows=rows, **settings)


def local_batch(batch: int, world: int) -> int:
    """Pairs of each process."""
    if batch % world:
        raise UserError(f"a batch of {batch} cannot be divided equally over {world} processes")
    return batch // world


class _Steps:
    """Global step → this process's batch: the data set that workers share. A pure function."""

    def __init__(
        self,
        source: Source,
        recipe: Recipe,
        batch: int,
        seed: int,
        first: int,
        share: int,
        rows: ImageRows | None = None,
    ) -> None:
        self.source, self.recipe, self.batch, self.seed = source, recipe, batch, seed
        self.first, self.share, self.rows = first, share, rows
        self.per_epoch = len(source) // batch

    @refusals_as_values
    def __getitem__(self, step: int) -> Batch | Refusal:
        epoch, row = divmod(step, self.per_epoch)
        start = row * self.batch + self.first
        damage: list[tuple[str, str]] = []
        samples = [self._sample(epoch, place, damage) for place in range(start, start + self.share)]
        return self.recipe.batch(samples, damage)

    def _sample(self, epoch: int, place: int, damage: list[tuple[str, str]]) -> Sample:
        for attempt in range(MOST_ATTEMPTS):
            index = self._index(epoch, place, attempt)
            captions = streams.generator(self.seed, streams.CAPTION, epoch, place, attempt)
            try:
                if self.rows is not None:  # of the whole image: there is no view to draw
                    row = self.rows(index)
                    return self.recipe.captioned(
                        self.source.key(index), row, View(), self.source.captions(index), captions
                    )
                views = streams.generator(self.seed, streams.VIEW, epoch, place, attempt)
                return self.recipe.sample(self.source.read(index), views, captions)
            except Damage as found:
                damage.append((self.source.key(index), found.cause))
        count = DamageCount()
        count.add(0, damage)
        raise UserError(f"{MOST_ATTEMPTS} pairs in a row could not be used:\n{count.summary()}")

    def _index(self, epoch: int, place: int, attempt: int) -> int:
        if attempt == 0:
            return int(_order(self.seed, epoch, len(self.source))[place])
        draws = streams.generator(self.seed, streams.REPLACEMENT, epoch, place, attempt)
        return streams.below(draws, len(self.source))


@lru_cache(maxsize=2)  # this epoch's and the next one's, which workers fetch ahead
def _order(seed: int, epoch: int, size: int) -> np.ndarray:
    """Kept for the epoch at hand: sorting ten million draws takes seconds."""
    return streams.permutation(seed, epoch, size)


# -------- evaluation
# Pairs in order, each once, as evaluation sees them: whole decode, resized, the centre cut out, all captions.


def iterate_pairs(
    source: Source,
    image: ImageSpec,
    batch: int = 256,
    *,
    threads: int = 2,
    max_pixels: int = MAX_PIXELS,
    damage: DamageCount | None = None,
) -> Iterator[tuple[list[str], Tensor, list[tuple[str, ...]]]]:
    """Yields (keys, images uint8 [b, 3, S, S], captions of each image), with b = `batch` but for the last.

    Damaged pairs are left out and counted in `damage`. Threads read ahead, one batch at most: decoding and
    resizing run outside Python's lock, so they overlap with the model.
    """
    damage = damage if damage is not None else DamageCount(max_damaged=1.0)
    keys: list[str] = []
    images: list[Tensor] = []
    captions: list[tuple[str, ...]] = []
    for index, sample in _ahead(source, image.size, max_pixels, threads, batch):
        if isinstance(sample, Damage):
            damage.add(0, [(source.key(index), sample.cause)])
            continue
        damage.add(1)
        keys.append(source.key(index))
        images.append(sample[0])
        captions.append(sample[1])
        if len(keys) == batch:
            yield keys, torch.stack(images), captions
            keys, images, captions = [], [], []
    damage.stop_if_too_many()
    if keys:
        yield keys, torch.stack(images), captions


def _ahead(
    source: Source, size: int, max_pixels: int, threads: int, most: int
) -> Iterator[tuple[int, tuple[Tensor, tuple[str, ...]] | Damage]]:
    """Results for index 0, 1, … in order, computed at most `most` ahead."""

    def one(index: int) -> tuple[Tensor, tuple[str, ...]] | Damage:
        try:
            raw = source.read(index)
            pixels = decode(raw.image, read_header(raw.image, max_pixels))
            return render_whole(pixels, size), raw.captions
        except Damage as damage:
            return damage

    with ThreadPoolExecutor(threads) as pool:
        waiting: deque = deque()
        for index in range(len(source)):
            waiting.append((index, pool.submit(one, index)))
            if len(waiting) > most:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
