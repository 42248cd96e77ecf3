"""Turns captions into token ids: CLIP's byte-pair encoding.

`Tokenizer` is open_clip's own, for batches of tensors. `BytePairs` gives the same ids in plain Python, for a program
that must answer before torch could even be imported (`search`); its vocabulary is the file that open_clip brings.
How a caption becomes ids:

1. Clean: mend broken Unicode, resolve HTML entities, join white space, lower case.
2. Cut into words: runs of letters, single digits, runs of other signs, and English endings such as 's.
3. A word is its UTF-8 bytes, each written as a visible character; the last character is marked as the end of a word.
4. Join the neighbouring pair that comes first in the list of merges, until no pair is in the list.

Work and memory are bounded whatever a caption holds. Only its first `READ` characters are read: with 77 positions, 75
ids of at most 32 bytes each cover 2,400 bytes, and no ordinary caption is longer than `READ`. Joining the pairs of a
long word as open_clip does takes the square of its length; `merged` takes n·log n steps and gives the same pieces.
"""

from __future__ import annotations

import gzip
import heapq
import html
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinorankclip.types import TextSpec

if TYPE_CHECKING:
    from torch import Tensor

REMEMBERED = 200_000  # captions whose ids each process remembers
REMEMBERED_BYTES = 1 << 26  # of these captions and ids, and as many of words
READ = 16_384  # characters of a caption
_SHORT = 256  # characters of a caption, bytes of a word, for which open_clip's own way is fast
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
        self._known_bytes = 0

    def load(self) -> Tokenizer:
        if self._bpe is None:
            from dinorankclip import device

            device.declare_missing()
            from open_clip.tokenizer import SimpleTokenizer

            self._bpe = SimpleTokenizer(context_length=self.spec.context_length)
            self._bpe.cache = _WordMemo(self._bpe.cache)
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
            bpe, most = self.load()._bpe, self.spec.context_length - 2
            ids = [bpe.sot_token_id, *self._ids(caption, most)[:most], bpe.eot_token_id]
            self._remember(caption, ids)
        return ids

    def _remember(self, caption: str, ids: list[int]) -> None:
        """Add a caption; drop the oldest captions if they are too many, or take too much memory."""
        if len(caption) > READ:
            return
        self._known_bytes += _entry_bytes(caption, ids)
        self._known[caption] = ids
        while len(self._known) > REMEMBERED or self._known_bytes > REMEMBERED_BYTES:
            oldest = next(iter(self._known))
            self._known_bytes -= _entry_bytes(oldest, self._known.pop(oldest))

    def _ids(self, caption: str, most: int | None = None) -> list[int]:
        """Return the ids of a caption's words: all, or at least the first `most`."""
        bpe = self._bpe
        if len(caption) <= _SHORT:
            return bpe.encode(caption)
        ids: list[int] = []
        for found in bpe.pat.finditer(bpe.clean_fn(caption[:READ])):
            word = "".join([bpe.byte_encoder[byte] for byte in found[0].encode("utf-8")])
            if len(word) <= _SHORT:
                ids += [bpe.encoder[piece] for piece in bpe.bpe(word).split(" ")]
            else:
                ids += [bpe.encoder[piece] for piece in merged([*word[:-1], word[-1] + _END], bpe.bpe_ranks)]
            if most is not None and len(ids) >= most:
                break
        return ids

    def whole_length(self, caption: str) -> int:
        """Count the ids of the whole caption (of its first `READ` characters), with start and end."""
        self.load()
        return len(self._ids(caption)) + 2

    def __call__(self, captions: Sequence[str], *, full: bool = False) -> Tensor:
        """Return int64 [B, L]: L is the longest caption's length, or the whole context length if `full`."""
        import torch

        rows = [self.encode(caption) for caption in captions]
        length = self.spec.context_length if full else max(map(len, rows), default=1)
        padded = [row + [0] * (length - len(row)) for row in rows]
        return torch.tensor(padded, dtype=torch.int64).reshape(len(rows), length)

    def __getstate__(self) -> dict[str, Any]:
        # Another process loads its own vocabulary.
        return {"spec": self.spec, "_bpe": None, "_known": {}, "_known_bytes": 0}


class _WordMemo(dict[str, str]):
    """Maps words to their pieces for open_clip's tokenizer, which would remember every word; begins anew when full."""

    def __init__(self, special: dict[str, str]) -> None:
        super().__init__(special)
        self._special, self._bytes = dict(special), 0

    def __setitem__(self, word: str, pieces: str) -> None:
        self._bytes += _entry_bytes(word, pieces)
        if self._bytes > REMEMBERED_BYTES:
            self.clear()
            self.update(self._special)
            self._bytes = 0
        super().__setitem__(word, pieces)


def _entry_bytes(key: str, value: object) -> int:
    return sys.getsizeof(key) + sys.getsizeof(value) + 100  # and the entry of the dictionary


def merged(pieces: list[str], order: Mapping[tuple[str, str], int]) -> list[str]:
    """Join neighbouring pairs of a word, the pair that is first in `order` at all its places first, from left to right,
    until no pair is in `order`.

        while a pair is in order: pieces = pieces with every occurrence of the first pair joined

    Takes n·log n steps for n pieces: places of each pair wait in a heap by their rank, and a place whose pieces have
    changed since is passed over.
    """
    if len(pieces) == 1:
        return pieces
    pieces, end = list(pieces), len(pieces)
    before, after = list(range(-1, end - 1)), list(range(1, end + 1))
    waiting: dict[int, list[int]] = {}  # by rank: places of the left piece
    ranks: list[int] = []

    def offer(left: int) -> None:
        rank = order.get((pieces[left], pieces[after[left]])) if left >= 0 and after[left] < end else None
        if rank is not None:
            if rank not in waiting:
                waiting[rank] = []
                heapq.heappush(ranks, rank)
            waiting[rank].append(left)

    for place in range(end - 1):
        offer(place)
    while ranks:
        rank = heapq.heappop(ranks)
        for left in sorted(waiting.pop(rank)):
            right = after[left]
            if not pieces[left] or right >= end or order.get((pieces[left], pieces[right])) != rank:
                continue
            pieces[left], pieces[right] = pieces[left] + pieces[right], ""
            after[left] = after[right]
            if after[left] < end:
                before[after[left]] = left
            offer(before[left])
            offer(left)
    return [piece for piece in pieces if piece]


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
        self._order: dict[Any, int] = {tuple(line.split()): place for place, line in enumerate(lines[1 : _MERGES + 1])}
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
        return merged(pieces, self._order)


def cleaned(caption: str) -> str:
    """Mend broken Unicode, resolve HTML entities, join white space and lower the case, as open_clip does.

    Only the first `READ` characters are read.
    """
    caption = caption[:READ]
    if not (caption.isascii() and caption.isprintable()) or "&" in caption:  # else there is nothing to mend
        import ftfy

        caption = ftfy.fix_text(caption)
    return " ".join(html.unescape(html.unescape(caption)).split()).lower()


def _letters() -> dict[int, str]:
    """Map a byte to a visible character: itself where it is visible in Latin-1, else a character from U+0100 on."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + place) for place, byte in enumerate(hidden)}
