"""Captions → words, and which word each token belongs to (D20).

Teacher and student cut a caption into different pieces. Both are pooled to the words of the caption, so that there
is one row a word on either side. A word is what stands between spaces, after the cleaning that CLIP's tokenizer does.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dinorankclip.data.tokens import Tokenizer
from dinorankclip.teachers.cache_format import Coding, Gram, Keep, NumberCodec
from dinorankclip.teachers.frozen_teacher import TextTeacher


def caption_words(caption: str) -> list[str]:
    """The caption's words: broken Unicode mended, HTML entities resolved, lower case, cut at white space."""
    return _cleaner()(caption).split()


@lru_cache(maxsize=1)
def _cleaner():
    from dinorankclip.device import declare_missing

    declare_missing()
    from open_clip.tokenizer import get_clean_fn

    return get_clean_fn("lower")


def bpe_word_ids(tokenizer: Tokenizer, captions: Sequence[str], length: int | None = None) -> Tensor:
    """int64 [B, T]: the word of each of the ids that `tokenizer(captions)` gives, -1 for none.

    `length` is T; by default the longest caption's. CLIP's byte-pair encoding never joins two words, so the ids of a
    caption are those of its words, one after the other. A word whose last pieces were cut off has no tokens.
    """
    rows = [_word_ids(tokenizer, caption) for caption in captions]
    length = max(map(len, rows), default=1) if length is None else length
    return torch.tensor([row[:length] + [-1] * (length - len(row)) for row in rows]).reshape(len(rows), length)


def _word_ids(tokenizer: Tokenizer, caption: str) -> list[int]:
    whole = tokenizer.encode(caption)
    row = [-1]
    pieces: list[int] = []
    for number, word in enumerate(caption_words(caption)):
        ids = tokenizer.encode(word)[1:-1]
        if len(pieces) + len(ids) > len(whole) - 2:  # this word did not fit
            break
        pieces += ids
        row += [number] * len(ids)
    if pieces != whole[1 : 1 + len(pieces)]:
        # Cleaning a word on its own gave another text than cleaning the caption (nested HTML entities): the pieces
        # cannot be told apart, and a caption without words costs nothing.
        return [-1] * len(whole)
    return row + [-1] * (len(whole) - len(row))


def pool_words(tokens: Tensor, word_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Mean token of each word [B, W, C] and which words exist [B, W]; `equations.word_pooling`, which says more.

    Repeated here because a room imports only earlier ones and the cache stores words.
    """
    count = int(word_ids.max()) + 1 if word_ids.numel() else 0
    belongs = word_ids[:, None, :] == torch.arange(count, device=word_ids.device)[None, :, None]
    pieces = belongs.sum(-1)
    tokens = tokens.float().masked_fill((word_ids < 0)[..., None], 0.0)
    return belongs.float() @ tokens / pieces.clamp_min(1)[..., None], pieces > 0


# -------- captions
# Records of captions: the Gram of a caption's words, their tokens if wanted, and its summary.
#
# Captions differ in length, so records do too: the count of words (uint16), then summary, Gram, tokens.
# Words of which the teacher saw no token (cut off) have length zero.

TEXTS_AT_ONCE = 64


class TextRecord:
    """One caption ↔ bytes."""

    def __init__(self, summary: int, reduced: int, keep: Keep, coding: Coding) -> None:
        self._summary = NumberCodec(summary, coding)
        self._reduced, self._keep, self._coding = reduced, keep, coding
        self._made: dict[int, dict[str, Gram | NumberCodec]] = {}

    def _coders(self, words: int) -> dict[str, Gram | NumberCodec]:
        if words in self._made:
            return self._made[words]
        coders: dict[str, Gram | NumberCodec] = {"summary": self._summary}
        if self._keep in ("gram", "both"):
            coders["gram"] = Gram(words, self._coding)
        if self._keep in ("tokens", "both"):
            coders["tokens"] = NumberCodec(words * self._reduced, self._coding)
        self._made[words] = coders
        return coders

    def encode(self, words: np.ndarray, reduced: np.ndarray | None, summary: np.ndarray) -> list[bytes]:
        """Records of N captions of W words: tokens [N, W, C], after PCA [N, W, K] if kept, summaries [N, C']."""
        values = {"summary": summary, "gram": words}
        if reduced is not None:
            values["tokens"] = reduced.reshape(len(words), -1)
        coders = self._coders(words.shape[1]).items()
        coded = np.concatenate([coder.encode(values[name]) for name, coder in coders], axis=1)
        head = np.uint16(words.shape[1]).tobytes()
        return [head + row.tobytes() for row in coded]

    def decode(self, raw: np.ndarray, wanted: Container[str]) -> dict[str, np.ndarray]:
        """uint8 [bytes] → `summary` [C'], `gram` [W, W], `tokens` [W, K]: those wanted and kept."""
        words = int(raw[:2].view(np.uint16)[0])
        found, at = {}, 2
        for name, coder in self._coders(words).items():
            if name in wanted:
                value = coder.decode(raw[None, at : at + coder.bytes])[0]
                found[name] = value.reshape(words, self._reduced) if name == "tokens" else value
            at += coder.bytes
        return found


def text_record(plan: dict[str, Any]) -> TextRecord:
    text = plan["text"]
    return TextRecord(text["summary_width"], text["reduced"], plan["keep"], plan["coding"])


def encode_captions(
    captions: Sequence[str],
    teacher: TextTeacher,
    record: TextRecord,
    basis: np.ndarray | None,
    read: Callable[[int], object] = lambda count: None,
) -> tuple[bytes, np.ndarray]:
    """All records, one after the other, and where each begins and the last ends: int64 [N + 1].

    Captions of like length go through the teacher together; which ones depends on `captions` alone. `read` hears after
    each batch how many it was.
    """
    records: list[bytes] = [b""] * len(captions)
    by_length = sorted(range(len(captions)), key=lambda i: (len(captions[i]), i))
    for start in range(0, len(by_length), TEXTS_AT_ONCE):
        some = by_length[start : start + TEXTS_AT_ONCE]
        seen = teacher.tokens([captions[i] for i in some])
        pooled, exists = (each.cpu().numpy() for each in pool_words(seen.tokens, seen.word_ids))
        summaries = seen.summary.cpu().numpy()
        counts = np.array([int(row.nonzero()[0].max(initial=-1)) + 1 for row in exists])
        for count in np.unique(counts):  # captions of as many words are coded together
            rows = np.flatnonzero(counts == count)
            words = pooled[rows, :count]
            coded = record.encode(words, None if basis is None else words @ basis.T, summaries[rows])
            for row, one in zip(rows, coded):
                records[some[row]] = one
        read(len(some))
    ends = np.cumsum([0, *map(len, records)], dtype=np.int64)
    return b"".join(records), ends
