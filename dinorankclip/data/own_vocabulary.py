"""Turns captions into ids by a vocabulary that a model brings: a `tokenizer.json` of the library tokenizers.

A model from transformers may read captions otherwise than CLIP does. Its file holds cleaning, vocabulary and the ids
of start and end; it is kept in the model folder. The file is data: nothing in it is run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dinorankclip.data.tokens import READ, Tokenizer
from dinorankclip.types import TextSpec, UserError, first_line

if TYPE_CHECKING:
    from torch import Tensor

INSTALL = "pip install 'tokenizers>=0.22'"


@dataclass(frozen=True)
class Vocabulary:
    """Holds a tokenizer file and what it does not say: the ids of end and padding, and whether rows are always full.

    A tower that attends both ways sees the padding, so its rows have the whole context length.
    """

    text: str
    end: int
    padding: int
    full: bool = False

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode("utf-8")).hexdigest()

    def described(self) -> dict[str, Any]:
        """Return the entry of model.json."""
        return {"sha256": self.sha256, "end": self.end, "padding": self.padding, "full": self.full}


def opened(text: str, where: str) -> Any:
    """Return the `tokenizers.Tokenizer` that a file's text describes."""
    try:
        from tokenizers import Tokenizer as Pieces
    except ImportError as error:
        raise UserError(f"{where} needs the package tokenizers: {INSTALL}") from error
    try:
        pieces = Pieces.from_str(text)
    except Exception as error:  # tokenizers raises bare exceptions
        raise UserError(f"{where} is damaged: {first_line(error)}") from error
    pieces.no_padding()
    return pieces


class VocabularyTokenizer(Tokenizer):
    """Has the interface of `Tokenizer`. Another process opens the vocabulary for itself."""

    def __init__(self, spec: TextSpec, own: Vocabulary) -> None:
        super().__init__(spec)
        self.own = own
        self._pieces: Any = None

    def load(self) -> VocabularyTokenizer:
        if self._pieces is None:
            self._pieces = opened(self.own.text, "the model's tokenizer.json")
            self._pieces.no_truncation()
        return self

    @property
    def vocabulary(self) -> int:
        return self.load()._pieces.get_vocab_size()

    @property
    def end_of_text(self) -> int:
        return self.own.end

    def encode(self, caption: str) -> list[int]:
        """Return ids with start and end as the vocabulary sets them; a longer caption loses its last words."""
        if (ids := self._known.get(caption)) is None:
            ids = self._ids(caption)
            most = self.spec.context_length
            ids = ids if len(ids) <= most else [*ids[: most - 1], self.own.end]
            if self.own.end not in ids:
                ids = [*ids[: most - 1], self.own.end]
            if self.own.full:
                ids = ids + [self.own.padding] * (most - len(ids))
            self._remember(caption, ids)
        return ids

    def _ids(self, caption: str, most: int | None = None) -> list[int]:
        return self.load()._pieces.encode(caption[:READ]).ids

    def whole_length(self, caption: str) -> int:
        return len(self._ids(caption))

    def __call__(self, captions: Sequence[str], *, full: bool = False) -> Tensor:
        import torch

        rows = [self.encode(caption) for caption in captions]
        length = self.spec.context_length if full or self.own.full else max(map(len, rows), default=1)
        padded = [row + [self.own.padding] * (length - len(row)) for row in rows]
        return torch.tensor(padded, dtype=torch.int64).reshape(len(rows), length)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"own": self.own, "_pieces": None}
