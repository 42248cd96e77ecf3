"""Captions → token ids: CLIP's byte-pair encoding, as open_clip does it.

Ids are cut to the longest caption of the call. End-of-text is the largest id and padding is 0, so a text tower
that pools at `ids.argmax(-1)` and attends causally gives the same embedding as with all 77 positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dinorankclip.types import TextSpec

REMEMBERED = 200_000  # captions whose ids are kept by each process, about 50 MB at most


class Tokenizer:
    """`Tokenizer(spec)(captions)` → int64 [B, L]. The vocabulary is loaded when first used.

    Call `load()` before forking workers, so that they share it.
    """

    def __init__(self, spec: TextSpec | None = None) -> None:
        self.spec = spec or TextSpec()
        self._bpe: Any = None
        self._known: dict[str, list[int]] = {}

    def load(self) -> Tokenizer:
        if self._bpe is None:
            from dinorankclip import device

            device.declare_missing()
            from open_clip.tokenizer import SimpleTokenizer

            self._bpe = SimpleTokenizer(context_length=self.spec.context_length)
        return self

    @property
    def vocabulary(self) -> int:
        return self.load()._bpe.vocab_size

    @property
    def end_of_text(self) -> int:
        return self.load()._bpe.eot_token_id

    def encode(self, caption: str) -> list[int]:
        """Start, the caption's ids, end: at most the context length; a longer caption loses its last words."""
        ids = self._known.get(caption)
        if ids is None:
            bpe = self.load()._bpe
            words = bpe.encode(caption)[: self.spec.context_length - 2]
            ids = [bpe.sot_token_id, *words, bpe.eot_token_id]
            if len(self._known) >= REMEMBERED:
                del self._known[next(iter(self._known))]  # the oldest
            self._known[caption] = ids
        return ids

    def whole_length(self, caption: str) -> int:
        """How many ids the caption has with start and end, were nothing cut."""
        return len(self.load()._bpe.encode(caption)) + 2

    def __call__(self, captions: Sequence[str], *, full: bool = False) -> Tensor:
        """int64 [B, L]: L is the longest caption's length, or the whole context length if `full`."""
        rows = [self.encode(caption) for caption in captions]
        length = self.spec.context_length if full else max(map(len, rows), default=1)
        return torch.tensor([row + [0] * (length - len(row)) for row in rows], dtype=torch.int64).reshape(
            len(rows), length
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self.spec, "_bpe": None, "_known": {}}  # another process loads its own
