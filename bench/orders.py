"""Each order, and the full method, against order 0 of ours: python -m bench.orders [--pairs DIR]

A step as a run takes it late, when every order acts: reading the batch (in the same process, so that nothing is
hidden), the teacher's cached features, forward, backward, update. The full method is `--method dinorankclip`: both
students, fusion, distillation from the cache; the teacher is efficientnet-lite0, whose cache is made first. It is timed
at its own order 3, and at all orders of a trunk whose orders include 3.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.harness import Comparison, alternate, arguments, machine_now, write_record, written
from bench.photos import read_pairs
from bench.sides import Built, running
from dinorankclip.config import ReadingSettings, TrainSettings, with_changes
from dinorankclip.data.pack import Writer
from dinorankclip.methods import LABEL
from dinorankclip.presets import for_method, preset
from dinorankclip_studies.papers.dinorankclip import PAPER

BASE, FULL_ORDER = "order 0", 3
FULL = f"full method, order {FULL_ORDER}"
FULL_WANTED = {"ViT-B-32": 1.5}
TEACHER, TEACHER_SIZE, TEXT_TEACHER = "efficientnet-lite0", 224, "minilm"
# Trunk → the preset whose students go with it.
PRESETS = {"ViT-B-32": "cc3m", "drc-photo": "flickr8k"}


def training_steps(settings: TrainSettings, count: int) -> Built:
    """`count` steps of a run with these settings, at the last place of its schedule."""
    from dinorankclip.train.assemble import assemble
    from dinorankclip.train.step import backward
    from dinorankclip.types import Progress
    from dinorankclip.validate import validated

    with contextlib.redirect_stdout(io.StringIO()):  # what a run says of itself
        parts = assemble(validated(settings))
    state, progress = parts.state, Progress(parts.length.steps - 1, parts.length.steps, parts.length.epochs)
    batches = iter(parts.loader)

    def run() -> list[float]:
        losses = []
        for _ in range(count):
            terms = backward(state.model, state.objective, next(batches), progress, parts.placement)
            state.updater.step(progress, state.model.trunk.logit_scale)
            losses.append(terms.total.item())
        return losses

    run()  # the first step sets up the optimiser's moments
    return run, {}


def make_cache(data: Path, out: Path) -> None:
    from dinorankclip.teachers.cache_request import CacheSpec, cache_of_data

    cache_spec = CacheSpec(str(data), TEACHER, TEACHER_SIZE, TEXT_TEACHER)
    cache_of_data(out, cache_spec, ReadingSettings(), torch.device("cpu"))


def compare(
    name: str, batch: int, orders: list[int], data: Path, cache: Path, rounds: int, count: int, threads: int
) -> Comparison:
    common = {"model.trunk": name, "data": str(data), "budget.batch": batch, "budget.threads": threads}
    common |= {"reading.workers": 0}

    def settings(method: str, changes: dict[str, Any]) -> TrainSettings:
        return with_changes(for_method(preset(PRESETS.get(name, "scenes")), method), common | changes)

    builders = {}
    for order in orders:
        plain = settings("rank", {"loss.order": order}) if order else settings("clip", {})
        builders[f"order {order}"] = partial(training_steps, plain, count)
    for order in orders if FULL_ORDER in orders else [FULL_ORDER]:
        full = settings("dinorankclip", {"loss.order": order, "distil.cache": str(cache)})
        builders[f"full method, order {order}"] = partial(training_steps, full, count)
    with running(builders, threads) as sides:
        times = alternate(sides, rounds, title=name)
    note = f"Reading included. Teachers: {TEACHER} at {TEACHER_SIZE} px, {TEXT_TEACHER}. {count} steps a round."
    wanted = {FULL: FULL_WANTED[name]} if name in FULL_WANTED else {}
    title = f"Orders and the full method, {name}, batch {batch}"
    return Comparison(title, times, BASE, batch * count, cost=True, wanted=wanted, note=note)


def beside_paper(comparison: Comparison) -> str:
    """Our measured ratios to order 0 and the paper's projected ones, which are no results."""
    lines = [
        "## Beside the paper's projections",
        "",
        f"Measured: {comparison.title}. The paper's milliseconds are projections for other hardware and batch.",
        "",
        f"| order | measured, times order 0 | {LABEL}, times order 0 | {LABEL} ms |",
        "| --- | --- | --- | --- |",
    ]
    projected = {order: row["step ms"] for order, row in PAPER.values["tab:cost-accuracy"].items()}
    for order, milliseconds in projected.items():
        if (side := f"order {order}") in comparison.seconds:
            ours = "1" if side == BASE else written(comparison.ratio(side))
            lines.append(f"| {order} | {ours} | {milliseconds / projected['0']:.2f} | {milliseconds:g} |")
    return "\n".join(lines) + "\n"


def prepare(pairs: str, count: int, folder: Path) -> tuple[Path, Path]:
    """`count` training pairs and a few for validation inside `folder`, and the teacher's cache of them."""
    samples = read_pairs(pairs, count + count // 8)
    data, cache = folder / "pairs", folder / "cache"
    data.mkdir()
    writer = Writer(data, "shards")
    writer.write("train", samples[:count])
    writer.write("val", samples[count:])
    make_cache(data, cache)
    return data, cache


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    usual = ["ViT-B-32:32:0", "drc-small:256:0,1,2,3,4,5"]
    parser.add_argument("--trunks", nargs="+", default=usual, help="TRUNK:BATCH:ORDERS …; order 0 is always there")
    options = parser.parse_args(argv)
    if options.quick:
        options.trunks = ["drc-tiny:16:0,2"]
    plans = []
    for name, batch, orders in (trunk.split(":") for trunk in options.trunks):
        plans.append((name, int(batch), sorted({0, *map(int, orders.split(","))})))
    about = machine_now(options.threads)
    torch.set_num_threads(options.threads)
    comparisons = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        data, cache = prepare(options.pairs, 2 * max(batch for _, batch, _ in plans), Path(folder))
        for name, batch, orders in plans:
            large = not name.startswith("drc-")
            rounds = options.rounds or (2 if options.quick else 3 if large else 5)
            count = 1 if large else 2
            comparisons.append(compare(name, batch, orders, data, cache, rounds, count, options.threads))
    write_record("orders", comparisons, options, about, beside_paper(comparisons[-1]))


if __name__ == "__main__":
    main()
