"""Cost of a step of cells against that of CLIP, each alternating with CLIP in one process:

    python -m bench.step_cost --cells optimisers league-a --trunks drc-tiny:128 ViT-B-32:32

Cells are those of leagues_cells.toml. Batches are ready in memory, and the teacher's features are random numbers of the
right shapes. A round takes one step of both sides at each of four places of a run (some parts act late, others early).
The clock is the core-seconds of the process. A ratio is taken within a round; the result is the median over rounds
with its 95 % interval, which assumes no distribution.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from math import comb
from pathlib import Path

import torch

from bench.harness import arguments, heading, in_turn, machine_now, options_record, today, write_dated
from bench.leagues_cells import Cell, Leagues, World, read_leagues
from dinorankclip.config import with_changes
from dinorankclip.train.assemble import RunParts, assemble
from dinorankclip.train.step import backward
from dinorankclip.types import Progress, UserError

Steps = Callable[[], dict[str, float]]
PLACES = (0.125, 0.375, 0.625, 0.875)  # shares of a run at which steps are taken: the middle of each quarter
LENGTH = Progress(0, 10_000, 20)
PRESET_OF = {"ViT-B-32": "cc3m", "drc-photo": "flickr8k"}  # trunk → preset whose students go with it; else scenes


@dataclass(frozen=True)
class Ratio:
    """Holds a cost ratio: the median over rounds with its interval, and core-seconds of a step."""

    median: float
    low: float
    high: float
    rounds: int
    step: float  # core-seconds

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def over(self, ratio: float) -> Ratio:
        """Return the ratio divided by that of two equal sides, which takes the bench's own bias away."""
        return replace(self, median=self.median / ratio, low=self.low / ratio, high=self.high / ratio)


def median_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Return the interval of the median that order statistics give: [x_(k), x_(n+1-k)] for the largest k with
    2·P(Binomial(n, ½) < k) ≤ 1 - level; the range where n is too small for any."""
    ordered, n = sorted(values), len(values)
    k, below = 0, 0.0
    while 2 * (below + comb(n, k) / 2**n) <= 1 - level:
        below += comb(n, k) / 2**n
        k += 1
    return ordered[max(0, k - 1)], ordered[min(n - 1, n - k)]


def steps_of(parts: RunParts, batches: Callable[[], object] | None = None, places: Sequence[float] = PLACES) -> Steps:
    """Return a side: one step at each place of a run. Batches come from the run's loader, reading included, unless
    `batches` gives them."""
    state, placement = parts.state, parts.placement
    loader = iter(parts.loader)
    take = batches or (lambda: next(loader))

    def run() -> dict[str, float]:
        begin = time.process_time()
        for share in places:
            progress = Progress(int(share * LENGTH.total_steps), LENGTH.total_steps, LENGTH.epochs)
            batch = take()
            backward(state.model, state.objective, batch, progress, placement, parts.settings.budget.chunk)  # type: ignore[arg-type]
            state.updater.step(progress, state.model.logit_scale)
        return {"seconds": (time.process_time() - begin) / len(places)}

    return run


def cost_ratio(own: Steps, base: Steps, rounds: int, title: str = "") -> Ratio:
    """Return the cost of a side relative to another, in alternating rounds after one that is not counted."""
    found = in_turn({"own": own, "base": base}, rounds, title=title)
    seconds = {name: [one["seconds"] for one in measured] for name, measured in found.items()}
    each = [a / b for a, b in zip(seconds["own"], seconds["base"])]
    return Ratio(statistics.median(each), *median_interval(each), rounds, statistics.median(seconds["own"]))


def refuse_locked(cell: Cell) -> None:
    if cell.locked:
        raise UserError(f"{cell.name} reads cached features in place of pixels: `bench.leagues cost` measures its step")


def ready_side(
    cell: Cell, world: World, data: str, changes: dict[str, object], places: Sequence[float] = PLACES
) -> Steps:
    """Build a side of batches in memory; random features replace a teacher's."""
    refuse_locked(cell)
    settings = with_changes(cell.settings(world, data), changes)
    with contextlib.redirect_stdout(io.StringIO()):
        parts = assemble(settings, dry=True)
    with contextlib.closing(iter(parts.loader)) as loader:
        batches = cycle(list(islice(loader, 2)))
    return steps_of(parts, lambda: next(batches), places)


