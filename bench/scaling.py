"""Time and memory of a step over batch and order, and two processes against one: python -m bench.scaling

A whole training step of a small trunk on made-up pixels and captions of 20 tokens, with full lists, at the end of the
schedule. Every cell is a fresh process; memory is what its resident set grows by at the peak of a step, after a small
step has set everything up. The memory of the loss, which must not grow faster than B², is measured on the loss alone,
forward and backward on given embeddings: in a whole step part of it lies where the trunk's activations were, the more
so the smaller the batch, and the difference to order 0 would seem to grow faster than it does.
Two processes share the batch and the threads of one.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence
from functools import partial
from html import escape

import torch

from bench.harness import Comparison, alternate, arguments, machine_now, write_record
from bench.sides import LATE, Built, Side, made_up_pairs
from dinorankclip import distributed
from dinorankclip.config import LossSettings, OptimSettings
from dinorankclip.device import choose
from dinorankclip.losses import Objective, RankingLoss
from dinorankclip.models.joint import JointModel
from dinorankclip.models.trunk import trunk_config
from dinorankclip.train.step import Updater, backward
from dinorankclip.types import Batch

# Lines on two logarithmic axes as an SVG, without a plotting library: benches run where only the package is.

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 420, 320, 62, 34, 86, 44
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")

Lines = dict[str, dict[float, float]]


def panels(drawn: dict[str, tuple[str, Lines]], across: str) -> str:
    """Side by side: title → (name of the upright axis, lines by name as {x: y}). Both axes are logarithmic."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(drawn)}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, (title, (upright, lines)) in enumerate(drawn.items()):
        parts.append(f'<g transform="translate({number * WIDTH},0)">{_panel(title, across, upright, lines)}</g>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(title: str, across: str, upright: str, lines: Lines) -> str:
    points = [(x, y) for line in lines.values() for x, y in line.items() if y > 0]
    columns = sorted({x for x, _ in points})
    low, high = min(y for _, y in points), max(y for _, y in points)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        share_x = math.log(x / columns[0]) / (math.log(columns[-1] / columns[0]) or 1)
        share_y = (math.log10(y) - decades[0]) / max(1, decades[-1] - decades[0])
        return LEFT + share_x * (right - LEFT), bottom - share_y * (bottom - TOP)

    drawn = [
        f'<text x="{LEFT}" y="18" font-size="13">{escape(title)}</text>',
        f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(across)}</text>',
        f'<text transform="translate(14,{(TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(upright)}</text>",
    ]
    for decade in decades:
        _, y = place(columns[0], 10.0**decade)
        drawn.append(f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**decade:g}</text>')
    for column in columns:
        x, _ = place(column, low)
        drawn.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}" stroke="#ddd"/>')
        drawn.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{column:g}</text>')
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = [place(x, y) for x, y in sorted(line.items()) if y > 0]
        written = " ".join(f"{x:.1f},{y:.1f}" for x, y in path)
        drawn.append(f'<polyline points="{written}" fill="none" stroke="{colour}" stroke-width="2"/>')
        # The legend stands to the right, lines in their order: ends of lines may lie on top of each other.
        height = TOP + 10 + 16 * number
        drawn.append(f'<line x1="{right + 8}" x2="{right + 24}" y1="{height - 4}" y2="{height - 4}" stroke="{colour}" '
                     f'stroke-width="2"/><text x="{right + 28}" y="{height}">{escape(name)}</text>')  # fmt: skip
    return "\n".join(drawn)


SMALL = 16
LOSS_ALONE = (128, 256, 512)
VISIBLE = 4e6  # bytes: less may lie in what the process had set aside before
ONE, TWO = "one process", "two processes"


