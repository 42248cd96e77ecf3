"""Finds the rows nearest to a query among millions, exactly, from rows of one byte a number and with bounded memory.

Each row x of a file of embeddings, float32 [N, D], has a record: a code c in int8 [D], a scale s, and the error
e = |x - s·c|. A score q·x then lies within e·|q| of s·(q·c), by Cauchy and Schwarz. `Codes.candidates` reads records, a
quarter of the bytes, and returns every row that can be among the best; `RowFile` has their exact scores. What is left
out cannot be among them: the answer is that of a scan of the rows.

Records are read by `pread` into buffers of a few megabytes, never mapped, so the memory of the process does not grow
with the file. Several threads read, because a disk answers several requests faster than one.

With the extra `index`, the scan for one query multiplies integers (numkong, which usearch brings): the query becomes
two digits of int8, whose rest is part of the bound. Without it, codes become float32 first, which takes longer.

Shapes: N rows, D width, Q queries.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip.checked_files import UnfitFile, bytes_at, fill_at, open_regular, read_array
from dinorankclip.extras import missing_packages

READERS = 8
BLOCK = 2048  # records that are read at once: a megabyte at 512 numbers a row
AT_ONCE = 128  # rows whose codes become float32 at once: they stay in the cache of a core
_ROUNDING = 2e-6  # of a score in float32, and of a stored error


def record_of(dim: int) -> np.dtype:
    return np.dtype([("code", "i1", (dim,)), ("scale", "<f4"), ("error", "<f4"), ("row", "<i8")])


def encoded(rows: np.ndarray, first: int) -> np.ndarray:
    """Return the records of rows [n, D], whose places in their file begin at `first`."""
    records = np.empty(len(rows), record_of(rows.shape[1]))
    scale = np.maximum(np.abs(rows).max(1), np.float32(1e-30)) / np.float32(127)
    scaled = rows / scale[:, None]
    code = np.rint(scaled)
    records["code"], records["scale"] = code, scale
    scaled -= code
    records["error"] = np.sqrt(np.einsum("nd,nd->n", scaled, scaled)) * scale + np.float32(_ROUNDING)
    records["row"] = np.arange(first, first + len(rows))
    return records


class _File:
    """A file that threads read at any place; closed when nobody uses it any more."""

    def __init__(self, path: Path) -> None:
        self._number = open_regular(path)
        self.size = os.fstat(self._number).st_size

    def read(self, at: int, size: int) -> bytes:
        return bytes_at(self._number, size, at)

    def read_into(self, at: int, room: Any) -> None:
        if not fill_at(self._number, memoryview(room).cast("B"), at):
            raise UnfitFile("an index ends too early: delete it, and it is made again")

    def __del__(self, close=os.close) -> None:
        if hasattr(self, "_number"):
            close(self._number)


class RowFile:
    """Reads rows of an .npy file, float16 or float32 [N, D], as float32, a piece at a time."""

    def __init__(self, path: Path) -> None:
        mapped: Any = read_array(path)
        if mapped.ndim != 2 or mapped.dtype.kind != "f" or not mapped.shape[1]:
            raise UnfitFile(f"{path} holds no rows of numbers")
        (self.count, self.dim), self._dtype, self._start = mapped.shape, mapped.dtype, int(mapped.offset)
        self._file = _File(path)

    def __len__(self) -> int:
        return self.count

    def piece(self, start: int, stop: int) -> np.ndarray:
        width = self.dim * self._dtype.itemsize
        data = self._file.read(self._start + start * width, (stop - start) * width)
        return np.frombuffer(data, self._dtype).reshape(-1, self.dim).astype(np.float32, copy=False)

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the rows at some places, [n, D]."""

        def some(part: np.ndarray) -> np.ndarray:
            return np.concatenate([self.piece(place, place + 1) for place in part.tolist()])

        if len(places) < 4 * READERS:
            return some(places)
        with ThreadPoolExecutor(READERS) as pool:
            return np.concatenate(list(pool.map(some, np.array_split(places, 4 * READERS))))


