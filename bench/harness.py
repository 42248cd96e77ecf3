"""Comparisons on one machine, of sides that were timed in turn: ratios with their spread, and the dated record of them.

A ratio is taken within a round; what is reported is the median over rounds with its range. Noise is the spread of one
side against itself, (slowest - fastest) / median: a ratio means nothing below it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

import torch
from tqdm import tqdm

# What figures depend on beside the code. No names of hosts or folders: a record may be published.

PACKAGES = ("torch", "open_clip_torch", "torchvision", "pillow", "simplejpeg", "webdataset")
LOAD = "load at the start"


def machine(threads: int, packages: Sequence[str] = PACKAGES) -> dict[str, object]:
    """What stays from run to run."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "versions": {name: version(name) for name in packages},
    }


def machine_now(threads: int, packages: Sequence[str] = PACKAGES) -> dict[str, object]:
    """With what else the machine has to do; to be asked before the first timing."""
    return machine(threads, packages) | {LOAD: load()}


def load() -> float:
    return round(os.getloadavg()[0], 2)


def in_words(about: dict) -> str:
    versions = ", ".join(f"{package} {number}" for package, number in about["versions"].items())
    busy = f", {LOAD} {about[LOAD]}" if LOAD in about else ""
    return f"{about['processor']}, {about['cores']} cores, {about['threads']} torch threads{busy}; {versions}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.is_file() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


# Records of the benches, `NAME-DATE.json` and `.md` in one folder.

FOLDERS = ("cache", "data", "out", "pairs")  # options that may be paths


def today() -> str:
    return datetime.date.today().isoformat()


def options_record(options: argparse.Namespace) -> dict[str, object]:
    """Options as a record tells them: of folders the names, not the paths, since it may be published."""
    return {key: Path(value).name if value and key in FOLDERS else value for key, value in vars(options).items()}


def write_dated(out: Path, name: str, date: str, record: object, text: str) -> None:
    """The text is printed, too."""
    written = write_json(out, name, date, record)
    written.with_suffix(".md").write_text(text.rstrip() + "\n")
    print(f"\n{text.rstrip()}\n\nwritten to {written} and .md")


def write_json(out: Path, name: str, date: str, record: object) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    target = out / f"{name}-{date}.json"
    target.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return target


def newest(folder: Path, name: str) -> dict:
    """Dates in the names sort; `NAME-quick` is another name."""
    kept = sorted(folder.glob(f"{name}-2*.json"))
    if not kept:
        raise SystemExit(f"no record of {name} in {folder}")
    return json.loads(kept[-1].read_text())


# How many times as long one side takes as another, and how that is written.


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Taken within each round: the median over rounds, with its range."""
    each = [a / b for a, b in zip(above, below)]
    return {"median": statistics.median(each), "least": min(each), "most": max(each)}


def written(found: dict[str, float], digits: int = 2) -> str:
    """Median (range)."""
    median, least, most = (f"{found[key]:.{digits}f}" for key in ("median", "least", "most"))
    return f"{median} ({least}–{most})"


# Sides timed in turn, so that whatever slows the machine for a while slows all of them alike.

Measured = Mapping[str, float]


def alternate(
    sides: Mapping[str, Callable[[], Measured]],
    rounds: int,
    warmups: int = 1,
    title: str = "",
    there_and_back: bool = True,
) -> dict[str, list[float]]:
    """`seconds` of each side in each round, after `warmups` rounds that are not counted."""
    found = in_turn(sides, rounds, warmups, title, there_and_back)
    return {name: [one["seconds"] for one in measured] for name, measured in found.items()}


def in_turn(
    sides: Mapping[str, Callable[[], Measured]],
    rounds: int,
    warmups: int = 1,
    title: str = "",
    there_and_back: bool = True,
) -> dict[str, list[Measured]]:
    """All that each side measured of itself, round by round.

    A round runs every side once. Every second round runs them backwards, unless `there_and_back` is off: going back,
    the last side of a round is the first of the next, and runs with what its own run has just left behind.
    """
    found: dict[str, list[Measured]] = {name: [] for name in sides}
    for turn in tqdm(range(warmups + rounds), desc=title, unit="round", leave=False):
        for name in list(sides)[:: -1 if there_and_back and turn % 2 else 1]:
            measured = sides[name]()
            if turn >= warmups:
                found[name].append(measured)
    return found


def timed(run: Callable[[], object]) -> Callable[[], Measured]:
    """A side of this process."""
    return lambda: {"seconds": seconds(run)}


def seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


# What a process holds in memory, now and at the most. From /proc, since getrusage's maximum survives exec: a child
# would start at its parent's peak.


def resident(which: str) -> int:
    """Bytes of this process in memory: now (VmRSS) or at the most (VmHWM). 0 where there is no /proc."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return 0
    return 1024 * int(next(line for line in status.read_text().splitlines() if line.startswith(which)).split()[1])


