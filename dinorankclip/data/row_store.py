"""Computes the rows that a model gives for items, block by block, and stores them so that no row is computed twice.

    FOLDER/about.json     the model and the data, for a person who looks
    FOLDER/causes.npy     uint8 [N]: 0 not computed yet, 1 computed, 2 + i damaged for the i-th of `damage.CAUSES`
    FOLDER/rows.npy       float32 [N, D] in the order of the items; zeros where an item is damaged
    FOLDER/hashes.npy     uint8 [blocks, 32]: SHA-256 of the rows and causes of each block; zeros: none was stored

The name of a folder is a digest of everything that its rows depend on, so rows are never stale. Space for both files
is reserved first, so a full disk is noticed at the start. The rows of a block reach the disk before its hash, and the
hash before its causes: after a kill or a power cut the causes name exactly the rows that are there. A block whose bytes
have another hash is computed again. Processes may write different blocks at once.
Deleting a folder only costs the time to compute it again. This module imports no torch until rows are computed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip.checked_files import UnfitFile, naming, read_array
from dinorankclip.data.damage import CAUSES, TRANSIENT, Damage, DamageCount
from dinorankclip.data.decode import MAX_PIXELS
from dinorankclip.data.splits import SplitPart
from dinorankclip.io import write_json
from dinorankclip.types import ImageSpec, Source

BLOCK = 4096  # rows that a kill can cost; blocks of this size share no page of a file, so machines can write at once
HEADER = 4096  # bytes in front of the numbers of a stored .npy file
CAUSE_NAMES = list(CAUSES)
_HASH = 32  # bytes of a SHA-256
MISSING, GOOD = -2, -1  # causes of an item: not computed yet, usable; others are places in `CAUSE_NAMES`
ABOUT_FILE, CAUSES_FILE, ROWS_FILE, HASHES_FILE = "about.json", "causes.npy", "rows.npy", "hashes.npy"
UNREADABLE = CAUSE_NAMES.index(TRANSIENT)  # the disk may have been away, so such items are tried again


def npy_header(shape: tuple[int, ...], dtype: np.dtype, size: int = HEADER) -> bytes:
    """Return the header of an .npy file (format 1.0), padded to `size` bytes whatever the shape is."""
    words = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\x01\x00" + (size - 10).to_bytes(2, "little") + words.ljust(size - 11).encode("ascii") + b"\n"


class RowStore:
    """Stores the rows of `count` items in `folder`, or in memory if `folder` is None."""

    def __init__(self, folder: Path | None, count: int, about: Mapping[str, Any] | None = None) -> None:
        self.folder, self.count, self.about = folder, count, about or {}
        self.causes = np.full(count, MISSING, np.int8)
        self._rows: np.ndarray | None = None  # in memory
        self._is_reserved = False
        if folder is not None:
            self._read_causes(folder)

    def missing(self, is_readable: Callable[[int], bool] | None = None) -> list[range]:
        """Return the blocks to compute; with `is_readable` also blocks with an unreadable item that is readable now."""
        blocks = (range(start, min(start + BLOCK, self.count)) for start in range(0, self.count, BLOCK))
        return [block for block in blocks if self._lacks(block, is_readable)]

    def rows(self) -> np.ndarray:
        """Return all rows, float32 [N, D], zeros for damaged items: a memory map whose changes are not stored."""
        if self._rows is not None:
            return self._rows
        if self.folder is None or not (self.causes == GOOD).any():
            return np.zeros((self.count, 0), np.float32)
        return np.load(self.folder / ROWS_FILE, mmap_mode="c")

    def write(self, block: range, rows: np.ndarray, causes: np.ndarray) -> None:
        """Store the rows of the usable items of a block, [n, D], and the causes of all its items, [len(block)].

        A longer range, which begins at a block, is stored block by block.
        """
        if len(block) > BLOCK:
            for start in range(0, len(block), BLOCK):
                before, piece = causes[:start], causes[start : start + BLOCK]
                first = int((before == GOOD).sum())
                of_piece = rows[first : first + int((piece == GOOD).sum())]
                self.write(block[start : start + BLOCK], of_piece, piece)
            return
        usable = causes == GOOD
        table = np.zeros((len(block), 0), np.float32)
        if usable.any():
            self.reserve(rows.shape[1])
            table = np.zeros((len(block), rows.shape[1]), np.float32)
            table[usable] = rows
            if self._rows is not None:
                self._rows[block.start : block.stop] = table
            if self.folder is not None:
                _write_at(self.folder / ROWS_FILE, block.start * table[0].nbytes, table)
        if self.folder is not None:
            self._reserve_causes(self.folder)
            stored = (causes - MISSING).astype(np.uint8)
            _write_at(self.folder / HASHES_FILE, block.start // BLOCK * _HASH, _block_hash(table, stored))
            _write_at(self.folder / CAUSES_FILE, block.start, stored)
        self.causes[block.start : block.stop] = causes

    def reserve(self, dim: int) -> None:
        """Reserve space for all rows. Raise OSError if the disk is too full, and then leave no file behind."""
        if self._is_reserved:
            return
        if self.folder is None:
            self._rows = np.zeros((self.count, dim), np.float32)
        else:
            try:
                self._reserve_causes(self.folder)
                _reserve(self.folder / ROWS_FILE, (self.count, dim), np.dtype("<f4"))
            except OSError:
                if (self.causes == MISSING).all():
                    self._remove(self.folder)
                raise
        self._is_reserved = True

    def in_memory(self) -> RowStore:
        """Return a copy that writes nothing to the disk."""
        copy = RowStore(None, self.count)
        copy.causes[:] = self.causes
        if (self.causes == GOOD).any():
            copy._rows, copy._is_reserved = np.array(self.rows()), True
        return copy

    def _lacks(self, block: range, is_readable: Callable[[int], bool] | None) -> bool:
        causes = self.causes[block.start : block.stop]
        if is_readable is None or (causes == MISSING).any():
            return bool((causes == MISSING).any())
        return any(is_readable(block.start + int(at)) for at in np.flatnonzero(causes == UNREADABLE))

    def _read_causes(self, folder: Path) -> None:
        """Read which rows the folder holds. Files that are damaged or do not fit together are removed."""
        try:
            stored = np.array(read_array(folder / CAUSES_FILE))
            if (
                stored.shape != (self.count,)
                or stored.dtype != np.uint8
                or (stored >= len(CAUSE_NAMES) - MISSING).any()
            ):
                raise UnfitFile("the files do not fit together")
            causes = stored.astype(np.int8) + np.int8(MISSING)
            if (causes == GOOD).any():
                rows = read_array(folder / ROWS_FILE)
                if rows.ndim != 2 or len(rows) != self.count or rows.dtype != np.float32:
                    raise UnfitFile("the files do not fit together")
            self.causes = causes
            self._forget_damaged_blocks(folder, stored)
        except FileNotFoundError:
            with suppress(OSError):
                (folder / CAUSES_FILE).unlink()  # causes without rows
        except UnfitFile:
            self._remove(folder)
        except OSError:
            return  # out of reach for now

    def _forget_damaged_blocks(self, folder: Path, stored: np.ndarray) -> None:
        """Let blocks be computed again whose bytes differ from those that were written."""
        hashes = np.array(read_array(folder / HASHES_FILE)) if (folder / HASHES_FILE).is_file() else None
        if hashes is None or hashes.shape != (-(-self.count // BLOCK), _HASH):
            return  # written by an older version
        rows = read_array(folder / ROWS_FILE) if (self.causes == GOOD).any() else None
        for number, expected in enumerate(hashes):
            block = slice(number * BLOCK, (number + 1) * BLOCK)
            known = expected.any() and not (self.causes[block] == MISSING).all()
            table = rows[block] if rows is not None and (self.causes[block] == GOOD).any() else np.zeros((0, 0))
            if known and not np.array_equal(expected, _block_hash(table, stored[block])):
                self.causes[block] = MISSING

    def _reserve_causes(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / ABOUT_FILE).exists():
            write_json(folder / ABOUT_FILE, self.about)
        _reserve(folder / HASHES_FILE, (-(-self.count // BLOCK), _HASH), np.dtype(np.uint8))
        _reserve(folder / CAUSES_FILE, (self.count,), np.dtype(np.uint8))

    @staticmethod
    def _remove(folder: Path) -> None:
        with suppress(OSError):
            for name in (CAUSES_FILE, HASHES_FILE, ROWS_FILE, ABOUT_FILE):  # the causes first: they vouch for the rows
                (folder / name).unlink(missing_ok=True)
            folder.rmdir()


def _block_hash(rows: np.ndarray, causes: np.ndarray) -> np.ndarray:
    """Return the SHA-256 of a block, uint8 [32]: of its rows if any is usable, and of its causes as they are stored."""
    digest = hashlib.sha256(np.ascontiguousarray(rows))  # type: ignore[arg-type]  # an array is a buffer
    digest.update(np.ascontiguousarray(causes))  # type: ignore[arg-type]
    return np.frombuffer(digest.digest(), np.uint8)


def _reserve(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Give a file its full size and its header; a file that has them stays as it is, so processes may do it at once."""
    size = HEADER + int(np.prod(shape)) * dtype.itemsize
    with naming(path), open(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666), "r+b") as file:
        if os.fstat(file.fileno()).st_size != size:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            file.truncate(size)
        file.write(npy_header(shape, dtype))


