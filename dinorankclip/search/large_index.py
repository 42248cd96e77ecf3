"""Makes and opens indexes of rows that are too many to be read for each query: 10⁵ to 10⁹.

    exact   records of one byte a number (codes.py), all of them scanned: the answers of a scan of the rows
    graph   an HNSW graph of the package usearch over int8, mapped; the best that it finds are ranked by exact scores
    ivf     the same records sorted by clusters, of which the nearest are scanned; built with bounded memory

`make_index` makes one beside the rows, measures on a sample of queries how many of the true ten nearest it finds, and
chooses with that how far a query looks. Names of files hold a digest of what they depend on: the rows as their folder's
manifest describes them, the kind, and the format.

    index-KIND-DIGEST.rows     the records, or the graph
    index-KIND-DIGEST.npz      clusters: centres and where their records begin (ivf)
    index-KIND-DIGEST.json     written last: size, time and SHA-256 of the files above, recall, and facts of the maker

A file whose size or time is not the one noted is hashed before it is used, and refused if it is another.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dinorankclip.checked_files import read_arrays
from dinorankclip.checksums import DamagedFile, file_hash, read_sealed, sealed
from dinorankclip.extras import missing_packages, naming_extras
from dinorankclip.io import digest, remove_left_files, whole_file, write_json
from dinorankclip.json_shape import COUNT, NUMBER, OBJECT, TEXT, entries
from dinorankclip.search.codes import (
    BLOCK,
    Codes,
    RowFile,
    centres_of,
    encoded,
    nearest_centres,
    ranked,
    record_of,
    share_found,
)
from dinorankclip.system import usable_cores
from dinorankclip.types import UserError

Kind = Literal["exact", "graph", "ivf"]
KINDS: tuple[Kind, ...] = ("exact", "graph", "ivf")
EXACT_TO, GRAPH_TO = 1_000_000, 10_000_000  # rows up to which a kind is the choice
TOP = 10  # places that recall is measured at
RECALL = 0.99  # aimed at on the sample, half of which are rows: those are found more easily than captions
LOOKS: dict[Kind, tuple[int, ...]] = {  # how far a query looks: nothing, candidates of the graph, clusters
    "exact": (0,),
    "graph": (64, 128, 256, 512, 1024),
    "ivf": (4, 8, 16, 32, 64, 128, 256, 512, 1024),
}
_FORMAT = 1
_SAMPLE_OF_CLUSTER, _ROUNDS = 32, 6  # rows of a sample for each cluster, and rounds of Lloyd's algorithm
_SORTED_AT_ONCE = 1 << 17  # records that are sorted in memory: 70 MB at 512 numbers a row
_GRAPH_AT_ONCE = 1 << 14
_SHAPE = entries({"kind": TEXT, "rows": COUNT, "dim": COUNT, "look": COUNT, "recall": NUMBER, "files": OBJECT,
                  "facts": OBJECT}, required=("kind", "rows", "dim", "look", "recall", "files", "facts"))  # fmt: skip
Progress = Callable[[str, int, int], Any]  # what is done, and how many rows of how many


def kind_for(count: int) -> Kind:
    """Return the kind of index that fits a number of rows and the installed packages."""
    if count <= EXACT_TO:
        return "exact"
    return "graph" if count <= GRAPH_TO and not missing_packages("index") else "ivf"


@dataclass
class LargeIndex:
    """Finds nearest rows. `look` says how far; `recall` is the share of the true ten nearest that it found on a sample
    when it was made; `facts` are the maker's."""

    rows: RowFile
    kind: Kind
    path: Path  # of the records or the graph
    look: int = 0
    recall: float = 1.0
    facts: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.kind == "graph":
            with naming_extras("an index of kind graph", "index"):
                from usearch.index import Index
            self._graph: Any = Index.restore(str(self.path), view=True)
            return
        self._codes = Codes(self.path, self.rows.dim)
        if self.kind == "ivf":
            clusters = read_arrays(self.path.with_suffix(".npz"))
            self._centres, self._starts = clusters["centres"], clusters["starts"]

    def nearest(self, query: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the places and scores of the `top` rows nearest to a query [D], the best first, ties by place."""
        return ranked(self.rows, query, self.candidates(query[None], top)[0], top)

    def candidates(self, queries: np.ndarray, top: int) -> list[np.ndarray]:
        """Return for each query places that the best are among."""
        if self.kind == "exact":
            return [rows for rows, _ in self._codes.candidates(queries, [(0, self._codes.count)], top)]
        if self.kind == "graph":
            self._graph.expansion_search = max(self.look, 2 * top)
            found = (self._graph.search(query, max(2 * top, 4 * TOP)) for query in queries)
            return [matches.keys.astype(np.int64) for matches in found]
        return [self._of_clusters(query, top) for query in queries]

    def _of_clusters(self, query: np.ndarray, top: int) -> np.ndarray:
        order = np.argsort(-(self._centres @ query), kind="stable")
        held = np.cumsum(np.diff(self._starts)[order])  # rows in the nearest cluster, the two nearest, …
        nearest = np.sort(order[: max(self.look, int(np.searchsorted(held, top)) + 1)])
        ranges = zip(self._starts[nearest].tolist(), self._starts[nearest + 1].tolist())
        return self._codes.candidates(query[None], ranges, top)[0][0]


def open_index(rows: RowFile, folder: Path, kind: Kind, stamp: str) -> LargeIndex | None:
    """Return a stored index of these rows; None if there is none. Raises `DamagedFile` if its files are others."""
    path = _path(folder, kind, stamp)
    if not path.with_suffix(".json").exists():
        return None
    about = read_sealed(path.with_suffix(".json"), _SHAPE, "delete it, and the index is made again")
    if (about["kind"], about["rows"], about["dim"]) != (kind, len(rows), rows.dim):
        raise DamagedFile(f"{path} is of other rows: delete it, and it is made again")
    for name, (size, time, stored) in about["files"].items():
        state = (folder / name).stat() if (folder / name).is_file() else None
        if state is None or state.st_size != size:
            raise DamagedFile(f"{folder / name} is missing or has another size: delete {path.stem}.*")
        if state.st_mtime_ns != time:
            if file_hash(folder / name) != stored:
                raise DamagedFile(f"{folder / name} is damaged: it is not as it was written; delete {path.stem}.*")
            about["files"][name][1] = state.st_mtime_ns  # a copy: hashed once
            with contextlib.suppress(OSError):
                write_json(path.with_suffix(".json"), sealed(about))
    return LargeIndex(rows, kind, path, about["look"], about["recall"], about["facts"])


def make_index(
    rows: RowFile,
    folder: Path,
    kind: Kind,
    stamp: str,
    queries: np.ndarray,
    progress: Progress,
    facts: Callable[[LargeIndex], dict[str, Any]] = lambda index: {},
) -> LargeIndex:
    """Make an index of rows whose state `stamp` names, in place of older ones of this kind. Recall is measured on
    `queries`, [Q, D], and a sample of the rows themselves."""
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, kind, stamp)
    remove_left_files(folder)
    for old in folder.glob(f"index-{kind}-*"):
        old.unlink(missing_ok=True)
    {"exact": _write_records, "graph": _write_graph, "ivf": _write_clusters}[kind](rows, path, progress)
    index = LargeIndex(rows, kind, path)
    if kind != "exact":
        index.look, index.recall = _measured(index, queries, progress)
    index.facts = facts(index)
    files = [file for file in (path, path.with_suffix(".npz")) if file.exists()]
    noted = {file.name: [file.stat().st_size, file.stat().st_mtime_ns, file_hash(file)] for file in files}
    about = {"kind": kind, "rows": len(rows), "dim": rows.dim, "look": index.look, "recall": index.recall}
    write_json(path.with_suffix(".json"), sealed(about | {"files": noted, "facts": index.facts}))
    return index


def _path(folder: Path, kind: Kind, stamp: str) -> Path:
    return folder / f"index-{kind}-{digest(_FORMAT, kind, stamp)}.rows"


def _pieces(rows: RowFile, size: int, words: str, progress: Progress) -> Iterator[tuple[int, np.ndarray]]:
    for start in range(0, len(rows), size):
        stop = min(start + size, len(rows))
        piece = rows.piece(start, stop)
        if not np.isfinite(piece).all():
            raise UserError(f"rows {start} to {stop} hold numbers that are not finite: embed the images again")
        yield start, piece
        progress(words, stop, len(rows))


def _write_records(rows: RowFile, path: Path, progress: Progress) -> None:
    with whole_file(path) as aside, open(aside, "wb") as file:
        for start, piece in _pieces(rows, 2 * BLOCK, "indexing", progress):
            file.write(encoded(piece, start).data)


def _write_graph(rows: RowFile, path: Path, progress: Progress) -> None:
    with naming_extras("an index of kind graph", "index"):
        from usearch.index import Index
    graph = Index(ndim=rows.dim, metric="ip", dtype="i8", connectivity=16, expansion_add=64)
    for start, piece in _pieces(rows, _GRAPH_AT_ONCE, "indexing", progress):
        graph.add(np.arange(start, start + len(piece)), piece, threads=usable_cores())
    with whole_file(path) as aside:
        graph.save(str(aside))


def _write_clusters(rows: RowFile, path: Path, progress: Progress) -> None:
    """Write records sorted by cluster: a pass finds the cluster of each row, a second one writes the records of many
    rows at a time to their places. The memory is that of these rows, and of one number for each row of all."""
    draws = np.random.default_rng(0)
    count = min(max(1, 1 << round(np.log2(max(1.0, len(rows) ** 0.5)))), len(rows))
    chosen = np.sort(draws.choice(len(rows), min(len(rows), _SAMPLE_OF_CLUSTER * count), replace=False))
    progress(f"clusters: {count} of {len(chosen)} rows", 0, len(rows))
    centres = centres_of(rows.at(chosen), count, _ROUNDS, draws)
    halves = 0.5 * np.einsum("cd,cd->c", centres, centres)
    owner = np.empty(len(rows), np.int32)
    for start, piece in _pieces(rows, 2 * BLOCK, "indexing, first pass", progress):
        owner[start : start + len(piece)] = nearest_centres(piece, centres, halves)
    starts = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=count))])
    free, size = starts[:-1].copy(), record_of(rows.dim).itemsize
    with whole_file(path) as aside, open(aside, "r+b", buffering=0) as file:
        file.truncate(len(rows) * size)
        for first in range(0, len(rows), _SORTED_AT_ONCE):
            owners = owner[first : first + _SORTED_AT_ONCE]
            records = np.empty(len(owners), record_of(rows.dim))
            for at in range(0, len(owners), 2 * BLOCK):
                stop = min(at + 2 * BLOCK, len(owners))
                records[at:stop] = encoded(rows.piece(first + at, first + stop), first + at)
            order = np.argsort(owners, kind="stable")
            members, begins = np.unique(owners[order], return_index=True)
            for member, begin, end in zip(members.tolist(), begins, [*begins[1:], len(owners)]):
                file.seek(int(free[member]) * size)
                _write_whole(file, records[order[begin:end]])
                free[member] += end - begin
            progress("indexing, second pass", first + len(owners), len(rows))
    with whole_file(path.with_suffix(".npz")) as aside, open(aside, "wb") as file:
        np.savez(file, centres=centres, starts=starts)


def _write_whole(file: io.RawIOBase, records: np.ndarray) -> None:
    """Write all records: an unbuffered file may take a part of them, on a disk that is nearly full."""
    rest: Any = memoryview(records.view(np.uint8))  # type: ignore[arg-type]  # NumPy's stubs lack the buffer protocol
    while len(rest):
        rest = rest[file.write(rest) or 0 :]


def _measured(index: LargeIndex, queries: np.ndarray, progress: Progress) -> tuple[int, float]:
    """Return how far to look for `RECALL`, and the recall that this gave."""
    progress("measuring recall", 0, 1)
    right = true_nearest(index.rows, queries, TOP)
    look, recall = 0, 0.0
    for look in LOOKS[index.kind]:
        index.look = look
        recall = share_found([index.nearest(query, TOP)[0] for query in queries], right)
        if recall >= RECALL:
            break
    return look, recall


def true_nearest(rows: RowFile, queries: np.ndarray, top: int) -> list[np.ndarray]:
    """Return the places of the rows nearest to each query by a scan of all rows."""
    best = np.full((len(queries), top), -np.inf, np.float32)
    places = np.zeros((len(queries), top), np.int64)
    for start in range(0, len(rows), 2 * BLOCK):
        scores = queries @ rows.piece(start, min(start + 2 * BLOCK, len(rows))).T
        both = np.concatenate([best, scores], 1)
        order = np.argsort(-both, axis=1, kind="stable")[:, :top] if not start else \
            np.argpartition(-both, top - 1, axis=1)[:, :top]  # fmt: skip
        known = np.concatenate([places, np.broadcast_to(np.arange(start, start + scores.shape[1]), scores.shape)], 1)
        best, places = np.take_along_axis(both, order, 1), np.take_along_axis(known, order, 1)
    return [places[at][np.isfinite(best[at])] for at in range(len(queries))]


def sample_queries(rows: RowFile, words: np.ndarray, count: int = 64) -> np.ndarray:
    """Return queries for recall: up to `count` in words, [B, D], and as many rows of photos."""
    places = np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(np.int64))
    return np.concatenate([words[:count], rows.at(places)])
