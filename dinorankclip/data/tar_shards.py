"""Reads pairs from tar shards, local or remote (remote.py), in any order: the clip-benchmark retrieval layout and
WebDataset shards.

`index_shard` walks the headers of one tar and groups neighbouring members with the same key, as WebDataset does
(`a/b.c.jpg` has key `a/b` and kind `c.jpg`). The result is columns, one row a sample, in the order of the tar:

    key S, image_at, image_bytes, caption_at, caption_bytes (-1: absent), json (caption is .json), cause

"Caption" stands for whatever text lies beside an image: for classification sets it is the class index (`beside`).
`cause` is -1 for a sample worth reading, else a position in `CAUSES`: a sample known to be damaged stays in the list
and is counted when its turn comes. A damaged stretch of a tar is skipped up to the next valid header and gets one row
of its own. `ShardSource` stores these tables (`io.save_table`) and reads samples by their position.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from io import BufferedReader
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from dinorankclip import io
from dinorankclip.checked_files import UnfitFile, bytes_at, file_bytes, open_regular
from dinorankclip.data.damage import CAPTION_BYTES, CAUSES, IMAGE_BYTES, Damage
from dinorankclip.data.decode import captions_from_json, captions_from_text
from dinorankclip.data.remote import RemoteShard, side_by_side
from dinorankclip.data.tar_headers import BLOCK, Member, members
from dinorankclip.io import digest, one_at_a_time
from dinorankclip.system import start_method
from dinorankclip.types import RawSample, Source, UserError

log = logging.getLogger(__name__)

IMAGE_KINDS = frozenset(("jpg", "jpeg", "jfif", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "jp2", "avif"))
CAPTION_KINDS = frozenset(("txt", "json"))
SECOND_KIND = "second.txt"  # a second caption; data/second_captions.py reads it
CAUSE_LIST = list(CAUSES)
SHOWN_TARS = "[!.]*.tar"  # macOS puts ._0.tar beside 0.tar on disks that are not its own
_NO_CAPTION = CAUSE_LIST.index("no-caption")
_INDEX_VERSION = 1
_NUMBERS = ("image_at", "image_bytes", "caption_at", "caption_bytes")
_KINDS = {"key": "S", **dict.fromkeys(_NUMBERS, "i"), "json": "b", "cause": "i"}  # columns, and kinds of their numbers
_WORTH_A_POOL = 1 << 28  # bytes; indexing less than this takes a second
_OPEN_FILES = 64  # far below the usual limit of 1024, shared by all sources of a process
_BETWEEN = 1 << 16  # most bytes between an image and its caption that are read along with them over a network
_ENDS = 1 << 16  # bytes at both ends of a shard that enter its fingerprint
_COUNT_BYTES, _MOST_SHARDS = 64, 10_000_000


def split_name(name: str) -> tuple[str, str] | None:
    """Return key and kind of a member, None for a hidden file or a name without a dot."""
    folder, _, base = name.rpartition("/")
    stem, dot, kind = base.partition(".")
    if not stem or not dot:
        return None
    return (f"{folder}/{stem}" if folder else stem), kind.lower()


class _Rows:
    """Collects the rows of a table of contents from members in order; columns as at the top of this file."""

    def __init__(self, beside: frozenset[str]) -> None:
        self.beside = beside
        self._keys: list[bytes] = []
        # Arrays of numbers: a dictionary for each of a million rows would take half a gigabyte.
        self._numbers = {name: array("q") for name in _NUMBERS}
        self._json, self._cause = array("b"), array("b")
        self._key: str | None = None  # of the last row
        self._kinds: set[str] = set()  # kinds of members in the last row

    def __len__(self) -> int:
        return len(self._keys)

    def start(self, key: str, cause: str | None = None) -> None:
        """Start a row; a damaged stretch has a `cause` and nothing else."""
        self._keys.append(key.encode("utf-8", "surrogateescape"))
        for column in self._numbers.values():
            column.append(-1)
        self._json.append(False)
        self._cause.append(CAUSE_LIST.index(cause) if cause else -1)
        self._key, self._kinds = key, set()

    def add(self, key: str, kind: str, at: int, size: int, cause: str | None) -> None:
        if kind not in IMAGE_KINDS and kind not in self.beside:
            return
        if self._key != key or kind in self._kinds:
            self.start(key)
        self._kinds.add(kind)
        numbers = self._numbers
        if kind in IMAGE_KINDS and numbers["image_at"][-1] < 0:
            numbers["image_at"][-1], numbers["image_bytes"][-1] = at, size
        elif kind in self.beside and (numbers["caption_at"][-1] < 0 or kind == "txt"):  # .txt is preferred to .json
            numbers["caption_at"][-1], numbers["caption_bytes"][-1] = at, size
            self._json[-1] = kind == "json"
        if cause and self._cause[-1] < 0:
            self._cause[-1] = CAUSE_LIST.index(cause)

    def table(self) -> dict[str, np.ndarray]:
        numbers = {name: np.array(column, dtype=np.int64) for name, column in self._numbers.items()}
        cause = np.array(self._cause, dtype=np.int8)
        cause[(cause < 0) & (numbers["image_at"] < 0)] = CAUSE_LIST.index("missing-image")
        cause[(cause < 0) & (numbers["caption_at"] < 0)] = _NO_CAPTION
        keys = np.array(self._keys, dtype=np.bytes_)
        return {"key": keys, **numbers, "json": np.array(self._json, dtype=np.bool_), "cause": cause}


def open_shard(path: Path | RemoteShard) -> BufferedReader:
    """Open a shard to walk through it."""
    return path.open() if isinstance(path, RemoteShard) else os.fdopen(open_regular(path), "rb")


def index_shard(path: Path | RemoteShard, beside: frozenset[str] = CAPTION_KINDS) -> dict[str, np.ndarray]:
    """Return the table of contents of one tar (see the top of this file) and `digest`, a fingerprint of the shard."""
    rows = _Rows(beside)
    with open_shard(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        ends = file.read(_ENDS)
        if ends[:2] == b"\x1f\x8b" or ends[:4] == b"\x28\xb5\x2f\xfd":
            raise UserError(
                f"{path} is a compressed tar, which cannot be read in any order. Unpack it (gunzip, zstd -d), "
                f"or stream it: --data 'pipe:zcat {path}'"
            )
        file.seek(max(0, size - _ENDS))
        ends += file.read(_ENDS)
        expected = 0  # where the next header should be
        is_whole = True  # the last member: behind one with a wrong size, its own content comes next
        for member in members(file):
            if is_whole and member.offset > expected and _holds_data(file, expected, member.offset):
                rows.start(f"{path.name}@{expected}", "corrupt")
            is_whole = member.cause != "truncated"
            expected = member.data_at + -(-member.size // BLOCK) * BLOCK
            named = split_name(member.name)
            if named and member.is_file:
                rows.add(*named, member.data_at, member.size, _cause(named[1], member))
        if is_whole and _holds_data(file, expected, size):
            rows.start(f"{path.name}@{expected}", "corrupt")
    if not len(rows):
        rows.start(path.name, "truncated")
    table = rows.table()
    table["digest"] = np.array(digest(size, ends, *(column.tobytes() for column in table.values())))
    return table


def _cause(kind: str, member: Member) -> str | None:
    """Return why a member cannot be used; None if nothing is known against it."""
    if member.cause:
        return member.cause
    return "too-large" if member.size > (IMAGE_BYTES if kind in IMAGE_KINDS else CAPTION_BYTES) else None


def _holds_data(file, start: int, end: int) -> bool:
    """Return whether bytes `start` to `end` hold anything but zeros (a tar ends in zeros)."""
    before = file.tell()
    file.seek(start)
    try:
        while start < end and (piece := file.read(min(1 << 20, end - start))):
            if piece.count(0) != len(piece):
                return True
            start += len(piece)
        return False
    finally:
        file.seek(before)


class _Handle:
    """An open file that closes when nobody uses it any more, even after `_handle` has dropped it from its cache."""

    def __init__(self, path: str) -> None:
        self.number = open_regular(path)

    def __del__(self, close=os.close) -> None:
        if hasattr(self, "number"):
            close(self.number)


@lru_cache(maxsize=_OPEN_FILES)
def _handle(path: str, stamp: str) -> _Handle:
    return _Handle(path)  # `stamp` makes a shard that was rewritten another file


def read_at(path: str, stamp: str, at: int, size: int) -> bytes:
    """Read `size` bytes at a position, in forked workers and threads that share the open file."""
    try:
        handle = _handle(path, stamp)  # a name keeps the file open: two threads may open it, and one is not remembered
        data = bytes_at(handle.number, size, at)
    except (OSError, UnfitFile) as error:
        raise Damage("unreadable", str(error)) from None
    if len(data) < size:
        raise Damage("truncated", f"{path} ends inside this sample")
    return data


class ShardSource(Source):
    """Reads the samples of all shards in order. If two shards use a key, all keys get their shard's name in front."""

    beside = CAPTION_KINDS  # kinds of members that hold the text of an image

    def __init__(self, shards: Sequence[Path | RemoteShard]) -> None:
        self.shards = [shard if isinstance(shard, RemoteShard) else Path(shard) for shard in shards]
        self.is_remote = any(isinstance(shard, RemoteShard) for shard in self.shards)
        if missing := [str(shard) for shard in self.shards if isinstance(shard, Path) and not shard.is_file()]:
            raise UserError(
                f"{len(missing)} shards do not exist: {', '.join(missing[:3])}{' …' * (len(missing) > 3)}\n"
                "Name yours, to train as --data 'FOLDER/{0000..0331}.tar' or --data FOLDER"
            )
        self._stamps, tables = _indexes(self.shards, self.beside)
        self._shard = np.repeat(np.arange(len(tables), dtype=np.int32), [len(table["key"]) for table in tables])
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
        return self._image_bytes

    def stamps(self) -> np.ndarray:
        return np.empty((len(self), 0), dtype=np.int64)  # the fingerprint covers all images

    def captions(self, index: int) -> tuple[str, ...]:
        data = self.text(index)
        return captions_from_json(data) if self._json[index] else captions_from_text(data)

    def text(self, index: int) -> bytes:
        """Return the text beside the image, as it is stored."""
        self._refuse_known_damage(index)
        return self._bytes(index, self._caption_at[index], self._caption_bytes[index])

    def image(self, index: int) -> bytes:
        if self._cause[index] != _NO_CAPTION:  # a missing caption does not spoil the image
            self._refuse_known_damage(index)
        return self._bytes(index, self._image_at[index], self._image_bytes[index])

    def _refuse_known_damage(self, index: int) -> None:
        if self._cause[index] >= 0:
            raise Damage(CAUSE_LIST[self._cause[index]])

    def read(self, index: int) -> RawSample:
        shard = self.shards[self._shard[index]]
        if isinstance(shard, RemoteShard) and self._cause[index] < 0:
            starts = int(self._image_at[index]), int(self._caption_at[index])
            sizes = int(self._image_bytes[index]), int(self._caption_bytes[index])
            start, stop = min(starts), max(starts[0] + sizes[0], starts[1] + sizes[1])
            if stop - start <= sum(sizes) + _BETWEEN:
                with shard.held(start, stop):
                    return super().read(index)
        return super().read(index)

    def _bytes(self, index: int, at: int, size: int) -> bytes:
        shard = int(self._shard[index])
        place = self.shards[shard]
        if isinstance(place, RemoteShard):
            return place.read(int(at), int(size))
        return read_at(str(place), self._stamps[shard], int(at), int(size))