def forget_peak() -> None:
    reset = Path("/proc/self/clear_refs")
    if reset.is_file():
        reset.write_text("5")  # see proc(5): resets the peak resident set size


# Peak memory of something that is built and run in a process of its own.

Build = Callable[..., Callable[[], None]]
SMALL = 16


def peak_memory(build: Build, *arguments) -> float:
    """Bytes a fresh process grows by while it runs, inputs not counted. The first argument of `build` is a size."""
    fresh = multiprocessing.get_context("spawn")
    receive, send = fresh.Pipe(False)
    process = fresh.Process(target=_grown, args=(send, build, arguments, torch.get_num_threads()))
    process.start()
    grown = receive.recv()
    process.join()
    return grown


def _grown(channel, build: Build, arguments: tuple, threads: int) -> None:
    torch.set_num_threads(threads)
    run = build(*arguments)
    small = build(SMALL, *arguments[1:])  # loads what is loaded once
    small()
    before = resident("VmRSS")
    forget_peak()  # that of building the inputs
    run()
    channel.send(resident("VmHWM") - before)


@dataclass
class Comparison:
    """Seconds of each side, round by round. `base` is the side that the others are measured against.

    As a speed (the default) a ratio says how many times faster than `base` a side is, and `wanted` is the least;
    as a cost it says how many times longer a side takes, and `wanted` is the most.
    """

    title: str
    seconds: dict[str, list[float]]
    base: str
    items: int  # pairs or images that one run of a side handles
    unit: str = "pairs"
    cost: bool = False
    wanted: dict[str, float] = field(default_factory=dict)
    note: str = ""

    def ratio(self, side: str) -> dict[str, float]:
        own, base = self.seconds[side], self.seconds[self.base]
        return ratio(own, base) if self.cost else ratio(base, own)

    def noise(self, side: str) -> float:
        values = self.seconds[side]
        return (max(values) - min(values)) / statistics.median(values)

    def met(self, side: str) -> bool | None:
        """Whether the median reaches what was wanted; None if nothing was."""
        if side not in self.wanted:
            return None
        median = self.ratio(side)["median"]
        return median <= self.wanted[side] if self.cost else median >= self.wanted[side]

    def as_record(self) -> dict:
        sides = {
            side: {"ratio": self.ratio(side), "noise": self.noise(side), "met": self.met(side)} for side in self.seconds
        }
        return asdict(self) | {"sides": sides}

    def as_markdown(self) -> str:
        what = f"times as long as {self.base}" if self.cost else f"times faster than {self.base}"
        lines = [
            f"## {self.title}",
            "",
            *([self.note, ""] if self.note else []),
            f"| side | seconds | {self.unit}/s | noise | {what}, median (range) | wanted |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for side, values in self.seconds.items():
            middle = statistics.median(values)
            wanted = f"{'≤' if self.cost else '≥'} {self.wanted[side]:g}" if side in self.wanted else ""
            shown = "" if side == self.base else written(self.ratio(side))
            lines.append(
                f"| {side} | {middle:.4g} | {self.items / middle:.4g} | {self.noise(side):.0%} | {shown} | {wanted} |"
            )
        return "\n".join(lines) + "\n"


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The flags of every bench that makes comparisons."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", default="scenes", help="real pairs: a retrieval-layout folder; default: built in")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="torch threads of the measured process")
    parser.add_argument("--rounds", type=int, help="timed rounds; default: the bench's own")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs; not for the record")
    parser.add_argument("--out", type=Path, default=Path("docs/bench"), help="folder for the dated JSON and Markdown")
    return parser


def write_record(
    name: str, comparisons: Sequence[Comparison], options: argparse.Namespace, about: dict, extra: str = "", **more
) -> None:
    """`name-DATE.json` and `.md` in `options.out`. `about` is `machine_now()` from before the first timing."""
    date = today()
    record = {"bench": name, "date": date, "machine": about, "options": options_record(options)}
    record |= {"comparisons": [one.as_record() for one in comparisons]} | more
    text = "\n".join([heading(name, date, about, options), *(one.as_markdown() for one in comparisons), extra])
    write_dated(options.out, f"{name}{'-quick' * options.quick}", date, record, text)


def heading(name: str, date: str, about: dict, options: argparse.Namespace) -> str:
    return (
        f"# Bench: {name}, {date}\n\n"
        f"{in_words(about)}. Pairs: {Path(options.pairs).name}.\n"
        "Ratios: median (range) over alternating rounds. Noise: (slowest - fastest) / median of one side.\n"
    )
