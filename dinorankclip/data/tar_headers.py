"""Walks the headers of a tar file that may be damaged or hostile.

`members` yields the members in order. Its work is bounded by the file: the place of the next header grows with every
block, no size is negative, a header that describes another header has at most `MOST_DESCRIPTION` bytes, and chains of
such headers are walked in a loop. A block that is no header is skipped, in search of the next one. After a member that
reaches beyond the end of the file the search goes on behind its header: its size is wrong, or the file was cut off.

Python's tarfile decodes single blocks. Its own walk follows negative sizes backwards and allocates what a header says.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

BLOCK = tarfile.BLOCKSIZE
MOST_DESCRIPTION = 1 << 20  # bytes of a long name, or of the records of a pax header
_SEARCHED = 1 << 20  # bytes that are searched for a header at once
_EXTENDED_AT, _MORE_AT = 482, 504  # in sparse headers: the mark that another block of the map follows
_CHECKSUM = slice(148, 154)  # octal digits and spaces in every header
_RECORD = re.compile(rb"(\d{1,7}) ([^=\0]+)=")
_IN_CHECKSUM = np.zeros(256, bool)
_IN_CHECKSUM[list(b"01234567 \0")] = True
# One type of header for names, and one for links; pax headers for one member, for all, and of Solaris.
_NAME, _LINK, _PAX, _PAX_ALL, _SPARSE = b"L", b"K", (b"x", b"X"), b"g", b"S"


class Member(NamedTuple):
    name: str
    offset: int  # of the first block that belongs to it
    data_at: int
    size: int
    is_file: bool
    cause: str | None  # why its content cannot be read, one of `damage.CAUSES`: it ends behind the file, or is sparse


def members(file: BinaryIO) -> Iterator[Member]:
    """Yield the members of an open tar file. The caller may move the file's position in between."""
    end = file.seek(0, os.SEEK_END)
    at = 0
    start: int | None = None  # of a description in front of the next member
    name: str | None = None
    described: dict[bytes, bytes] = {}
    while at + BLOCK <= end:
        header = _header(file, at)
        if header is None:
            at, start, name, described = _next_candidate(file, at + BLOCK, end), None, None, {}
            continue
        start = at if start is None else start
        data_at = at + BLOCK
        if header.type in (_NAME, _LINK, *_PAX, _PAX_ALL):
            if header.size > min(MOST_DESCRIPTION, end - data_at):
                at, start, name, described = data_at, None, None, {}
                continue
            file.seek(data_at)
            content = file.read(header.size)
            if header.type == _NAME:
                name = content.partition(b"\0")[0].decode("utf-8", "surrogateescape").rstrip("/")
            elif header.type in _PAX:
                described |= _pax_records(content)
            at = data_at + _blocks(header.size)
            continue
        is_sparse = header.type == _SPARSE or any(key.startswith(b"GNU.sparse.") for key in described)
        if header.type == _SPARSE:
            data_at = _behind_sparse_map(file, at, end)
        size = _number(described.get(b"size"), header.size)
        if b"path" in described:
            name = described[b"path"].decode("utf-8", "surrogateescape").rstrip("/")
        stored = size if header.isreg() or header.type not in tarfile.SUPPORTED_TYPES else 0
        is_whole = size >= 0 and data_at + stored <= end
        cause = "truncated" if not is_whole else "corrupt" if is_sparse else None
        yield Member(name or header.name, start, data_at, max(0, min(size, end)), header.isreg(), cause)
        at, start, name, described = data_at + (_blocks(stored) if is_whole else 0), None, None, {}
        if not is_whole:
            at = _next_candidate(file, at, end)


def _header(file: BinaryIO, at: int) -> tarfile.TarInfo | None:
    """Decode the block at a place; None if it is no header, or has a negative size."""
    file.seek(at)
    block = file.read(BLOCK)
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError, OverflowError):
        return None
    return header if header.size >= 0 else None


def _blocks(size: int) -> int:
    """Return the bytes of whole blocks that hold `size` bytes."""
    return -(-size // BLOCK) * BLOCK


def _next_candidate(file: BinaryIO, at: int, end: int) -> int:
    """Return the next place, block by block from `at`, whose checksum field looks like one; `end` if there is none."""
    while at + BLOCK <= end:
        file.seek(at)
        piece = file.read(min(_SEARCHED, (end - at) // BLOCK * BLOCK))
        table = np.frombuffer(piece[: len(piece) // BLOCK * BLOCK], np.uint8).reshape(-1, BLOCK)
        if not len(table):
            break
        field = table[:, _CHECKSUM]
        # A field of zeros alone is a block of zeros; checksums in base 256 begin with a set bit.
        likely = (_IN_CHECKSUM[field].all(1) & field.any(1)) | (field[:, 0] >= 0x80)
        if likely.any():
            return at + int(likely.argmax()) * BLOCK
        at += len(table) * BLOCK
    return end


def _behind_sparse_map(file: BinaryIO, at: int, end: int) -> int:
    """Return the place behind a sparse header and the blocks of its map."""
    mark = _EXTENDED_AT
    while at + BLOCK <= end:
        file.seek(at + mark)
        more = file.read(1) not in (b"\0", b"")
        at, mark = at + BLOCK, _MORE_AT
        if not more:
            break
    return at


def _pax_records(content: bytes) -> dict[bytes, bytes]:
    """Return the records `LENGTH KEY=VALUE` of a pax header up to the first that is damaged."""
    records: dict[bytes, bytes] = {}
    at = 0
    while match := _RECORD.match(content, at):
        stop = at + int(match[1])
        if stop > len(content) or stop <= match.end():
            break
        records[match[2]] = content[match.end() : stop - 1]
        at = stop
    return records


def _number(text: bytes | None, otherwise: int) -> int:
    """Return the size that a pax record gives; -1 if it is no number."""
    if text is None:
        return otherwise
    return int(text) if re.fullmatch(rb"\d{1,18}", text) else -1
