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

import logging
import os
import re
import tarfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from itertools import repeat
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path

import numpy as np

from dinorankclip import io
from dinorankclip.data import decode as caption_files
from dinorankclip.data.damage import CAUSES, Damage
from dinorankclip.io import digest, one_at_a_time
from dinorankclip.types import RawSample, UserError

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


# -------- shards
# Pairs in local tar shards, in any order: the clip-benchmark retrieval layout and WebDataset shards.

log = logging.getLogger(__name__)

_INDEX_VERSION = 1
_NO_CAPTION = CAUSE_LIST.index("no-caption")
SHOWN_TARS = "[!.]*.tar"  # macOS puts ._0.tar beside 0.tar on disks that are not its own
_WORTH_A_POOL = 1 << 28  # bytes; indexing less than this takes a second


class ShardSource:
    """Samples of all shards, in the order of the shards and of their members.

    Keys are the members' names. If two shards use the same key, every key gets its shard's name in front.
    """

    beside = CAPTION_KINDS  # kinds of members that hold the text of an image

    def __init__(self, shards: Sequence[Path]) -> None:
        self.shards = [Path(shard) for shard in shards]
        missing = [str(shard) for shard in self.shards if not shard.is_file()]
        if missing:
            raise UserError(
                f"{len(missing)} shards do not exist: {', '.join(missing[:3])}" + " …" * (len(missing) > 3) +
                "\nName yours, to train as --data 'FOLDER/{0000..0331}.tar' or --data FOLDER"
            )  # fmt: skip
        self._stamps, tables = _indexes(self.shards, self.beside)
        counts = [len(table["key"]) for table in tables]
        self._shard = np.repeat(np.arange(len(tables), dtype=np.int32), counts)
        joined = {name: np.concatenate([table[name] for table in tables]) for name in tables[0] if name != "digest"}
        self._image_at, self._image_bytes = joined["image_at"], joined["image_bytes"]
        self._caption_at, self._caption_bytes = joined["caption_at"], joined["caption_bytes"]
        self._json, self._cause = joined["json"], joined["cause"]
        self._keys = _unique(joined["key"], self._shard, self.shards)
        self.fingerprint = digest("shards", *(table["digest"] for table in tables))
        self._check_texts()

    def _check_texts(self) -> None:
        if not ((self._caption_at >= 0) | (self._image_at >= 0)).any():
            raise UserError(f"no samples in {self.shards[0].parent}: {len(self.shards)} shards, empty or damaged")
        if not (self._caption_at >= 0).any():
            raise UserError(
                f"no captions in {self.shards[0]} ({len(self)} samples): a pair is KEY.jpg with KEY.txt "
                "(one caption a line) beside it. A classification set (KEY.cls) has none to train on."
            )

    def __len__(self) -> int:
        return len(self._keys)

    def key(self, index: int) -> str:
        return self._keys[index].decode("utf-8", "surrogateescape")

    def sizes(self) -> np.ndarray:
        """Bytes of each image, -1 where there is none."""
        return self._image_bytes

    def stamps(self) -> np.ndarray:
        """Nothing that the fingerprint does not know: int64 [n, 0]."""
        return np.empty((len(self), 0), dtype=np.int64)

    def captions(self, index: int) -> tuple[str, ...]:
        data = self.text(index)
        return caption_files.from_json(data) if self._json[index] else caption_files.from_text(data)

    def text(self, index: int) -> bytes:
        """What lies beside the image, as it is stored."""
        self._refuse_known_damage(index)
        return self._bytes(index, self._caption_at[index], self._caption_bytes[index])

    def image(self, index: int) -> bytes:
        if self._cause[index] != _NO_CAPTION:  # which does not spoil the image
            self._refuse_known_damage(index)
        return self._bytes(index, self._image_at[index], self._image_bytes[index])

    def read(self, index: int) -> RawSample:
        return RawSample(self.key(index), self.image(index), self.captions(index))

    def _refuse_known_damage(self, index: int) -> None:
        if self._cause[index] >= 0:
            raise Damage(CAUSE_LIST[self._cause[index]])

    def _bytes(self, index: int, at: int, size: int) -> bytes:
        shard = int(self._shard[index])
        return read_at(str(self.shards[shard]), self._stamps[shard], int(at), int(size))