def shards_of_folder(folder: Path) -> list[Path]:
    """Return the tars of a folder: `0.tar` … as `nshards.txt` counts them, else all, numbers in numeric order."""
    if not (count_file := folder / "nshards.txt").is_file():
        return sorted(folder.glob(SHOWN_TARS), key=lambda path: natural_order(path.name))
    try:
        number = int(file_bytes(count_file, _COUNT_BYTES))
        if not 0 <= number <= _MOST_SHARDS:
            raise ValueError
    except (ValueError, UnfitFile):
        raise UserError(f"{count_file} should hold one number, the count of shards") from None
    shards = [folder / f"{n}.tar" for n in range(number)]
    if missing := [shard.name for shard in shards if not shard.is_file()]:
        raise UserError(f"{count_file} says {number} shards, but {', '.join(missing[:5])} are not there")
    return shards


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts 2.tar before 10.tar."""
    pieces = (piece for piece in re.split(r"(\d+)", name) if piece)
    return [(0, int(piece), "") if piece.isdigit() else (1, 0, piece) for piece in pieces]


def file_stamp(path: Path | RemoteShard, *purpose: str) -> str:
    """Return a name for data stored about a file in its present state; the name changes when the file is rewritten."""
    if isinstance(path, RemoteShard):
        return digest(_INDEX_VERSION, path.url, *path.look(), *purpose)
    state = path.stat()
    return digest(_INDEX_VERSION, path.resolve(), state.st_size, state.st_mtime_ns, *purpose)


def shard_size(path: Path | RemoteShard) -> int:
    return path.look()[0] if isinstance(path, RemoteShard) else path.stat().st_size


def _indexes(shards: list[Path | RemoteShard], beside: frozenset[str]) -> tuple[list[str], list[dict[str, np.ndarray]]]:
    """Return every shard's stamp and table of contents, which is made now if it is not stored."""
    remote = [shard for shard in shards if isinstance(shard, RemoteShard)]
    for _ in side_by_side(RemoteShard.look, remote) if remote else ():
        pass
    stamps = [file_stamp(shard, *(() if beside == CAPTION_KINDS else sorted(beside))) for shard in shards]
    tables = _stored(stamps)
    if len(tables) < len(set(stamps)):
        # Processes that open the same shards wait for each other; work on other data goes on.
        with one_at_a_time(f"shards-{digest(*stamps)}", io.INDEX_FOLDER), contextlib.ExitStack() as stack:
            tables |= _stored(set(stamps) - set(tables))  # stored by another process during the wait
            missing = {stamp: path for stamp, path in zip(stamps, shards) if stamp not in tables}
            volume = sum(map(shard_size, missing.values()))
            indexing: Iterable[dict[str, np.ndarray]] = map(index_shard, missing.values(), repeat(beside))
            if remote or (len(missing) > 1 and volume > _WORTH_A_POOL):
                log.info("indexing %d shards (%.1f GB), once", len(missing), volume / 1e9)
            if remote:  # waits for the network, mostly
                indexing = side_by_side(partial(index_shard, beside=beside), missing.values())
            elif len(missing) > 1 and volume > _WORTH_A_POOL and start_method() == "fork":
                pool = ProcessPoolExecutor(min(len(missing), os.cpu_count() or 1), mp_context=get_context("fork"))
                indexing = stack.enter_context(pool).map(index_shard, missing.values(), repeat(beside))
            for stamp, table in zip(missing, indexing):
                tables[stamp] = table
                io.save_table(stamp, table)
    return stamps, [tables[stamp] for stamp in stamps]


