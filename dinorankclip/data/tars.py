"""Where every sample of a tar lies: its table of contents as arrays, made once, and reads by position.

`index_shard` walks the headers of one tar and groups neighbouring members with the same key, as WebDataset does
(`a/b.c.jpg` has key `a/b` and kind `c.jpg`). The result is columns, one row a sample, in the order of the tar:

    key S, image_at, image_bytes, caption_at, caption_bytes (-1: absent), json (caption is .json), cause

"Caption" stands for whatever text lies beside an image: for classification sets it is the class index (`beside`).
`cause` is -1 for a sample worth reading, else a position in `CAUSES`: what is already known to be damaged
stays in the list and is counted when its turn comes. A damaged stretch of a tar is skipped up to the next
valid header and gets one row of its own.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np

from dinorankclip.data.damage import CAUSES, Damage
from dinorankclip.digests import digest
from dinorankclip.types import UserError

IMAGE_KINDS = frozenset(("jpg", "jpeg", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "jp2", "avif"))
CAPTION_KINDS = frozenset(("txt", "json"))
CAUSE_LIST = list(CAUSES)
_OPEN_FILES = 64  # far below the usual limit of 1024, shared by all sources of a process
_ENDS = 1 << 16  # bytes at both ends of a shard that enter its fingerprint
_BLOCK = tarfile.BLOCKSIZE


def split_name(name: str) -> tuple[str, str] | None:
    """Key and kind of a member, None for what is not part of a sample (hidden files, names without a dot)."""
    folder, _, base = name.rpartition("/")
    stem, dot, kind = base.partition(".")
    if not stem or not dot:
        return None
    return (f"{folder}/{stem}" if folder else stem), kind.lower()


class Rows:
    """Collects samples from members in order. `add` gets (key, kind, position, bytes, cause or None)."""

    def __init__(self, beside: frozenset[str] = CAPTION_KINDS) -> None:
        self.beside = beside
        self.rows: list[list] = []
        self._kinds: set[str] = set()

    def add(self, key: str, kind: str, at: int, size: int, cause: str | None = None) -> None:
        is_image, is_caption = kind in IMAGE_KINDS, kind in self.beside
        if not is_image and not is_caption:
            return
        if not self.rows or self.rows[-1][0] != key or kind in self._kinds:
            self.rows.append([key, -1, -1, -1, -1, False, None])
            self._kinds = set()
        row = self.rows[-1]
        self._kinds.add(kind)
        if is_image and row[1] < 0:
            row[1], row[2] = at, size
        elif is_caption and (row[3] < 0 or kind == "txt"):  # .txt is preferred to .json
            row[3], row[4], row[5] = at, size, kind == "json"
        row[6] = row[6] or cause

    def add_damage(self, name: str, cause: str) -> None:
        self.rows.append([name, -1, -1, -1, -1, False, cause])
        self._kinds = set()

    def table(self) -> dict[str, np.ndarray]:
        for row in self.rows:
            if row[6] is None and row[1] < 0:
                row[6] = "missing-image"
            elif row[6] is None and row[3] < 0:
                row[6] = "no-caption"
        columns = list(zip(*self.rows)) or [()] * 7
        numbers = {
            name: np.array(columns[at], dtype=np.int64)
            for at, name in enumerate(("image_at", "image_bytes", "caption_at", "caption_bytes"), start=1)
        }
        return {
            "key": np.array([key.encode("utf-8", "surrogateescape") for key in columns[0]], dtype=np.bytes_),
            **numbers,
            "json": np.array(columns[5], dtype=bool),
            "cause": np.array([CAUSE_LIST.index(c) if c else -1 for c in columns[6]], dtype=np.int8),
        }


def index_shard(path: Path, beside: frozenset[str] = CAPTION_KINDS) -> dict[str, np.ndarray]:
    """The table of contents of one tar; see the top of this file. Adds `digest`, a fingerprint of the shard."""
    rows = Rows(beside)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        ends = file.read(_ENDS)
        if ends[:2] == b"\x1f\x8b" or ends[:4] == b"\x28\xb5\x2f\xfd":
            raise UserError(
                f"{path} is a compressed tar, which cannot be read in any order. Unpack it (gunzip, zstd -d), "
                f"or stream it: --data 'pipe:zcat {path}'"
            )
        file.seek(max(0, size - _ENDS))
        ends += file.read(_ENDS)
        file.seek(0)
        expected = 0  # where the next header should be
        for member in _members(file):
            if member.offset > expected and _holds_data(file, expected, member.offset):
                rows.add_damage(f"{path.name}@{expected}", "corrupt")
            expected = member.offset_data + -(-member.size // _BLOCK) * _BLOCK
            named = split_name(member.name)
            if named and member.isreg():
                whole = member.offset_data + member.size <= size
                rows.add(*named, member.offset_data, member.size, None if whole else "truncated")
        if _holds_data(file, expected, size):
            rows.add_damage(f"{path.name}@{expected}", "corrupt")
    if not rows.rows:
        rows.add_damage(path.name, "truncated")
    table = rows.table()
    table["digest"] = np.array(digest(size, ends, *(column.tobytes() for column in table.values())))
    return table


def _members(file) -> Iterable[tarfile.TarInfo]:
    """Members of a tar as far as they can be found; invalid blocks are skipped."""
    try:
        # "ignore_zeros" makes tarfile step over anything that is not a header, not only over zeros.
        with tarfile.open(fileobj=file, mode="r:", ignore_zeros=True) as tar:
            tar.members = _Forgetful()  # type: ignore[attr-defined]  # the stubs leave this attribute out
            while (member := tar.next()) is not None:
                yield member
    except (tarfile.TarError, OSError, ValueError):
        return  # the last member that was found reaches beyond the end


class _Forgetful(list):
    """tarfile keeps every member it has seen; a shard's index needs each only once."""

    def append(self, _item) -> None:
        pass


def _holds_data(file, start: int, end: int) -> bool:
    """Whether anything but zeros lies there (a tar ends in zeros)."""
    at = file.tell()
    file.seek(start)
    found = False
    while start < end and not found:
        piece = file.read(min(1 << 20, end - start))
        if not piece:
            break
        start += len(piece)
        found = piece.count(0) != len(piece)
    file.seek(at)
    return found


class _Handle:
    """An open file that closes when nobody uses it any more, also if the cache below has dropped it meanwhile."""

    def __init__(self, path: str) -> None:
        self.number = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def __del__(self, close=os.close) -> None:
        if hasattr(self, "number"):
            close(self.number)


@lru_cache(maxsize=_OPEN_FILES)
def _handle(path: str, stamp: str) -> _Handle:
    return _Handle(path)  # `stamp` makes a shard that was rewritten another file


def read_at(path: str, stamp: str, at: int, size: int) -> bytes:
    """`size` bytes at a position. `pread` has no file pointer, so forked workers and threads can share files."""
    try:
        handle = _handle(path, stamp)
        data = os.pread(handle.number, size, at)
        while len(data) < size and (more := os.pread(handle.number, size - len(data), at + len(data))):
            data += more  # network file systems may answer in pieces
    except OSError as error:
        raise Damage("unreadable", str(error)) from None
    if len(data) < size:
        raise Damage("truncated", f"{path} ends inside this sample")
    return data