def _write_at(path: Path, offset: int, values: np.ndarray) -> None:
    """Write numbers `offset` bytes behind the header, and wait until they are on the disk."""
    with naming(path), open(path, "r+b") as file:
        file.seek(HEADER + offset)
        file.write(values.tobytes())
        file.flush()
        os.fsync(file.fileno())


def embed_rows(
    encoders: Mapping[str, Callable[[Any], Any]],
    source: Source,
    places: Sequence[int] | np.ndarray,
    image: ImageSpec,
    *,
    batch: int,
    threads: int = 2,
    max_pixels: int = MAX_PIXELS,
    damage: DamageCount | None = None,
    progress: Callable[[int], Any] = lambda count: None,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Run encoders (kind of row → function of images) over some items of a source in one pass.

    Returns the rows of the usable items by kind, float32 [n, D], and the causes of all items, int8 [len(places)].
    `damage` counts damaged items and stops the work if they are too many; `progress` gets the items of each batch.
    """
    from dinorankclip.data.samples import iterate_pairs  # imports torch

    damage = damage if damage is not None else DamageCount(max_damaged=1.0)
    part = SplitPart(source, np.asarray(places))
    parts: dict[str, list[np.ndarray]] = {kind: [np.empty((0, 0), np.float32)] for kind in encoders}
    batches = iterate_pairs(part, image, batch, threads=threads, max_pixels=max_pixels, damage=damage)
    for keys, pixels, _captions in batches:
        for kind, encode in encoders.items():
            parts[kind].append(encode(pixels).float().cpu().numpy())
        progress(len(keys))
    causes = [damage.keys.get(part.key(at)) for at in range(len(part))]
    progress(sum(cause is not None for cause in causes))
    codes = np.array([GOOD if cause is None else CAUSE_NAMES.index(cause) for cause in causes], np.int8)
    return {kind: np.concatenate(some[1:] or some) for kind, some in parts.items()}, codes


def can_read(source: Source, place: int) -> bool:
    """Return whether the image at a place of `source` can be read now."""
    with suppress(Damage):
        source.image(place)
        return True
    return False
