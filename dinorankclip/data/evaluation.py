"""Pairs in order, each once, as evaluation sees them: whole decode, resized, the centre cut out, all captions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from dinorankclip.data.damage import Damage, DamageCount
from dinorankclip.data.images import MAX_PIXELS, decode, read_header
from dinorankclip.data.views import render_whole
from dinorankclip.types import ImageSpec, Source


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