def shards_of_folder(folder: Path) -> list[Path]:
    """The tars of a folder: `0.tar` … as `nshards.txt` counts them, else all, numbers in numeric order."""
    counted = folder / "nshards.txt"
    if counted.is_file():
        try:
            number = int(counted.read_text().strip())
        except ValueError:
            raise UserError(f"{counted} should hold one number, the count of shards") from None
        shards = [folder / f"{n}.tar" for n in range(number)]
        missing = [shard.name for shard in shards if not shard.is_file()]
        if missing:
            raise UserError(f"{counted} says {number} shards, but {', '.join(missing[:5])} are not there")
        return shards
    return sorted(folder.glob(SHOWN_TARS), key=_by_number)


def _by_number(path: Path) -> list:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", path.name) if part]


def file_stamp(path: Path, *purpose: str) -> str:
    """A name for what is kept of a file as it is now; a file that was written again has another one."""
    state = path.stat()
    return digest(_INDEX_VERSION, path.resolve(), state.st_size, state.st_mtime_ns, *purpose)


def _indexes(shards: list[Path], beside: frozenset[str]) -> tuple[list[str], list[dict[str, np.ndarray]]]:
    """Every shard's stamp and table of contents, from disk where it is kept."""
    stamps = [file_stamp(shard, *(() if beside == CAPTION_KINDS else sorted(beside))) for shard in shards]
    tables = {stamp: table for stamp in stamps if (table := io.load_table(stamp)) is not None}
    if any(stamp not in tables for stamp in stamps):
        with one_at_a_time("shards", io.INDEX_FOLDER):
            _index_missing(dict(zip(stamps, shards)), tables, beside)
    return stamps, [tables[stamp] for stamp in stamps]


def _index_missing(shards: dict[str, Path], tables: dict[str, dict[str, np.ndarray]], beside: frozenset[str]) -> None:
    """Add the tables that are missing. Another process may have kept them while we waited."""
    missing = []
    for stamp in shards:
        if stamp in tables:
            continue
        table = io.load_table(stamp)
        if table is None:
            missing.append(stamp)
        else:
            tables[stamp] = table
    paths = [shards[stamp] for stamp in missing]
    volume = sum(path.stat().st_size for path in paths)
    if len(paths) > 1 and volume > _WORTH_A_POOL and "fork" in get_all_start_methods():
        log.info("indexing %d shards (%.1f GB), once", len(paths), volume / 1e9)
        with ProcessPoolExecutor(min(len(paths), os.cpu_count() or 1), mp_context=get_context("fork")) as pool:
            made = pool.map(index_shard, paths, repeat(beside))
            for stamp, table in zip(missing, made):
                tables[stamp] = table
                io.save_table(stamp, table)
        return
    for stamp, path in zip(missing, paths):
        tables[stamp] = index_shard(path, beside)
        io.save_table(stamp, tables[stamp])


def _unique(keys: np.ndarray, shard: np.ndarray, shards: list[Path]) -> np.ndarray:
    """Keys that name one sample each: caches of features are looked up by them."""
    if len(np.unique(keys)) == len(keys):
        return keys
    stems = np.array([path.stem.encode("utf-8", "surrogateescape") + b"/" for path in shards])
    keys = np.strings.add(stems[shard], keys) if hasattr(np, "strings") else np.char.add(stems[shard], keys)
    _, inverse = np.unique(keys, return_inverse=True)
    seen: dict[int, int] = {}
    result = []
    for key, same in zip(keys.tolist(), inverse.tolist()):
        seen[same] = seen.get(same, 0) + 1
        result.append(key if seen[same] == 1 else key + b"#%d" % seen[same])
    return np.array(result)