def compare(
    leagues: Leagues,
    groups: Sequence[str],
    trunk: str,
    batch: int,
    data: str,
    rounds: int,
    places: Sequence[float] = PLACES,
) -> dict[str, Ratio]:
    """Measure all cells of some groups on one trunk, with the settings of the preset that goes with it."""
    world = World(trunk, PRESET_OF.get(trunk, "scenes"), {}, {})
    changes = {"model.trunk": trunk, "budget.batch": batch, "budget.precision": "fp32"}
    for group in groups:
        for cell in leagues.group(group).cells.values():
            refuse_locked(cell)
    base = ready_side(leagues.reference, world, data, changes, places)
    ratios: dict[str, Ratio] = {}
    measured: dict[str, Ratio] = {}  # by digest: equal cells are measured once
    for group in groups:
        for name, cell in leagues.group(group).cells.items():
            if cell.digest not in measured:
                side = ready_side(
                    cell, world, data, changes, places
                )  # two models at a time: large ones fill the memory
                measured[cell.digest] = cost_ratio(side, base, rounds, f"{trunk} {name}")
            ratios[f"{group.partition('/')[0]}/{name}"] = measured[cell.digest]
            print(f"{trunk} batch {batch}, {name}: {measured[cell.digest]}", flush=True)
    return ratios


def as_markdown(trunk: str, batch: int, ratios: dict[str, Ratio]) -> str:
    lines = [
        f"## {trunk}, batch {batch}",
        "",
        "| cell | core-seconds a step | times the reference, median [95 %] |",
        "| --- | --: | --- |",
    ]
    lines += [f"| {name} | {found.step:.4g} | {found} |" for name, found in ratios.items()]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> None:
    from dinorankclip.data.scenes.make import make_scenes

    parser = arguments(__doc__)
    parser.add_argument(
        "--cells", nargs="+", default=["optimisers"], help="groups of leagues_cells.toml, or GROUP/CELL"
    )
    parser.add_argument("--trunks", nargs="+", default=["drc-tiny:128", "ViT-B-32:32"], help="TRUNK:BATCH …")
    parser.add_argument(
        "--places", nargs="+", type=float, default=PLACES, help="shares of a run at which steps are taken"
    )
    parser.set_defaults(threads=1)
    options = parser.parse_args(argv)
    if options.quick:
        options.trunks = ["drc-tiny:16"]
    about, date, leagues = machine_now(options.threads), today(), read_leagues()
    torch.set_num_threads(options.threads)
    record, text = [], [heading("step-cost", date, about, options), __doc__.split("\n\n", 2)[2]]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        trunks = [(name, int(batch)) for name, batch in (trunk.rsplit(":", 1) for trunk in options.trunks)]
        most = 2 * max(batch for _, batch in trunks)
        none = {"kinds_train": 0, "kinds_test": 0, "fine_train": 0, "fine_test": 0}
        data = make_scenes(Path(folder) / "scenes", train=most, val=16, test=16, workers=1, **none)
        for name, batch in trunks:
            rounds = options.rounds or (2 if options.quick else 15 if name.startswith("drc-") else 6)
            ratios = compare(leagues, options.cells, name, batch, str(data), rounds, options.places)
            record.append({"trunk": name, "batch": batch, "cells": {k: asdict(v) for k, v in ratios.items()}})
            text.append(as_markdown(name, batch, ratios))
            print(text[-1], flush=True)
    stored = {"bench": "step-cost", "date": date, "machine": about, "options": options_record(options)}
    write_dated(options.out, f"step-cost{'-quick' * options.quick}", date, stored | {"trunks": record}, "\n".join(text))


if __name__ == "__main__":
    main()