def step_of(trunk: str, order: int, batch: int) -> Built:
    """One step of this process's share of `batch` pairs."""
    world = distributed.join("cpu")
    model = JointModel(trunk_config(trunk))
    method = "rank" if order else "clip"
    objective = Objective(model.dim, method, LossSettings(order=order))
    updater = Updater({"model": model, "objective": objective}, OptimSettings(), LATE.total_steps)
    placement = choose("cpu", "fp32")

    def step(pairs: Batch) -> float:
        terms = backward(model, objective, pairs, LATE, placement)
        updater.step(LATE, model.trunk.logit_scale)
        return terms.total.item()

    step(made_up_pairs(model, SMALL, world.rank))  # loads what is loaded once, sets up the optimiser
    pairs = made_up_pairs(model, batch // world.size, world.rank)
    return lambda: step(pairs), {}


def loss_of(trunk: str, order: int, batch: int) -> Built:
    """Forward and backward of the ranking loss alone."""
    dim = trunk_config(trunk)["embed_dim"]
    loss = RankingLoss(dim, order=order)
    loss.set_progress(LATE.step, LATE.total_steps, LATE.epochs)
    draws = torch.Generator().manual_seed(0)

    def run(count: int) -> float:
        image, text = (torch.randn(count, dim, generator=draws).requires_grad_() for _ in range(2))
        total = loss(image, text, torch.tensor(20.0)).total
        total.backward()
        return total.item()

    run(SMALL)
    return lambda: run(batch), {}


def cell(build: partial, threads: int, rounds: int) -> dict[str, float]:
    """Least seconds of `rounds` runs; bytes of the first, for which the heap is fresh."""
    side = Side(build, threads)
    try:
        measured = [side() for _ in range(rounds)]
    finally:
        side.close()
    return {"seconds": min(one["seconds"] for one in measured), "bytes": measured[0]["bytes"]}


def growth(cells: dict[str, dict[str, float]], order: int, batches: list[int]) -> float | None:
    """Exponent p of B^p from the first to the last batch, of the memory of the loss alone; None if it is too little."""
    first, last = batches[0], batches[-1]
    little, much = (cells[f"loss {order}/{batch}"]["bytes"] for batch in (first, last))
    if little < VISIBLE or first == last:
        return None
    return math.log(much / little) / math.log(last / first)


def processes(trunk: str, order: int, batch: int, threads: int, rounds: int) -> Comparison:
    """The same global batch on one process, and on two that share its threads."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    build = partial(step_of, trunk, order, batch)
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    sides = {ONE: [Side(build, threads)], TWO: [Side(build, max(1, threads // 2), group | rank) for rank in ranks]}
    try:
        times = alternate({name: partial(slowest, members) for name, members in sides.items()}, rounds)
    finally:
        for member in [*sides[ONE], *sides[TWO]]:
            member.close()
    title = f"Two processes against one, {trunk}, order {order}, batch {batch} in all"
    note = f"{threads} threads in one process, {max(1, threads // 2)} in each of two; they exchange over gloo."
    return Comparison(title, times, ONE, batch, cost=True, note=note)


def slowest(members: Sequence[Side]) -> dict[str, float]:
    """Of processes that run at the same time."""
    for member in members:
        member.begin()
    return {"seconds": max(member.end()["seconds"] for member in members)}


def as_markdown(
    cells: dict[str, dict[str, float]], orders: list[int], batches: list[int], alone: list[int], figure: str
) -> str:
    ranked = [order for order in orders if order]
    lines = [
        "## Time and memory of a step",
        "",
        f"![seconds and memory over the batch]({figure})",
        "",
        "| seconds (MB) | " + " | ".join(f"B = {batch}" for batch in batches) + " |",
        "| --- |" + " --- |" * len(batches),
    ]
    for order in orders:
        shown = [cells[f"{order}/{batch}"] for batch in batches]
        written = " | ".join(f"{one['seconds']:.3f} ({one['bytes'] / 1e6:.0f})" for one in shown)
        lines.append(f"| order {order} | {written} |")
    lines += [
        "",
        f"The loss alone, forward and backward, from {alone[0]} to {alone[-1]} pairs:",
        "",
        "| MB | " + " | ".join(f"B = {batch}" for batch in alone) + " | grows as |",
        "| --- |" + " --- |" * (len(alone) + 1),
    ]
    for order in ranked:
        written = " | ".join(f"{cells[f'loss {order}/{batch}']['bytes'] / 1e6:.0f}" for batch in alone)
        power = growth(cells, order, alone)
        lines.append(f"| order {order} | {written} | {'too little to see' if power is None else f'B^{power:.2f}'} |")
    return "\n".join(lines) + "\n"


def drawn(cells: dict[str, dict[str, float]], orders: list[int], batches: list[int]) -> str:
    def lines(what: str, unit: float) -> dict[str, dict[float, float]]:
        return {f"order {order}": {b: cells[f"{order}/{b}"][what] / unit for b in batches} for order in orders}

    both = {"Time of a step": ("seconds", lines("seconds", 1)), "Memory of a step": ("megabytes", lines("bytes", 1e6))}
    return panels(both, "pairs in a batch")


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--trunk", default="drc-tiny")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 128, 256, 512, 1024])
    parser.add_argument("--orders", type=int, nargs="+", default=[0, 1, 2, 3, 4, 5])
    options = parser.parse_args(argv)
    if options.quick:
        options.batches, options.orders = [16, 32], [0, 2]
    about = machine_now(options.threads)
    rounds = options.rounds or (1 if options.quick else 3)
    cells = {}
    for batch in options.batches:
        for order in options.orders:
            slow = batch * order >= 2048  # many seconds a step
            build = partial(step_of, options.trunk, order, batch)
            cells[f"{order}/{batch}"] = found = cell(build, options.threads, 1 if slow else rounds)
            print(f"batch {batch}, order {order}: {found['seconds']:.3f} s, {found['bytes'] / 1e6:.0f} MB", flush=True)
    alone = options.batches if options.quick else list(LOSS_ALONE)
    for order in filter(None, options.orders):
        for batch in alone:
            cells[f"loss {order}/{batch}"] = cell(partial(loss_of, options.trunk, order, batch), options.threads, 1)
    middle = options.batches[len(options.batches) // 2]
    last = max(order for order in options.orders if order <= 3)
    shared = [processes(options.trunk, order, middle, options.threads, 2 + rounds) for order in sorted({0, last})]
    figure = f"scaling{'-quick' * options.quick}.svg"
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / figure).write_text(drawn(cells, options.orders, options.batches))
    text = as_markdown(cells, options.orders, options.batches, alone, figure)
    write_record("scaling", shared, options, about, text, cells=cells)


if __name__ == "__main__":
    main()