class Codes:
    """Scans ranges of a file of records."""

    def __init__(self, path: Path, dim: int) -> None:
        self._file, self._record = _File(path), record_of(dim)
        self.count = self._file.size // self._record.itemsize

    def candidates(
        self, queries: np.ndarray, ranges: Iterable[tuple[int, int]], top: int
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return (rows, lower bounds) for each query, [Q, D]: the `top` best rows of the ranges are among them."""
        blocks: Iterator[tuple[int, int]] = (
            (at, min(at + BLOCK, stop)) for start, stop in ranges for at in range(start, stop, BLOCK)
        )
        lock, scan = threading.Lock(), _Scan(queries, top)

        def work() -> None:
            records = np.empty(BLOCK, self._record)
            floats = np.empty((AT_ONCE if len(queries) == 1 else BLOCK, queries.shape[1]), np.float32)
            while True:
                with lock:
                    block = next(blocks, None)
                if block is None:
                    return
                some = records[: block[1] - block[0]]
                self._file.read_into(block[0] * self._record.itemsize, some)
                scan.add(some, floats)

        first = list(itertools.islice(blocks, 2 * READERS))
        blocks = itertools.chain(first, blocks)
        # Products with many queries use all cores by themselves.
        threads = 1 if len(queries) > 1 or len(first) < 4 else READERS
        if threads == 1:
            work()
        else:
            with ThreadPoolExecutor(threads) as pool:
                for done in [pool.submit(work) for _ in range(threads)]:
                    done.result()
        return scan.found()


class _Scan:
    """Collects rows that can be among the `top` best. A row is dropped once `top` others are surely better."""

    def __init__(self, queries: np.ndarray, top: int) -> None:
        self._queries, self._top = np.ascontiguousarray(queries, np.float32), top
        self._length = np.linalg.norm(self._queries, axis=1)
        self._digits, self._unit, self._rest = _digits(self._queries[0])
        self._by_integers = len(queries) == 1 and not missing_packages("index")
        self._least = np.full(len(queries), -np.inf, np.float32)  # the lower bound of the `top`-th best, so far
        self._lowest = [np.empty(0, np.float32) for _ in queries]  # the `top` highest lower bounds
        self._kept: list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = [[] for _ in queries]
        self._lock = threading.Lock()

    def add(self, records: np.ndarray, floats: np.ndarray) -> None:
        slack = records["error"][:, None] * self._length + np.float32(_ROUNDING)
        if self._by_integers:
            products = self._integer_products(records["code"])
            # The rest of the query times a row, which is at most 127 scales long in each of D directions.
            slack += (self._rest * 127 * self._queries.shape[1] ** 0.5) * records["scale"][:, None]
        else:
            products = self._float_products(records, floats)
        products *= records["scale"][:, None]
        self._keep(records, products, slack)

    def _integer_products(self, codes: np.ndarray) -> np.ndarray:
        import numkong

        found = np.asarray(numkong.cdist(codes, self._digits, "dot"))
        return ((found[:, :1] + found[:, 1:] / 254) * self._unit).astype(np.float32)

    def _float_products(self, records: np.ndarray, floats: np.ndarray) -> np.ndarray:
        products, one = np.empty((len(records), len(self._queries)), np.float32), len(self._queries) == 1
        for at in range(0, len(records), len(floats)):
            codes = records["code"][at : at + len(floats)]
            some = floats[: len(codes)]
            np.copyto(some, codes)
            if one:  # products of single rows: BLAS would share a matrix out to threads of its own, which wait here
                np.matmul(some[:, None, :], self._queries[0, :, None], out=products[at : at + len(some), :, None])
            else:
                np.matmul(some, self._queries.T, out=products[at : at + len(some)])
        return products

    def _keep(self, records: np.ndarray, products: np.ndarray, slack: np.ndarray) -> None:
        where, query = np.nonzero(products + slack >= self._least)
        if not len(where):
            return
        with self._lock:
            for number in np.unique(query) if len(self._queries) > 1 else (0,):
                places = where[query == number]
                middle, width = products[places, number], slack[places, number]
                self._kept[number].append((records["row"][places], middle - width, middle + width))
                lowest = np.concatenate([self._lowest[number], middle - width])
                if len(lowest) >= self._top:
                    lowest = np.partition(lowest, len(lowest) - self._top)[len(lowest) - self._top :]
                    self._least[number] = max(self._least[number], lowest[0])
                self._lowest[number] = lowest

    def found(self) -> list[tuple[np.ndarray, np.ndarray]]:
        found = []
        for least, kept in zip(self._least, self._kept):
            if not kept:
                found.append((np.empty(0, np.int64), np.empty(0, np.float32)))
                continue
            rows, lower, upper = (np.concatenate(column) for column in zip(*kept))
            found.append((rows[upper >= least], lower[upper >= least]))
        return found


def _digits(query: np.ndarray) -> tuple[np.ndarray, float, float]:
    """Return int8 [2, D], a unit and the length of the rest: query = unit · (first + second / 254) + rest."""
    unit = max(float(np.abs(query).max()), 1e-30) / 127
    scaled = query.astype(np.float64) / unit
    first = np.rint(scaled)
    second = np.rint((scaled - first) * 254)
    rest = float(np.linalg.norm(scaled - first - second / 254)) * unit
    return np.stack([first, second]).astype(np.int8), unit, rest


def ranked(rows: RowFile, query: np.ndarray, places: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the `top` best of some places and their exact scores, the best first, ties by place."""
    if not len(places):
        return np.empty(0, np.int64), np.empty(0, np.float32)
    places = np.sort(places)  # neighbours in the file are read one after the other
    scores = rows.at(places) @ query
    order = np.lexsort((places, -scores))[:top]
    return places[order], scores[order]


def nearest_centres(rows: np.ndarray, centres: np.ndarray, halves: np.ndarray) -> np.ndarray:
    """Return the centre nearest to each row; `halves` are half the squared lengths of centres."""
    return (rows @ centres.T - halves).argmax(1)


def centres_of(sample: np.ndarray, count: int, rounds: int, draws: np.random.Generator) -> np.ndarray:
    """Return centres of clusters, float32 [count, D], by Lloyd's algorithm. An empty cluster begins anew at a row."""
    centres = sample[draws.choice(len(sample), count, replace=False)].copy()
    for _ in range(rounds):
        halves = 0.5 * np.einsum("cd,cd->c", centres, centres)
        pieces = [sample[at : at + BLOCK] for at in range(0, len(sample), BLOCK)]
        owner = np.concatenate([nearest_centres(piece, centres, halves) for piece in pieces])
        order = np.argsort(owner, kind="stable")
        members, starts = np.unique(owner[order], return_index=True)
        sums = np.add.reduceat(sample[order], starts, axis=0)
        centres = sample[draws.choice(len(sample), count, replace=False)].copy()
        centres[members] = sums / np.bincount(owner, minlength=count)[members, None]
    return centres


def share_found(found: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> float:
    """Return the share of the right places that were found, over all queries."""
    hits = sum(len(np.intersect1d(some, those)) for some, those in zip(found, right))
    return hits / max(1, sum(map(len, right)))