def _stored(stamps: Iterable[str]) -> dict[str, dict[str, np.ndarray]]:
    return {stamp: table for stamp in stamps if (table := io.load_table(stamp)) is not None and _is_index(table)}


def _is_index(table: dict[str, np.ndarray]) -> bool:
    """Return whether a stored table has the columns of an index, of equal lengths; else it is made again."""
    columns = {name: table.get(name) for name in _KINDS}
    if "digest" not in table or table["digest"].shape or any(column is None for column in columns.values()):
        return False
    lengths = {column.shape for column in columns.values() if column is not None}
    kinds_fit = all(column.dtype.kind == _KINDS[name] for name, column in columns.items() if column is not None)
    causes = table["cause"]
    return kinds_fit and len(lengths) == 1 and causes.ndim == 1 and bool((causes < len(CAUSE_LIST)).all())


def _unique(keys: np.ndarray, shard: np.ndarray, shards: Sequence[Path | RemoteShard]) -> np.ndarray:
    """Make every key name one sample: caches of features are looked up by key."""
    if len(np.unique(keys)) == len(keys):
        return keys
    stems = [path.stem.encode("utf-8", "surrogateescape") + b"/" for path in shards]
    times: Counter[bytes] = Counter()
    result = []
    for number, key in zip(shard.tolist(), keys.tolist()):
        key = stems[number] + key
        times[key] += 1
        result.append(key if times[key] == 1 else key + b"#%d" % times[key])
    return np.array(result)
