"""Splits captions into words and assigns tokens to words, for teachers and for the student's tokenizer.

Teacher and student cut a caption into different pieces. Both are pooled to the words of the caption, so that rows
correspond (D20). A word is a piece between spaces, after the cleaning of CLIP's tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from dinorankclip.data.tokens import Tokenizer
from dinorankclip.device import declare_missing
from dinorankclip.losses.resampling import word_matrix


def caption_words(caption: str) -> list[str]:
    """Mend broken Unicode, resolve HTML entities, lower the case and split at white space."""
    return _cleaner()(caption).split()


@lru_cache(maxsize=1)
def _cleaner() -> Callable[[str], str]:
    declare_missing()
    from open_clip.tokenizer import get_clean_fn

    return get_clean_fn("lower")


def bpe_word_ids(tokenizer: Tokenizer, captions: Sequence[str], length: int | None = None) -> Tensor:
    """Return int64 [B, T]: the word of each of the ids of `tokenizer(captions)`, -1 for none.

    `length` is T, by default that of the longest caption. CLIP's byte-pair encoding never joins two words, so the ids
    of a caption are those of its words, one after the other. A word whose last pieces were cut off has no tokens.
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
        # Nested HTML entities: a word cleaned on its own differs from the cleaned caption, and the pieces cannot be
        # assigned. Such a caption counts as a caption without words.
        return [-1] * len(whole)
    return row + [-1] * (len(whole) - len(row))


def pool_words(tokens: Tensor, word_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean token of each word [B, W, C] and a mask of the words that have tokens [B, W].

    It divides sums, whereas `losses.resampling.word_pooling` adds quotients. The last bit of words of three pieces
    differs, and the bytes of a cache depend on it: one in a million changes.
    """
    words = int(word_ids.max()) + 1 if word_ids.numel() else 0
    averaging, exists = word_matrix(word_ids, words)
    belongs = averaging > 0
    tokens = tokens.float().masked_fill((word_ids < 0)[..., None], 0.0)
    return belongs.float() @ tokens / belongs.sum(-1).clamp_min(1)[..., None], exists
