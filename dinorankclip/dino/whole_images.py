"""Images as a teacher sees them: whole, squeezed to its square (D19), read ahead by threads.

Decoding and resizing run outside Python's lock, so they overlap with the teacher.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from dinorankclip.data.damage import Damage, refuse_passing
from dinorankclip.data.images import decode, read_header
from dinorankclip.types import Source

from .teacher import Preprocessing

THREADS = 2


def whole_images(
    source: Source, indices: Sequence[int] | np.ndarray, preprocessing: Preprocessing, max_pixels: int, ahead: int
) -> Iterator[Tensor | None]:
    """uint8 [3, S, S] of each index, in order, at most `ahead` of them waiting; None for a damaged sample."""

    def one(index: int) -> Tensor | None:
        try:
            raw = source.read(index)
            # Twice the size is enough, as in training (`data.views.enough_pixels`).
            least = (2 * preprocessing.size, 2 * preprocessing.size)
            pixels = decode(raw.image, read_header(raw.image, max_pixels), least=least)
        except Damage as damage:
            refuse_passing([(source.key(index), damage.cause)])
            return None
        if not pixels.flags.writeable:  # torch warns about arrays it might write to; Pillow hands out read-only ones
            pixels = pixels.copy()
        return preprocessing.resize(torch.from_numpy(pixels).permute(2, 0, 1)).contiguous()

    with ThreadPoolExecutor(THREADS) as pool:
        waiting: deque = deque()
        for index in indices:
            waiting.append(pool.submit(one, int(index)))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
