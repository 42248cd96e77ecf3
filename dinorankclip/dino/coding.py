"""Features ↔ bytes. A cache of millions of images is worth every byte, and every bit that is dropped is measured.

    8bit   blocks of numbers, each with an offset and a step of its own (fp16): entries cost one byte
    fp16   half precision
    fp32   nothing is lost: for tests, and for measuring what the others lose

A token Gram V·Vᵀ is coded as the tokens' lengths and the cosines above the diagonal. Lengths differ by a factor of ten
within an image, and a long token's row would spend the steps of all others; cosines share one range. Errors are then
relative to each token's own length, which is what counts after normalisation.

Shapes: N items, K numbers of each, L tokens.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Coding = Literal["8bit", "fp16", "fp32"]
BLOCK = 64  # features: channels differ in size
COSINE_BLOCK = 256  # cosines are alike: fewer offsets and steps
_LEVELS = 255


class Numbers:
    """K numbers an item: float [N, K] ↔ uint8 [N, `bytes`]."""

    def __init__(self, count: int, coding: Coding, block: int = BLOCK) -> None:
        self.count, self.coding, self.block = count, coding, block
        self.blocks = -(-count // block)
        self.bytes = {"8bit": count + 4 * self.blocks, "fp16": 2 * count, "fp32": 4 * count}[coding]

    def encode(self, values: np.ndarray) -> np.ndarray:
        values = np.ascontiguousarray(values, dtype=np.float32)
        if self.coding == "fp32":
            return values.view(np.uint8).reshape(len(values), -1)
        if self.coding == "fp16":
            return _half(values).view(np.uint8).reshape(len(values), -1)
        padded = np.pad(values, ((0, 0), (0, self.blocks * self.block - self.count)), mode="edge")
        parts = padded.reshape(len(values), self.blocks, self.block)
        low = _half_not_above(parts.min(-1)) if self.count else np.empty((len(values), 0), np.float16)
        reach = parts.max(-1) - low if self.count else np.empty((len(values), 0), np.float32)
        step = -_half_not_above(-reach / _LEVELS)  # not below, so that the last level reaches the largest value
        divisor = np.where(step > 0, step, 1).astype(np.float32)[..., None]
        codes = np.rint((parts - low.astype(np.float32)[..., None]) / divisor).clip(0, _LEVELS).astype(np.uint8)
        codes = codes.reshape(len(values), -1)[:, : self.count]
        scales = np.concatenate([low, step], 1).view(np.uint8).reshape(len(values), -1)
        return np.concatenate([scales, codes], 1)

    def decode(self, raw: np.ndarray) -> np.ndarray:
        """uint8 [N, `bytes`] → float32 [N, K]."""
        raw = np.ascontiguousarray(raw)
        if self.coding == "fp32":
            return raw.view(np.float32).reshape(len(raw), self.count).copy()  # the file's own bytes are read-only
        if self.coding == "fp16":
            return raw.view(np.float16).reshape(len(raw), self.count).astype(np.float32)
        scales = np.ascontiguousarray(raw[:, : 4 * self.blocks]).view(np.float16).astype(np.float32)
        low, step = np.split(scales.reshape(len(raw), 2 * self.blocks), 2, axis=1)
        values = raw[:, 4 * self.blocks :].astype(np.float32)
        whole = self.count // self.block * self.block
        for part, where in ((values[:, :whole], slice(0, whole)), (values[:, whole:], slice(whole, self.count))):
            if part.size:  # whole blocks as one array, without a copy; then what is left over
                own = slice(where.start // self.block, -(-where.stop // self.block))
                shaped = part.reshape(len(raw), -1, min(self.block, part.shape[1]))
                values[:, where] = (shaped * step[:, own, None] + low[:, own, None]).reshape(len(raw), -1)
        return values


class Gram:
    """The unnormalised Gram of L tokens: float [N, L, L] ↔ uint8 [N, `bytes`]."""

    def __init__(self, tokens: int, coding: Coding) -> None:
        self.tokens = tokens
        self._lengths = Numbers(tokens, "fp32" if coding == "fp32" else "fp16")
        self._cosines = Numbers(tokens * (tokens - 1) // 2, coding, COSINE_BLOCK)
        self.bytes = self._lengths.bytes + self._cosines.bytes
        self._above = np.triu_indices(tokens, 1)
        # Where entry (i, j) of the whole matrix stands among the cosines; the diagonal takes the 1 put behind them.
        self._place = np.full((tokens, tokens), len(self._above[0]), np.int64)
        self._place[self._above] = self._place.T[self._above] = np.arange(len(self._above[0]))

    def encode(self, tokens: np.ndarray) -> np.ndarray:
        """From the tokens themselves, float [N, L, C]."""
        tokens = np.asarray(tokens, np.float32)
        lengths = np.linalg.norm(tokens, axis=-1)
        unit = tokens / np.where(lengths > 0, lengths, 1)[..., None]
        cosines = unit @ unit.transpose(0, 2, 1)
        return np.concatenate(
            [self._lengths.encode(lengths), self._cosines.encode(cosines[:, self._above[0], self._above[1]])], 1
        )

    def parts(self, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """uint8 [N, `bytes`] → lengths [N, L] and cosines [N, L, L]: G_ij = length_i · length_j · cosine_ij."""
        lengths = self._lengths.decode(raw[:, : self._lengths.bytes])
        cosines = self._cosines.decode(raw[:, self._lengths.bytes :])
        cosines = np.concatenate([cosines, np.ones((len(raw), 1), np.float32)], 1)
        return lengths, cosines.take(self._place, axis=1)

    def decode(self, raw: np.ndarray) -> np.ndarray:
        """uint8 [N, `bytes`] → float32 [N, L, L]."""
        lengths, gram = self.parts(raw)
        gram *= lengths[:, :, None]
        gram *= lengths[:, None, :]
        return gram


def _half(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if not np.isfinite(half).all():
        raise ValueError("features beyond ±65504 or not finite cannot be kept in half precision")
    return half


def _half_not_above(values: np.ndarray) -> np.ndarray:
    half = _half(values)
    return np.where(half.astype(np.float32) > values, np.nextafter(half, np.float16(-np.inf)), half)
