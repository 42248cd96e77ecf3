"""CLIP's byte-pair encoding in plain Python, for a program that must answer before torch could even be imported.

The same ids as `data.tokens`, which reads captions by open_clip's own tokenizer; the vocabulary is the file that
open_clip brings. How a caption becomes ids:

1. Clean: mend broken Unicode, resolve HTML entities, join white space, lower case.
2. Cut into words: runs of letters, single digits, runs of other signs, and English endings such as 's.
3. A word is its UTF-8 bytes, each written as a visible character; the last one is marked as the end of a word.
4. Join the neighbouring pair that comes first in the list of merges, as long as there is one.
"""

from __future__ import annotations

import gzip
import html
import importlib.util
import itertools
from pathlib import Path

_VOCABULARY = "bpe_simple_vocab_16e6.txt.gz"
_MERGES = 49152 - 256 - 2  # of the file's list, all that CLIP uses
_END = "</w>"
_WORDS = r"<start_of_text>|<end_of_text>|'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"


class BytePairs:
    """`BytePairs()(caption)` → ids of start, words and end, at most `context_length` of them."""

    def __init__(self, context_length: int = 77) -> None:
        import regex

        self.context_length = context_length
        self._words = regex.compile(_WORDS, regex.IGNORECASE)
        self._letters = _letters()
        lines = gzip.decompress(vocabulary_file().read_bytes()).decode("utf-8").split("\n", _MERGES + 1)
        self._order = {tuple(line.split()): place for place, line in enumerate(lines[1 : _MERGES + 1])}
        signs = list(self._letters.values())
        names = signs + [sign + _END for sign in signs] + ["".join(pair) for pair in self._order]
        self._ids = {name: number for number, name in enumerate(names)}
        self.start, self.end = len(names), len(names) + 1
        self._special = {"<start_of_text>": self.start, "<end_of_text>": self.end}

    def __call__(self, caption: str) -> list[int]:
        ids: list[int] = []
        for word in self._words.findall(_cleaned(caption)):
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


def vocabulary_file() -> Path:
    """The list of merges in open_clip's folder, found without importing open_clip."""
    spec = importlib.util.find_spec("open_clip")
    assert spec is not None and spec.origin, "open_clip is a dependency of this package"
    return Path(spec.origin).parent / _VOCABULARY


def _cleaned(caption: str) -> str:
    if not (caption.isascii() and caption.isprintable()) or "&" in caption:  # else there is nothing to mend
        import ftfy

        caption = ftfy.fix_text(caption)
    return " ".join(html.unescape(html.unescape(caption)).split()).lower()


def _joined(pieces: list[str], pair: tuple[str, str]) -> list[str]:
    """`pieces` with every occurrence of `pair`, from left to right, as one piece."""
    result: list[str] = []
    at = 0
    while at < len(pieces):
        if at + 1 < len(pieces) and (pieces[at], pieces[at + 1]) == pair:
            result.append(pieces[at] + pieces[at + 1])
            at += 2
        else:
            result.append(pieces[at])
            at += 1
    return result


def _letters() -> dict[int, str]:
    """Byte → visible character: itself where it is one in Latin-1, else one from U+0100 on."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + place) for place, byte in enumerate(hidden)}
