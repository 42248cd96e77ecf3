"""Latency and memory of the server on many rows: searches, duels, the first page, memory above rows and models.

    python -m bench.serve_speed

Two models of an embedding width of 512 over 100,000 images with a caption each; rows are random, of length one, and
memory-mapped as those of `explore` are. The server is a process of its own; requests go through HTTP, one after the
other, from this process. The text of a query is embedded before its search is timed. The first page is that of
`explore`, with its style sheet and scripts. The peak of memory is taken after all requests, and after what looks at the
whole set: the comparison of both models both ways, planes, and the captions of lowest cosine. Wanted on two cores: 95 %
of the searches within 60 ms and of the duels within 150 ms, the first page within 1.5 s of the loaded models, and at
most 200 MB above rows and models.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import os
import re
import statistics
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import tyro

TOKEN = "token-of-the-bench"
WANTED = {"search": 60.0, "duel by words": 150.0, "duel by caption": 150.0, "duel by image": 150.0}  # ms, 95 %
FIRST_PAGE, MEMORY = 1.5, 200.0  # seconds, MB
WHOLE_SET = ("/api/duel/summary?direction=t2i", "/api/duel/summary?direction=i2t", "/api/plane?rows=10000",
             "/api/data/lowest-cosine")  # fmt: skip
TABLES = ("a-images", "a-texts", "b-images", "b-texts")


@dataclass(frozen=True)
class Arguments:
    rows: int = 100_000
    width: int = 512
    requests: int = 200
    """Of each kind."""
    threads: int = 2
    out: Path | None = None
    """The folder of the record; by default it is printed only."""


def write_rows(folder: Path, rows: int, width: int) -> None:
    import numpy as np

    draw = np.random.default_rng(0)
    for name in TABLES:
        table = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, (rows, width))
        for start in range(0, rows, 8192):
            block = draw.standard_normal((min(8192, rows - start), width), np.float32)
            table[start : start + len(block)] = block / np.linalg.norm(block, axis=1, keepdims=True)
        table.flush()


def served(channel: Connection, folder: Path, arguments: Arguments) -> None:
    """Load two models, report, and serve until the other end says so."""
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(arguments.threads)
    import numpy as np
    import torch
    import uvicorn

    from bench.harness import forget_peak, resident
    from dinorankclip.device import choose
    from dinorankclip.models.joint import JointModel
    from dinorankclip.models.loaded import LoadedModel
    from dinorankclip.models.trunk import trunk_config
    from dinorankclip.serve.app import create_app  # as the command does, before the models are loaded
    from dinorankclip.serve.collection import Collection, Rows
    from dinorankclip.serve.run_server import bound_socket
    from dinorankclip.serve.served_model import ServedModel
    from dinorankclip.serve.state import ServedState

    torch.set_num_threads(arguments.threads)
    config = trunk_config("drc-tiny") | {"embed_dim": arguments.width}
    loaded = [LoadedModel(JointModel(config, seed), f"model {seed}", choose("cpu", "fp32")) for seed in (0, 1)]
    for model in loaded:
        model.encode_text(["a first query"])
    forget_peak()
    models_hold, began = resident("VmRSS"), time.time()

    tables = {name: np.load(folder / f"{name}.npy", mmap_mode="c") for name in TABLES}
    collection = Collection("random", "all", Blank(arguments.rows))
    collection.usable = np.arange(arguments.rows)
    collection.causes = np.full(arguments.rows, -1, np.int8)
    collection.captions = [(f"caption {place}",) for place in range(arguments.rows)]
    models = [ServedModel(id, model) for id, model in zip("ab", loaded)]
    bound = bound_socket("127.0.0.1", 0)
    state = ServedState(models, collection, token=TOKEN, runs=folder, port=bound.getsockname()[1])
    state.rows = {id: Rows(tables[f"{id}-images"], tables[f"{id}-texts"]) for id in "ab"}
    state.ready = True

    server = uvicorn.Server(uvicorn.Config(create_app(state, pages=True), log_level="error", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    channel.send((state.port, began, models_hold))
    channel.recv()
    rows_hold = sum(table.nbytes for table in tables.values())
    channel.send((resident("VmHWM"), rows_hold))
    server.should_exit = True
    thread.join()


class Blank:
    """Stands for the images of a set that are never looked at."""

    fingerprint = "blank"

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def key(self, index: int) -> str:
        return str(index)


def ask(connection: http.client.HTTPConnection, path: str) -> tuple[float, bytes]:
    """Milliseconds until the whole answer is here, and the answer. Long work is asked for until it is done."""
    begin = time.perf_counter()
    while True:
        connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != http.client.ACCEPTED:
            break
        time.sleep(float(answer.getheader("Retry-After", "1")))
    took = 1000 * (time.perf_counter() - begin)
    if answer.status != http.client.OK:
        raise SystemExit(f"{path}: {answer.status} {content[:200]!r}")
    return took, content


def cpu_seconds(pid: int | None) -> float:
    """Seconds that a process has computed, which other work on the machine changes little; 0 without /proc."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.is_file():
        return 0.0
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def measure(arguments: Arguments) -> dict[str, Any]:
    fresh = multiprocessing.get_context("spawn")
    ours, theirs = fresh.Pipe()
    with tempfile.TemporaryDirectory() as scratch:
        write_rows(Path(scratch), arguments.rows, arguments.width)
        process = fresh.Process(target=served, args=(theirs, Path(scratch), arguments))
        process.start()
        port, began, models_hold = ours.recv()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        _, page = ask(connection, "/")
        for name in re.findall(r'(?:src|href)="(/assets/[^"]+)"', page.decode()):
            ask(connection, name)
        first_page = time.time() - began
        queries = [urlencode({"q": f"query number {number}", "k": 12}) for number in range(arguments.requests)]
        for words in queries:
            ask(connection, f"/api/duel?{words}")  # embeds the text by both models
        paths = {
            "search": [f"/api/search?{words}" for words in queries],
            "duel by words": [f"/api/duel?{words}" for words in queries],
            "duel by caption": [f"/api/duel?caption={number}&k=10" for number in range(arguments.requests)],
            "duel by image": [f"/api/duel?image={number}&k=10" for number in range(arguments.requests)],
        }
        found, busy = {}, {}
        for name, of_kind in paths.items():
            ask(connection, of_kind[0])  # pages of the tables come into memory now
            before = cpu_seconds(process.pid)
            found[name] = [ask(connection, path)[0] for path in of_kind]
            busy[name] = 1000 * (cpu_seconds(process.pid) - before) / len(of_kind)
        whole_set = {path: ask(connection, path)[0] / 1000 for path in WHOLE_SET}
        ours.send("enough")
        peak, rows_hold = ours.recv()
        process.join()
    above = (peak - models_hold - rows_hold) / 1e6
    return {
        "options": {key: value for key, value in asdict(arguments).items() if key != "out"},
        "first page, seconds": first_page,
        "whole set, seconds": whole_set,
        "models, MB": models_hold / 1e6,
        "rows, MB": rows_hold / 1e6,
        "above both, MB": above,
        "milliseconds": {
            name: {
                "median": statistics.median(values),
                "95 %": statistics.quantiles(values, n=20)[-1],
                "most": max(values),
                "CPU": busy[name],
                "wanted": WANTED[name],
            }
            for name, values in found.items()
        },
    }


