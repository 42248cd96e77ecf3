"""Converts teacher features to bytes and back: numbers, Grams, and the records of images and captions in a cache.

A cache of millions of images must be small. Three codings trade size for precision:
    8bit   blocks of numbers, each with an fp16 offset and step of its own: a byte a number
    fp16   half precision
    fp32   without loss: for tests, and for measuring what the others lose

A token Gram V·Vᵀ is coded as the lengths of the tokens and the cosines above the diagonal. Lengths differ by a factor
of ten within an image, so a long token would take the steps of all others; cosines share one range. Errors are then
relative to the length of each token, which is what counts after normalisation.

Shapes: N items, K numbers of each, L tokens, W words.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Literal

import numpy as np

Coding = Literal["8bit", "fp16", "fp32"]
Keep = Literal["gram", "tokens", "both"]
BLOCK = 64  # of features, whose channels differ in size
COSINE_BLOCK = 256  # cosines are alike: fewer offsets and steps
_LEVELS = 255


class NumberCodec:
    """Codes K numbers an item: float [N, K] ↔ uint8 [N, `bytes`]."""

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
        """Convert uint8 [N, `bytes`] to float32 [N, K]."""
        raw = np.ascontiguousarray(raw)
        if self.coding == "fp32":
            return raw.view(np.float32).reshape(len(raw), self.count).copy()  # the bytes of the file are read-only
        if self.coding == "fp16":
            return raw.view(np.float16).reshape(len(raw), self.count).astype(np.float32)
        scales = np.ascontiguousarray(raw[:, : 4 * self.blocks]).view(np.float16).astype(np.float32)
        low, step = np.split(scales.reshape(len(raw), 2 * self.blocks), 2, axis=1)
        values = raw[:, 4 * self.blocks :].astype(np.float32)
        whole = self.count // self.block * self.block
        for part, where in ((values[:, :whole], slice(0, whole)), (values[:, whole:], slice(whole, self.count))):
            if part.size:  # whole blocks as one array, without a copy; then the incomplete block
                own = slice(where.start // self.block, -(-where.stop // self.block))
                shaped = part.reshape(len(raw), -1, min(self.block, part.shape[1]))
                values[:, where] = (shaped * step[:, own, None] + low[:, own, None]).reshape(len(raw), -1)
        return values


class GramCodec:
    """Codes the unnormalised Gram of L tokens: float [N, L, L] ↔ uint8 [N, `bytes`]."""

    def __init__(self, tokens: int, coding: Coding) -> None:
        self._lengths = NumberCodec(tokens, "fp32" if coding == "fp32" else "fp16")
        self._cosines = NumberCodec(tokens * (tokens - 1) // 2, coding, COSINE_BLOCK)
        self.bytes = self._lengths.bytes + self._cosines.bytes
        self._above = np.triu_indices(tokens, 1)
        # Place of entry (i, j) of the matrix among the cosines; the diagonal takes the 1 put behind them.
        self._place = np.full((tokens, tokens), len(self._above[0]), np.int64)
        self._place[self._above] = self._place.T[self._above] = np.arange(len(self._above[0]))

    def encode(self, tokens: np.ndarray) -> np.ndarray:
        """Code the Gram of tokens, float [N, L, C]."""
        tokens = np.asarray(tokens, np.float32)
        lengths = np.linalg.norm(tokens, axis=-1)
        unit = tokens / np.where(lengths > 0, lengths, 1)[..., None]
        cosines = (unit @ unit.transpose(0, 2, 1))[:, self._above[0], self._above[1]]
        return np.concatenate([self._lengths.encode(lengths), self._cosines.encode(cosines)], 1)

    def parts(self, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Convert uint8 [N, `bytes`] to lengths [N, L] and cosines [N, L, L]: G_ij = length_i·length_j·cosine_ij."""
        lengths = self._lengths.decode(raw[:, : self._lengths.bytes])
        cosines = self._cosines.decode(raw[:, self._lengths.bytes :])
        cosines = np.concatenate([cosines, np.ones((len(raw), 1), np.float32)], 1)
        return lengths, cosines.take(self._place, axis=1)

    def decode(self, raw: np.ndarray) -> np.ndarray:
        """Convert uint8 [N, `bytes`] to float32 [N, L, L]."""
        lengths, gram = self.parts(raw)
        gram *= lengths[:, :, None]
        gram *= lengths[:, None, :]
        return gram


