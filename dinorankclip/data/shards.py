"""Pairs in local tar shards, in any order: the clip-benchmark retrieval layout and WebDataset shards."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path

import numpy as np

from dinorankclip.data import captions as caption_files
from dinorankclip.data import kept, tars
from dinorankclip.data.damage import Damage
from dinorankclip.digests import digest
from dinorankclip.locks import one_at_a_time
from dinorankclip.types import RawSample, UserError

log = logging.getLogger(__name__)

_INDEX_VERSION = 1
_NO_CAPTION = tars.CAUSE_LIST.index("no-caption")
SHOWN_TARS = "[!.]*.tar"  # macOS puts ._0.tar beside 0.tar on disks that are not its own
_WORTH_A_POOL = 1 << 28  # bytes; indexing less than this takes a second


class ShardSource:
    """Samples of all shards, in the order of the shards and of their members.

    Keys are the members' names. If two shards use the same key, every key gets its shard's name in front.
    """

    beside = tars.CAPTION_KINDS  # kinds of members that hold the text of an image

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
            raise Damage(tars.CAUSE_LIST[self._cause[index]])

    def _bytes(self, index: int, at: int, size: int) -> bytes:
        shard = int(self._shard[index])
        return tars.read_at(str(self.shards[shard]), self._stamps[shard], int(at), int(size))


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
    stamps = [file_stamp(shard, *(() if beside == tars.CAPTION_KINDS else sorted(beside))) for shard in shards]
    tables = {stamp: table for stamp in stamps if (table := kept.load(stamp)) is not None}
    if any(stamp not in tables for stamp in stamps):
        with one_at_a_time("shards", kept.FOLDER):
            _index_missing(dict(zip(stamps, shards)), tables, beside)
    return stamps, [tables[stamp] for stamp in stamps]


def _index_missing(
    shards: dict[str, Path], tables: dict[str, dict[str, np.ndarray]], beside: frozenset[str]
) -> None:
    """Add the tables that are missing. Another process may have kept them while we waited."""
    missing = []
    for stamp in shards:
        if stamp in tables:
            continue
        table = kept.load(stamp)
        if table is None:
            missing.append(stamp)
        else:
            tables[stamp] = table
    paths = [shards[stamp] for stamp in missing]
    volume = sum(path.stat().st_size for path in paths)
    if len(paths) > 1 and volume > _WORTH_A_POOL and "fork" in get_all_start_methods():
        log.info("indexing %d shards (%.1f GB), once", len(paths), volume / 1e9)
        with ProcessPoolExecutor(min(len(paths), os.cpu_count() or 1), mp_context=get_context("fork")) as pool:
            made = pool.map(tars.index_shard, paths, repeat(beside))
            for stamp, table in zip(missing, made):
                tables[stamp] = table
                kept.save(stamp, table)
        return
    for stamp, path in zip(missing, paths):
        tables[stamp] = tars.index_shard(path, beside)
        kept.save(stamp, tables[stamp])


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
