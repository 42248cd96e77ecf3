"""Time, memory and recall of the three kinds of index over clustered rows; each part is a process of its own.

    python -m bench.large_index rows --folder DIR --rows 1000000          # 2 GB
    python -m bench.large_index make --folder DIR --kind exact            # or graph, ivf
    python -m bench.large_index ask --folder DIR --kind exact --cold      # with nothing else running
    python -m bench.large_index page --folder DIR …                       # the dated record of one or more folders

Rows are a mixture: 20,000 centres in 64 dimensions, spread around them with 0.6 of their deviation, mapped to 512
dimensions whose weights fall off, with noise in all of them and a common direction, and made unit-norm. Queries are
drawn from the same centres with more noise and another common direction, as captions lie beside images: 200 of them.
"Cold" means that the pages of the files are given back to the system before each query (`posix_fadvise`); the record
tells how many bytes then came from the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip.data.row_store import npy_header
from dinorankclip.search.codes import RowFile, share_found
from dinorankclip.search.large_index import LOOKS, TOP, make_index, open_index, sample_queries, true_nearest

DIM, INNER, CENTRES, SPREAD, PIECE, QUERIES, ASKED = 512, 64, 20_000, 0.6, 1 << 15, 200, 50
ROWS, RIGHT, RECORD = "images.npy", "right.npz", "record.json"
PACKAGES = ("numpy", "usearch")


class Mixture:
    def __init__(self) -> None:
        draws = np.random.default_rng(26)
        self.centres = draws.standard_normal((CENTRES, INNER), np.float32)
        falling = np.arange(1, INNER + 1, dtype=np.float32)[:, None] ** -0.35
        self.map = draws.standard_normal((INNER, DIM), np.float32) * falling
        self.common = draws.standard_normal((2, DIM), np.float32) * 2  # of images, of captions

    def draw(self, count: int, seed: int, side: int = 0) -> np.ndarray:
        draws = np.random.default_rng((seed, side))
        inner = self.centres[draws.integers(0, CENTRES, count)]
        inner = inner + (SPREAD + 0.3 * side) * draws.standard_normal(inner.shape, np.float32)
        rows = inner @ self.map + (0.8 + 0.4 * side) * draws.standard_normal((count, DIM), np.float32)
        rows += self.common[side]
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def memory() -> dict[str, float]:
    """Return megabytes in memory: at the most, and now what is the process's own and what is mapped from files."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    found = {line[0]: int(line[1]) / 1024 for line in lines if len(line) == 3 and line[2] == "kB"}
    return {"peak": found["VmHWM:"], "own": found["RssAnon:"], "mapped": found["RssFile:"]}


def write_rows(folder: Path, count: int) -> None:
    mixture, begun = Mixture(), time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ROWS, "wb") as file:
        file.write(npy_header((count, DIM), np.dtype("<f4"), 128))
        for start in range(0, count, PIECE):
            file.write(mixture.draw(min(PIECE, count - start), start).data)
        file.flush()
        os.fsync(file.fileno())
    note(folder, "rows", {"rows": count, "seconds": time.perf_counter() - begun, "memory": memory()})


def make(folder: Path, kind: Any) -> None:
    rows, begun, spent = RowFile(folder / ROWS), time.perf_counter(), time.process_time()
    queries, last = sample_queries(rows, Mixture().draw(64, 1, side=1)), [0.0]

    def progress(what: str, done: int, of: int) -> None:
        if time.perf_counter() - last[0] > 10 or done == of:
            last[0] = time.perf_counter()
            print(f"{last[0] - begun:7.1f} s  {what} {done:,} of {of:,}", flush=True)

    index = make_index(rows, folder, kind, f"{len(rows)} rows", queries, progress)
    note(folder, f"made {kind}", {
        "seconds": time.perf_counter() - begun, "core-seconds": time.process_time() - spent, "memory": memory(),
        "recall": index.recall, "look": index.look, "bytes": index.path.stat().st_size,
    })  # fmt: skip