class ImageRecord:
    """Codes the record of an image: a byte (1: good, 0: damaged image), then Gram, tokens and summary as kept."""

    def __init__(self, tokens: int, summary: int, reduced: int, keep: Keep, coding: Coding) -> None:
        self.codecs = _token_codecs(tokens, reduced, keep, coding) | {"summary": NumberCodec(summary, coding)}
        self._start: dict[str, int] = {}
        self.bytes = 1
        for name, codec in self.codecs.items():
            self._start[name] = self.bytes
            self.bytes += codec.bytes

    def encode(self, **values: np.ndarray) -> np.ndarray:
        """Code the parts, each as its codec takes it, to uint8 [N, `bytes`]."""
        coded = [codec.encode(values[name]) for name, codec in self.codecs.items()]
        return np.concatenate([np.ones((len(coded[0]), 1), np.uint8), *coded], 1)

    def bytes_of(self, name: str, raw: np.ndarray) -> np.ndarray:
        return raw[:, self._start[name] : self._start[name] + self.codecs[name].bytes]

    def decode(self, name: str, raw: np.ndarray) -> np.ndarray:
        """Decode the part `name` of each record, uint8 [N, `bytes`]."""
        return self.codecs[name].decode(self.bytes_of(name, raw))


class TextRecord:
    """Codes the record of a caption: the count of words (uint16), then summary, Gram and tokens of words as kept.

    Captions differ in length, so records do too. A word without a token (cut off by the teacher) has length zero.
    """

    def __init__(self, summary: int, reduced: int, keep: Keep, coding: Coding) -> None:
        self._summary = NumberCodec(summary, coding)
        self._reduced, self._keep, self._coding = reduced, keep, coding
        self._codecs_by_words: dict[int, dict[str, GramCodec | NumberCodec]] = {}

    def _codecs(self, words: int) -> dict[str, GramCodec | NumberCodec]:
        if words not in self._codecs_by_words:
            codecs = _token_codecs(words, self._reduced, self._keep, self._coding)
            self._codecs_by_words[words] = {"summary": self._summary, **codecs}
        return self._codecs_by_words[words]

    def encode(self, words: np.ndarray, reduced: np.ndarray | None, summary: np.ndarray) -> list[bytes]:
        """Code N captions of W words: tokens [N, W, C], after PCA [N, W, K] if kept, summaries [N, C']."""
        values = {"summary": summary, "gram": words}
        if reduced is not None:
            values["tokens"] = reduced.reshape(len(words), -1)
        codecs = self._codecs(words.shape[1]).items()
        coded = np.concatenate([codec.encode(values[name]) for name, codec in codecs], axis=1)
        head = np.uint16(words.shape[1]).tobytes()
        return [head + row.tobytes() for row in coded]

    def decode(self, raw: np.ndarray, names: Container[str]) -> dict[str, np.ndarray]:
        """Decode the named parts that are kept: `summary` [C'], `gram` [W, W], `tokens` [W, K]."""
        words = int(raw[:2].view(np.uint16)[0])
        values, at = {}, 2
        for name, codec in self._codecs(words).items():
            if name in names:
                value = codec.decode(raw[None, at : at + codec.bytes])[0]
                values[name] = value.reshape(words, self._reduced) if name == "tokens" else value
            at += codec.bytes
        return values


def image_record(plan: dict[str, Any]) -> ImageRecord:
    height, width = plan["grid"]
    return ImageRecord(height * width, plan["summary_width"], plan["reduced"], plan["keep"], plan["coding"])


def text_record(plan: dict[str, Any]) -> TextRecord:
    text = plan["text"]
    return TextRecord(text["summary_width"], text["reduced"], plan["keep"], plan["coding"])


def _token_codecs(tokens: int, reduced: int, keep: Keep, coding: Coding) -> dict[str, GramCodec | NumberCodec]:
    codecs: dict[str, GramCodec | NumberCodec] = {}
    if keep in ("gram", "both"):
        codecs["gram"] = GramCodec(tokens, coding)
    if keep in ("tokens", "both"):
        codecs["tokens"] = NumberCodec(tokens * reduced, coding)
    return codecs


def _half(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if not np.isfinite(half).all():
        raise ValueError("features beyond ±65504 or not finite cannot be stored in half precision")
    return half


def _half_not_above(values: np.ndarray) -> np.ndarray:
    half = _half(values)
    return np.where(half.astype(np.float32) > values, np.nextafter(half, np.float16(-np.inf)), half)
