"""Turns captions into token ids: CLIP's byte-pair encoding.

`Tokenizer` is open_clip's own, for batches of tensors. `BytePairs` gives the same ids in plain Python, for a program
that must answer before torch could even be imported (`search`); its vocabulary is the file that open_clip brings.
How a caption becomes ids:

1. Clean: mend broken Unicode, resolve HTML entities, join white space, lower case.
2. Cut into words: runs of letters, single digits, runs of other signs, and English endings such as 's.
3. A word is its UTF-8 bytes, each written as a visible character; the last character is marked as the end of a word.
4. Join the neighbouring pair that comes first in the list of merges, until no pair is in the list.
"""

from __future__ import annotations

import gzip
import html
import importlib.util
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinorankclip.types import TextSpec

if TYPE_CHECKING:
    from torch import Tensor

REMEMBERED = 200_000  # captions whose ids each process remembers, about 50 MB at most
_VOCABULARY = "bpe_simple_vocab_16e6.txt.gz"
_MERGES = 49152 - 256 - 2  # merges of the file's list that CLIP uses
_END = "</w>"
_WORDS = r"<start_of_text>|<end_of_text>|'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"


class Tokenizer:
    """`Tokenizer(spec)(captions)` → int64 [B, L]. The vocabulary is loaded when first used.

    Ids are cut to the longest caption of the call. End-of-text is the largest id and padding is 0, so a text tower
    that pools at `ids.argmax(-1)` and attends causally gives the same embedding as with all 77 positions.
    Call `load()` before forking workers, so that they share the vocabulary.
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
        """Return start, the caption's ids, end: at most the context length; a longer caption loses its last words."""
        if (ids := self._known.get(caption)) is None:
            bpe = self.load()._bpe
            ids = [bpe.sot_token_id, *bpe.encode(caption)[: self.spec.context_length - 2], bpe.eot_token_id]
            if len(self._known) >= REMEMBERED:
                del self._known[next(iter(self._known))]  # drops the oldest caption
            self._known[caption] = ids
        return ids

    def whole_length(self, caption: str) -> int:
        """Count the ids of the whole caption, with start and end."""
        return len(self.load()._bpe.encode(caption)) + 2

    def __call__(self, captions: Sequence[str], *, full: bool = False) -> Tensor:
        """Return int64 [B, L]: L is the longest caption's length, or the whole context length if `full`."""
        import torch

        rows = [self.encode(caption) for caption in captions]
        length = self.spec.context_length if full else max(map(len, rows), default=1)
        padded = [row + [0] * (length - len(row)) for row in rows]
        return torch.tensor(padded, dtype=torch.int64).reshape(len(rows), length)

    def __getstate__(self) -> dict[str, Any]:
        return {"spec": self.spec, "_bpe": None, "_known": {}}  # another process loads its own vocabulary


class BytePairs:
    """Maps a caption to ids of start, words and end, at most `context_length` of them."""

    def __init__(self, context_length: int = 77) -> None:
        import regex

        self.context_length = context_length
        self._words = regex.compile(_WORDS, regex.IGNORECASE)
        self._letters = _letters()
        spec = importlib.util.find_spec("open_clip")  # finds the folder without importing open_clip
        assert spec is not None and spec.origin, "open_clip is a dependency of this package"
        packed = (Path(spec.origin).parent / _VOCABULARY).read_bytes()
        lines = gzip.decompress(packed).decode("utf-8").split("\n", _MERGES + 1)
        self._order = {tuple(line.split()): place for place, line in enumerate(lines[1 : _MERGES + 1])}
        signs = list(self._letters.values())
        names = signs + [sign + _END for sign in signs] + ["".join(pair) for pair in self._order]
        self._ids = {name: number for number, name in enumerate(names)}
        self.start, self.end = len(names), len(names) + 1
        self._special = {"<start_of_text>": self.start, "<end_of_text>": self.end}

    def __call__(self, caption: str) -> list[int]:
        ids: list[int] = []
        for word in self._words.findall(cleaned(caption)):
            if word in self._special:
                ids.append(self._special[word])
            else:
                ids += [self._ids[piece] for piece in self._pieces(word)]
        return [self.start, *ids[: self.context_length - 2], self.end]

    def _pieces(self, word: str) -> list[str]:
        pieces = [self._letters[byte] for byte in word.encode("utf-8")]
        pieces[-1] += _END
        while len(pieces) > 1:
            first = min(itertools.pairwise(pieces), key=lambda pair: self._order.get(pair, _MERGES))
            if first not in self._order:
                break
            pieces = _joined(pieces, first)
        return pieces


def cleaned(caption: str) -> str:
    """Mend broken Unicode, resolve HTML entities, join white space and lower the case, as open_clip does."""
    if not (caption.isascii() and caption.isprintable()) or "&" in caption:  # else there is nothing to mend
        import ftfy

        caption = ftfy.fix_text(caption)
    return " ".join(html.unescape(html.unescape(caption)).split()).lower()


def _joined(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    """Join every occurrence of `pair`, from left to right."""
    result: list[str] = []
    at = 0
    while at < len(pieces):
        size = 2 if tuple(pieces[at : at + 2]) == pair else 1
        result.append("".join(pieces[at : at + size]))
        at += size
    return result


def _letters() -> dict[int, str]:
    """Map a byte to a visible character: itself where it is visible in Latin-1, else a character from U+0100 on."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + place) for place, byte in enumerate(hidden)}