def in_markdown(record: dict[str, Any]) -> str:
    options = record["options"]
    lines = [
        "# The server on many rows",
        "",
        f"{options['rows']:,} images and as many captions × {options['width']}, two models, "
        f"{options['threads']} threads, {options['requests']} requests of each kind through HTTP.",
        "",
        "| request | median ms | 95 % within | most | wanted | CPU ms of the server |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, took in record["milliseconds"].items():
        numbers = f"{took['median']:.1f} | {took['95 %']:.1f} | {took['most']:.1f}"
        lines.append(f"| {name} | {numbers} | ≤ {took['wanted']:.0f} | {took['CPU']:.1f} |")
    lines += [
        "",
        f"First page {record['first page, seconds']:.2f} s after the models were loaded (wanted ≤ {FIRST_PAGE}). "
        f"The whole set both ways, with progress: {sum(record['whole set, seconds'].values()):.0f} s. "
        f"Peak memory {record['above both, MB']:.0f} MB above rows ({record['rows, MB']:.0f} MB) and models "
        f"({record['models, MB']:.0f} MB, with torch; wanted ≤ {MEMORY:.0f}).",
    ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    arguments = tyro.cli(Arguments, description=__doc__, args=argv)

    from bench.harness import in_words, machine_now, today, write_dated

    about = machine_now(arguments.threads, ("torch", "numpy", "fastapi", "uvicorn"))
    record = {"machine": about} | measure(arguments)
    text = f"{in_markdown(record)}\n\nMachine: {in_words(about)}."
    if arguments.out is None:
        print(json.dumps(record["milliseconds"], indent=1), text, sep="\n")
    else:
        write_dated(arguments.out, "serve-speed", today(), record, text)


if __name__ == "__main__":
    main()
