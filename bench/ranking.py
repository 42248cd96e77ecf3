"""What exact high-order ranking costs on this machine: python -m bench.ranking [--parts step] [--quick]

  lists   dense reference against blocked lists: time and peak memory
  limit   blocked lists against the matrix products they cannot avoid
  loss    the whole loss with heads, orders 1 to 5
  step    a training step at order 3 against order 1

The dated record is written after every part; parts of the same day that are not asked for again stay in it.

Times are of forward and backward. Two sides of a comparison alternate, so that a busy machine slows both; a ratio is
the median over rounds, with its range. Peak memory is the growth of a fresh process's resident set over its inputs.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch

from bench.harness import (
    alternate,
    in_words,
    load,
    machine,
    peak_memory,
    ratio,
    seconds,
    timed,
    today,
    write_dated,
    written,
)
from bench.sides import LATE, made_up_pairs
from dinorankclip.config import LossSettings, OptimSettings
from dinorankclip.losses import Objective, RankingLoss
from dinorankclip.losses.plackett_luce import mean_plackett_luce_nll
from dinorankclip.losses.plackett_luce_blocked import CPU_ITEMS, positions_at_once

# What `bench.ranking` found, as a page.


def as_markdown(record: dict) -> str:
    head = f"{in_words(record['machine'])}. Forward and backward, fp32."
    loads = ", ".join(f"{part} {busy}" for part, busy in record["load"].items())
    lines = [f"# Ranking benchmark, {record['date']}", "", head]
    lines += [f"Ratios: median (range) over alternating rounds. Load when each part began: {loads}."]
    for part, figures in record["results"].items():
        lines += ["", *_TABLES[part](figures)]
    return "\n".join(lines) + "\n"


def _lists_table(figures: dict) -> list[str]:
    lines = [
        "| B, H = 64 | dense s | blocked s | dense / blocked (wanted ≥ 3 at 512) | dense MB | blocked MB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for batch, f in figures.items():
        a, b = f["reference"], f["blocked"]
        lines.append(
            f"| {batch} | {a['seconds']:.3f} | {b['seconds']:.3f} | {written(f['speedup'])} "
            f"| {a['bytes'] / 1e6:.0f} | {b['bytes'] / 1e6:.0f} |"
        )
    return lines


def _limit_table(figures: dict) -> list[str]:
    lines = [
        "| B | blocked s | multiple of the matmul limit (wanted ≤ 3) | MB above inputs (wanted < 2000 at 1024) |",
        "| --- | --- | --- | --- |",
    ]
    for batch, f in figures.items():
        lines.append(f"| {batch} | {f['seconds']:.3f} | {written(f['multiple'])} | {f['bytes'] / 1e6:.0f} |")
    return lines


def _loss_table(figures: dict) -> list[str]:
    lines = ["| whole loss, s (MB) | order 1 | 2 | 3 | 4 | 5 |", "| --- | --- | --- | --- | --- | --- |"]
    for batch in dict.fromkeys(key.split("/")[0] for key in figures):
        cells = [figures.get(f"{batch}/{order}") for order in range(1, 6)]
        row = " | ".join(f"{c['seconds']:.3f} ({c['bytes'] / 1e6:.0f})" if c else "–" for c in cells)
        lines.append(f"| {batch} pairs | {row} |")
    return lines


def _step_table(figures: dict) -> list[str]:
    lines = ["| step of 256 pairs | order 1 s | order 3 s | ratio | wanted |", "| --- | --- | --- | --- | --- |"]
    for (name, f), wanted in zip(figures.items(), (1.6, 1.21)):
        s = f["seconds"]
        lines.append(f"| {name} | {s['1']:.3f} | {s['3']:.3f} | {written(f['ratio'])} | ≤ {wanted} |")
    return lines


_TABLES = {"lists": _lists_table, "limit": _limit_table, "loss": _loss_table, "step": _step_table}


HEADS_WIDTH = 64  # H at order 3, h = 32
DIM = 128


def lists(batch: int, backend: str) -> Callable[[], None]:
    """Forward and backward of one list per row, K = M = batch, H = 64."""
    draw = torch.Generator().manual_seed(0)
    theta = (10 * torch.randn(batch, batch, generator=draw)).requires_grad_()
    queries = (0.3 * torch.randn(batch, batch, HEADS_WIDTH, generator=draw)).requires_grad_()
    keys = (0.3 * torch.randn(batch, HEADS_WIDTH, generator=draw)).requires_grad_()
    order = torch.rand(batch, batch, generator=draw).argsort(1)

    def run() -> None:
        total = mean_plackett_luce_nll(theta, order, queries, keys, backend=backend)
        torch.autograd.grad(total, (theta, queries, keys))

    return run


def whole_loss(batch: int, order: int, list_length: int | None = None) -> Callable[[], None]:
    draw = torch.Generator().manual_seed(0)
    image = torch.randn(batch, DIM, generator=draw).requires_grad_()
    text = (image.detach() + torch.randn(batch, DIM, generator=draw)).requires_grad_()
    scale = torch.tensor(50.0, requires_grad=True)
    loss = RankingLoss(DIM, order, list_length=list_length)
    loss.set_progress(LATE.step, LATE.total_steps, LATE.epochs)

    def run() -> None:
        loss.zero_grad(set_to_none=True)
        loss(image, text, scale).total.backward()

    return run


def matmul_limit(batch: int) -> float:
    """Seconds for the three products of forward and backward, 3·B³/2·2H operations, at the speed that the matrix
    product has on the inner shapes of the blocked lists (at a middle block: half of the items left)."""
    left, step = batch // 2, min(positions_at_once(batch), batch)
    rows = max(1, min(batch, CPU_ITEMS // batch))
    queries, keys = torch.randn(rows, step, HEADS_WIDTH), torch.randn(rows, left, HEADS_WIDTH)
    scores = torch.empty(rows, step, left)
    grad_queries, grad_keys = torch.empty_like(queries), torch.empty_like(keys)
    products = [
        lambda: torch.bmm(queries, keys.mT, out=scores),
        lambda: torch.bmm(scores, keys, out=grad_queries),
        lambda: torch.bmm(scores.mT, queries, out=grad_keys),
    ]
    blocks = batch**3 / 2 / (rows * step * left)

    def ten(product: Callable[[], object]) -> None:
        for _ in range(10):
            product()

    return sum(blocks * min(seconds(lambda p=p: ten(p)) / 10 for _ in range(5)) for p in products)


def training_step(order: int, list_length: int | None, batch: int = 256) -> Callable[[], None]:
    """One step of a small trunk on made-up pixels and tokens of its shapes; data reading is not timed."""
    from dinorankclip.device import choose, keep_freed_memory
    from dinorankclip.models.joint import JointModel
    from dinorankclip.models.trunk import trunk_config
    from dinorankclip.train.step import Updater, backward

    keep_freed_memory()  # as training does
    model = JointModel(trunk_config("drc-small"))
    objective = Objective(model.dim, "rank", LossSettings(order=order, list_length=list_length))
    updater = Updater({"model": model, "objective": objective}, OptimSettings(), LATE.total_steps)
    pairs = made_up_pairs(model, batch)
    placement = choose("cpu")

    def run() -> None:
        backward(model, objective, pairs, LATE, placement)
        updater.step(LATE, model.trunk.logit_scale)

    return run


def step_ratio(list_length: int | None, rounds: int) -> dict[str, dict[str, float]]:
    """A step at order 3 against one at order 1, with lists of the same length."""
    times = alternate({str(order): timed(training_step(order, list_length)) for order in (1, 3)}, rounds)
    return {
        "ratio": ratio(times["3"], times["1"]),
        "seconds": {order: statistics.median(values) for order, values in times.items()},
    }


def compare_backends(quick: bool) -> dict:
    found: dict = {}
    for batch in (128, 256) if quick else (128, 256, 512):
        times = alternate({name: timed(lists(batch, name)) for name in ("reference", "blocked")}, 2 if quick else 5)
        found[str(batch)] = {
            name: {"seconds": statistics.median(taken), "bytes": peak_memory(lists, batch, name)}
            for name, taken in times.items()
        }
        found[str(batch)]["speedup"] = ratio(times["reference"], times["blocked"])
        print(_line(f"lists of {batch}", found[str(batch)]))
    return found


def compare_with_limit(quick: bool) -> dict:
    found: dict = {}
    for batch in (256,) if quick else (256, 512, 1024):
        run = lists(batch, "blocked")
        run()
        # both sides at their best of a few: the limit is a property of the machine, not of its load
        pairs = [(min(seconds(run) for _ in range(3)), matmul_limit(batch)) for _ in range(2 if quick else 5)]
        found[str(batch)] = {
            "multiple": ratio(*map(list, zip(*pairs))),
            "seconds": statistics.median(t for t, _ in pairs),
            "bytes": peak_memory(lists, batch, "blocked"),
        }
        print(_line(f"matmul limit at {batch}", found[str(batch)]))
    return found


def time_losses(quick: bool) -> dict:
    found: dict = {}
    for batch in (128, 256) if quick else (128, 256, 512, 1024):
        for order in range(1, 6 if batch <= 512 else 4):  # beyond, a single step takes a minute
            run = whole_loss(batch, order)
            run()
            taken = statistics.median(seconds(run) for _ in range(1 if batch > 512 else 3))
            found[f"{batch}/{order}"] = {"seconds": taken, "bytes": peak_memory(whole_loss, batch, order)}
            print(_line(f"whole loss, {batch} pairs, order {order}", found[f"{batch}/{order}"]))
    return found


def compare_steps(quick: bool) -> dict:
    found: dict = {}
    for name, length in (("K = B", None), ("K = 32", 32)):
        found[name] = step_ratio(length, 2 if quick else 9)
        print(_line(f"training step at 256 pairs, {name}", found[name]))
    return found


PARTS = {"lists": compare_backends, "limit": compare_with_limit, "loss": time_losses, "step": compare_steps}


def _line(title: str, figures: dict) -> str:
    return f"{title}: {json.dumps(figures)}"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/bench"), help="folder for the dated JSON and Markdown")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure")
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds; not for the record")
    options = parser.parse_args(argv)
    name, date, about = f"ranking{'-quick' * options.quick}", today(), machine(torch.get_num_threads(), ("torch",))
    record = _begun(options.out / f"{name}-{date}.json", about) or {"results": {}, "load": {}}
    record |= {"date": date, "machine": about}
    for part in options.parts:
        record["load"][part] = load()
        record["results"][part] = PARTS[part](options.quick)
        record["results"] = {one: record["results"][one] for one in PARTS if one in record["results"]}
        write_dated(options.out, name, date, record, as_markdown(record))


def _begun(path: Path, about: dict) -> dict | None:
    """Today's record, if it is of this machine."""
    stored = json.loads(path.read_text()) if path.is_file() else None
    return stored if stored is not None and stored["machine"] == about else None


if __name__ == "__main__":
    main()