def ask(folder: Path, kind: Any, cold: bool, asked: int, measured: bool) -> None:
    rows = RowFile(folder / ROWS)
    index, queries = open_index(rows, folder, kind, f"{len(rows)} rows"), Mixture().draw(QUERIES, 2, side=1)
    assert index is not None, f"make the index {kind} first"
    before, took, found, disk, begin = memory(), [], [], [], time.process_time()
    for query in queries[:asked]:
        if cold:
            for path in (index.path, folder / ROWS):
                forget(path)
        read, begun = read_bytes(), time.perf_counter()
        found.append(index.nearest(query, TOP)[0])
        took.append(1000 * (time.perf_counter() - begun))
        disk.append((read_bytes() - read) / 1e6)
    result = {
        "queries": asked, "median": float(np.median(took)), "p95": float(np.percentile(took, 95)), "most": max(took),
        "core-ms": 1000 * (time.process_time() - begin) / asked,
        "MB from disk": float(np.median(disk)), "memory before": before, "memory": memory(), "look": index.look,
    }  # fmt: skip
    if not cold:
        right = stored_right(folder, rows, queries[:asked])
        result["recall"] = share_found(found, right)
        for look in LOOKS[kind] if measured and kind != "exact" else ():
            index.look, begun = look, time.perf_counter()
            share = share_found([index.nearest(query, TOP)[0] for query in queries[:asked]], right)
            result[f"recall, look {look}"] = [share, 1000 * (time.perf_counter() - begun) / asked]
    note(folder, f"asked {kind} {'cold' if cold else 'warm'}", result)


def stored_right(folder: Path, rows: RowFile, queries: np.ndarray) -> list[np.ndarray]:
    if not (folder / RIGHT).exists() or len(np.load(folder / RIGHT)["right"]) < len(queries):
        np.savez(folder / RIGHT, right=np.stack(true_nearest(rows, queries, TOP)))
    right = np.load(folder / RIGHT)["right"]
    return [np.asarray(some) for some in right[: len(queries)]]


def forget(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(number)


def read_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def note(folder: Path, name: str, found: dict[str, Any]) -> None:
    path = folder / RECORD
    record = json.loads(path.read_text()) if path.exists() else {}
    record[name] = found | {"load at the end": round(os.getloadavg()[0], 2)}
    path.write_text(json.dumps(record, indent=1))
    print(f"{name}: {json.dumps(record[name])}", flush=True)


def page(folders: list[Path], out: Path) -> None:
    from bench.harness import in_words, machine, today, write_dated

    records = {folder.name: json.loads((folder / RECORD).read_text()) for folder in folders}
    about = machine(os.cpu_count() or 1, PACKAGES)
    lines = [
        "# Indexes of many rows", "", __doc__.split("\n\n")[2].strip(), "",
        "| rows | index | made in | of core-seconds | peak memory, making | size | recall@10 | cache | p95 | median "
        "| core-ms a query "
        "| from disk a query | peak memory, asking |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for record in records.values():
        for name, found in record.items():
            if not name.startswith("asked"):
                continue
            _, kind, cache = name.split()
            made = record[f"made {kind}"]
            recall = record.get(f"asked {kind} warm", {}).get("recall", made["recall"])
            lines.append(
                f"| {record['rows']['rows']:,} | {kind} | {made['seconds']:.0f} s | {made['core-seconds']:.0f} "
                f"| {made['memory']['peak']:.0f} MB | {made['bytes'] / 1e9:.2f} GB | {recall:.3f} | {cache} "
                f"| {found['p95']:.1f} ms | {found['median']:.1f} ms | {found['core-ms']:.1f} "
                f"| {found['MB from disk']:.0f} MB "
                f"| {found['memory']['peak']:.0f} MB ({found['memory']['mapped']:.0f} mapped) |"
            )
    text = "\n".join([*lines, "", f"Machine: {in_words(about)}."])
    write_dated(out, "large-index", today(), {"machine": about} | records, text)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("rows", "make", "ask", "page"))
    parser.add_argument("--folder", type=Path, nargs="+", required=True)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kind", choices=tuple(LOOKS), default="exact")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--queries", type=int, default=ASKED)
    parser.add_argument("--every-look", action="store_true", help="recall and mean time of every look")
    parser.add_argument("--out", type=Path, default=Path("docs/bench"))
    options = parser.parse_args(argv)
    folder = options.folder[0]
    if options.part == "rows":
        write_rows(folder, options.rows)
    elif options.part == "make":
        make(folder, options.kind)
    elif options.part == "ask":
        ask(folder, options.kind, options.cold, options.queries, options.every_look)
    else:
        page(options.folder, options.out)


if __name__ == "__main__":
    main()
