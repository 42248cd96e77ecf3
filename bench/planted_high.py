"""Do gates of orders 4 and 5 open where such transitions are, and stay closed where not? `python -m bench.planted_high`

Lists of 16 items of width 16 are drawn anew for each of 400 AdamW steps at 1e-3 (warm-up, cosine, decay 0.1, gradients
clipped), with the loss of lists in RankCLIP's size at full weight, 2/(16K), heads at 30 times the trunk's rate and
gates at 4 times that of the heads. L1 of the gates has the size of the lists (`loss.gate_l1_size lists`) or is plain.

There: lists are drawn from a head of order r whose attention falls on the oldest of the r-1 items before a position,
which lower orders do not see. It favours no item whatever came before. It also reads the last item, as every head of
its kind; lower orders find that part, and the gap below leaves it out. Recovered is the share of the gap between a
learner of order r-1 and the model that drew the lists which a learner of order r closes, in NLL of new lists of new
items: (NLL of r-1 - NLL of r) / (NLL of r-1 - NLL of the truth). Half or more counts as recovered. Planted is what the
truth saves beside utilities alone. Faint transitions save less than the 0.08 nats a position that plain L1 asks for a
gate of order 4; plain L1 of order 5 asks for 0.8.

Not there: lists are drawn from utilities alone, or from transitions of orders 2 and 3, and a learner of order 5 trains
on them. Brought is what leaving an order out costs in NLL of new lists, in nats a list. A gate counts as closed if it
ends below 1 %, and its order brings less than 1 % of the NLL that planted transitions save at that order above.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from bench.harness import machine_now, today, write_dated
from bench.planted import Lists, Plant, Sizes, learn, mean_nll, orders_of
from dinorankclip.config import OptimSettings
from dinorankclip.losses.transitions import TransitionHeads
from dinorankclip.train.step import Updater

SIZES = Sizes(items=16, dim=16, width=16, lists=128)
STEPS, HELD_OUT = 400, 10
SETTINGS = OptimSettings(lr=1e-3, weight_decay=0.1, heads_rate=30.0, gates_rate=4.0)
PLANTED = {  # order, and a factor on W_q beside the usual strength of a plant
    "order 4": (4, 1.5),
    "order 4, faint": (4, 0.25),
    "order 5": (5, 1.5),
}
READS = 6.0  # on the attended item, which makes it about 2.5 times as loud as the last item
HIGH = (4, 5)
L1_SIZES = ("lists", "plain")


class OldestItem(Plant):
    """Draws lists in which item k depends on the item r-1 places before it, and less on the last item."""

    def __init__(self, order: int, louder: float, sizes: Sizes, seed: int):
        super().__init__((order,), sizes, seed)
        head, width, draw = self.heads.heads[str(order)], sizes.width, torch.Generator().manual_seed(2000 + seed)
        # The first offset asks along u, the last answers along u: attention falls on the last.
        asking, answering, u = F.normalize(torch.randn(3, width, generator=draw), dim=1)
        head.positional_embedding.zero_()
        head.positional_embedding[0] = 2 * math.sqrt(width) * asking
        head.positional_embedding[order - 2] = 2 * math.sqrt(width) * answering
        head.attend_query.weight.copy_(3 * torch.outer(u, asking))
        head.attend_key.weight.copy_(torch.outer(u, answering))
        head.attend_out.weight.mul_(READS)
        head.query.weight.mul_(louder)
        self._forget_the_mean(head, order, draw)

    def _forget_the_mean(self, head: nn.Module, order: int, draw: torch.Generator) -> None:
        """Remove the mean history from W_q. It would favour the same items after every history, which a utility
        could do as well."""
        items = math.sqrt(self.sizes.dim) * F.normalize(torch.randn(400, self.sizes.dim, generator=draw), dim=1)
        lists = torch.stack([torch.randperm(400, generator=draw)[:order] for _ in range(4000)])
        own = head.query.weight.clone()
        head.query.weight.copy_(torch.eye(self.sizes.width))
        mean = F.normalize(head.queries(items, [lists], torch.tensor(1.0))[0][:, -1].mean(0), dim=0)
        head.query.weight.copy_(own - own @ torch.outer(mean, mean))


def nothing_planted(seed: int, sizes: Sizes) -> Plant:
    plant = Plant((2,), sizes, seed)
    plant.heads.heads["2"].query.weight.zero_()
    return plant


ABSENT = {"utilities alone": nothing_planted, "orders 2 and 3": lambda seed, sizes: Plant((2, 3), sizes, seed)}


@dataclass(frozen=True)
class Found:
    """How a learner ended, at one order."""

    planted: str  # what drew the lists
    seed: int
    l1_size: str
    order: int
    gate: float  # λ at the end
    brought: float  # nats a list that are lost when the order is left out
    recovered: float | None = None  # of the gap to the truth
    saved: float | None = None  # nats a position that the truth saves


def drawn(plant: Plant, seed: int, batches: int, held_out: int) -> tuple[list[Lists], list[Lists]]:
    draw = torch.Generator().manual_seed(seed)
    return [plant.drawn(draw) for _ in range(batches)], [plant.drawn(draw) for _ in range(held_out)]


def learned(order: int, train: Sequence[Lists], seed: int, l1_size: str, sizes: Sizes) -> TransitionHeads:
    heads = TransitionHeads(sizes.dim, order, sizes.width, seed=seed)
    updater = Updater({"transitions": nn.ModuleDict({"image": heads})}, SETTINGS, len(train))
    learn(heads, updater, train, len(train), l1_size)
    return heads


def ending(heads: TransitionHeads, order: int, held_out: Sequence[Lists]) -> tuple[float, float]:
    """Return the gate of an order at the end, and what the order brings."""
    others = [r for r in orders_of(heads) if r != order]
    brought = mean_nll(heads, held_out, others) - mean_nll(heads, held_out, orders_of(heads))
    return heads.gate(order).item(), brought


def where_planted(
    what: str, seed: int, sizes: Sizes = SIZES, steps: int = STEPS, held_out: int = HELD_OUT
) -> list[Found]:
    order, louder = PLANTED[what]
    plant = OldestItem(order, louder, sizes, seed)
    train, test = drawn(plant, seed, steps, held_out)
    truth, rows = plant.nll(test), []
    saved = (mean_nll(None, test, ()) - truth) / sizes.items
    for l1_size in L1_SIZES:
        lower, own = (learned(r, train, seed, l1_size, sizes) for r in (order - 1, order))
        below, reached = (mean_nll(heads, test, orders_of(heads)) for heads in (lower, own))
        share = (below - reached) / (below - truth)
        rows.append(Found(what, seed, l1_size, order, *ending(own, order, test), share, saved))
    return rows


def where_absent(
    what: str, seed: int, sizes: Sizes = SIZES, steps: int = STEPS, held_out: int = HELD_OUT
) -> list[Found]:
    train, test = drawn(ABSENT[what](seed, sizes), seed, steps, held_out)
    learners = {l1_size: learned(max(HIGH), train, seed, l1_size, sizes) for l1_size in L1_SIZES}
    return [
        Found(what, seed, l1_size, order, *ending(heads, order, test))
        for l1_size, heads in learners.items()
        for order in HIGH
    ]


def table(rows: Sequence[Found]) -> str:
    """Return a line for each kind of lists, L1 and order, with a number for each seed."""
    lines = ["| lists of | planted, nats a position | L1 | order | recovered | λ at the end | brought, nats a list |"]
    lines.append("| --- " * 7 + "|")
    for key in dict.fromkeys((row.planted, row.l1_size, row.order) for row in rows):
        each = [row for row in rows if (row.planted, row.l1_size, row.order) == key]
        saved = [row.saved for row in each if row.saved is not None]
        cells = [key[0], f"{statistics.mean(saved):.3f}" if saved else "–", key[1], str(key[2])]
        cells.append(", ".join("–" if row.recovered is None else f"{row.recovered:.0%}" for row in each))
        cells.append(", ".join(f"{row.gate:.5f}" for row in each))
        cells.append(", ".join(f"{row.brought:.3f}" for row in each))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="plants; each some minutes of a core")
    parser.add_argument("--out", type=Path, default=Path("docs/bench"), help="folder for the dated JSON and Markdown")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    about, date, rows = machine_now(1), today(), []
    for seed in range(options.seeds):
        for what in PLANTED:
            rows += where_planted(what, seed)
        for what in ABSENT:
            rows += where_absent(what, seed)
        print(table([row for row in rows if row.seed == seed]), flush=True)
    rows.sort(key=lambda row: (row.planted, row.l1_size, row.order, row.seed))
    record = {"bench": "planted", "date": date, "machine": about, "seeds": options.seeds}
    starts = f"Seeds: {options.seeds}. Gates of orders 4 and 5 start at 0.00091 and 0.00012."
    text = f"# Bench: planted, orders 4 and 5, {date}\n\n{__doc__.strip()}\n\n{starts}\n\n{table(rows)}\n"
    write_dated(options.out, "planted", date, record | {"rows": [asdict(row) for row in rows]}, text)


if __name__ == "__main__":
    main()
