"""Captions → words, and which word each token belongs to (D20).

Teacher and student cut a caption into different pieces. Both are pooled to the words of the caption, so that there
is one row a word on either side. A word is what stands between spaces, after the cleaning that CLIP's tokenizer does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from dinorankclip.data.tokens import Tokenizer


def caption_words(caption: str) -> list[str]:
    """The caption's words: broken Unicode mended, HTML entities resolved, lower case, cut at white space."""
    return _cleaner()(caption).split()


@lru_cache(maxsize=1)
def _cleaner():
    from dinorankclip.torchvision_ops import declare_missing

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
