"""Can the heads of a short run learn transitions that are there? `python -m bench.planted --seeds 3`

A positive control at the regime of the scenes study: 310 AdamW steps at 1e-3 with warm-up and cosine, decay 0.1,
gradients clipped, the lists' loss in the size it has at full weight (2/(16K)), each gate's L1. Lists of 24 items of
width 64 are drawn from known transitions of order 2, or of order 3 alone; items are new in each of 31 batches, which
come back ten times. Recovered is a share of the planted signal on new items: 0 is the NLL of the utilities alone, 1
that of the model which drew the lists. It is what the planted order itself brings, the loss on leaving it out: of lists
of order 3, order 2 finds some by itself. Beside it are the gate at the end (it starts at 0.0474 and 0.0067) and the
share of Adam's steps that epsilon leaves.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.harness import machine_now, today, write_dated
from dinorankclip.config import OptimSettings
from dinorankclip.losses.plackett_luce import mean_plackett_luce_nll
from dinorankclip.losses.ranking import default_gate_l1, sized
from dinorankclip.losses.ranking_schedule import RAMP_TOP
from dinorankclip.losses.telemetry import undamped_shares
from dinorankclip.losses.transitions import TransitionHeads
from dinorankclip.train.step import Updater
from dinorankclip.types import Progress

# Lists drawn from a known model with transitions: what heads can learn from them is known beforehand.
#
# Every data set has its own items, so what is learned must be a rule about embeddings. Utilities are known; only
# transitions are learned.
#
# Shapes: M items of width D, N lists of all M items.

OPEN_GATE = 4.0  # s, hence λ = 0.98
STRENGTH = 2.0  # on W_q: strong enough to matter beside utilities of size one


@dataclass(frozen=True)
class Sizes:
    items: int
    dim: int
    width: int  # of the heads
    lists: int


@dataclass(frozen=True)
class Lists:
    items: Tensor  # [M, D]
    theta: Tensor  # [N, M]
    order: Tensor  # [N, M]


class Plant:
    """A model whose transitions are those of `orders` alone, and the lists it draws."""

    def __init__(self, orders: Sequence[int], sizes: Sizes, seed: int):
        self.orders, self.sizes = tuple(orders), sizes
        self.heads = TransitionHeads(sizes.dim, max(orders), sizes.width, seed=1000 + seed).requires_grad_(False)
        for r in orders:
            self.heads.gates[str(r)].fill_(OPEN_GATE)
            self.heads.heads[str(r)].query.weight.mul_(STRENGTH)

    def drawn(self, draw: torch.Generator) -> Lists:
        """New items, and lists sampled position by position."""
        count, length = self.sizes.lists, self.sizes.items
        items = F.normalize(torch.randn(length, self.sizes.dim, generator=draw), dim=1)
        theta = torch.randn(count, length, generator=draw)
        order = torch.rand(count, length, generator=draw).argsort(1)
        left = torch.ones(count, length, dtype=torch.bool)
        for k in range(length):
            recent = order[:, max(0, k + 1 - max(self.orders)) : k + 1].contiguous()  # all that a history needs
            (queries,), keys = self.heads(items, [recent], self.orders)
            scores = (theta + queries[:, -1] @ keys.T).masked_fill(~left, -torch.inf)
            chosen = torch.multinomial(scores.softmax(1), 1, generator=draw)
            # bring the chosen item to position k, keep the row a permutation
            place = (order == chosen).nonzero()[:, 1:]
            order.scatter_(1, place, order[:, k : k + 1].clone())
            order[:, k : k + 1] = chosen
            left.scatter_(1, chosen, False)
        return Lists(items, theta, order)

    def nll(self, data: Sequence[Lists]) -> float:
        """Of the model that drew them: nothing can do better."""
        return mean_nll(self.heads, data, self.orders)


def nll(heads: TransitionHeads | None, data: Lists, orders: Sequence[int]) -> Tensor:
    """Mean over lists when `orders` act; without any, that of the utilities alone."""
    if not orders:
        return mean_plackett_luce_nll(data.theta, data.order)
    (queries,), keys = heads(data.items, [data.order], orders)
    return mean_plackett_luce_nll(data.theta, data.order, queries, keys)


@torch.no_grad()
def mean_nll(heads: TransitionHeads | None, data: Sequence[Lists], orders: Sequence[int]) -> float:
    return sum(nll(heads, one, orders).item() for one in data) / len(data)


SIZES = Sizes(items=24, dim=64, width=32, lists=96)
BATCHES, EPOCHS = 31, 10  # of the scenes study: 4,000 scenes in batches of 128
HELD_OUT = 10
RATES, EPSILONS = (1.0, 10.0, 30.0, 100.0), (1e-6, 1e-8)
PLANTED = (2, 3)


@dataclass(frozen=True)
class Recovery:
    """How one learner ended, at the order that was planted."""

    share: float  # of the planted signal, on new items: what is lost when the order is left out
    gate: float  # λ
    undamped: float  # share of Adam's step that epsilon leaves

    @property
    def as_cells(self) -> tuple[str, ...]:
        return f"{self.share:.1%}", f"{self.gate:.4f}", f"{self.undamped:.2f}"


class Garden:
    """Transitions of one order, planted in training and held-out lists."""

    def __init__(self, order: int, seed: int, sizes: Sizes = SIZES, batches: int = BATCHES, held_out: int = HELD_OUT):
        self.order, self.seed, self.sizes = order, seed, sizes
        plant, draw = Plant((order,), sizes, seed), torch.Generator().manual_seed(seed)
        self.train = [plant.drawn(draw) for _ in range(batches)]
        self.held_out = [plant.drawn(draw) for _ in range(held_out)]
        self.planted = mean_nll(None, self.held_out, ()) - plant.nll(self.held_out)  # the whole signal, in nats a list

    def recovered(self, settings: OptimSettings, steps: int = BATCHES * EPOCHS) -> Recovery:
        heads = TransitionHeads(self.sizes.dim, self.order, self.sizes.width, seed=self.seed)
        # the names that parameters of a run have
        updater = Updater({"transitions": nn.ModuleDict({"image": heads})}, settings, steps)
        learn(heads, updater, self.train, steps)
        all_orders = orders_of(heads)
        brought = mean_nll(heads, self.held_out, all_orders[:-1]) - mean_nll(heads, self.held_out, all_orders)
        shares = undamped_shares(updater.optimizers, updater.parameters.items())
        return Recovery(
            brought / self.planted,
            heads.gate(self.order).item(),
            shares[f"undamped{self.order}_image"],
        )


def learn(heads: TransitionHeads, updater: Updater, train: Sequence[Lists], steps: int, l1_size: str = "plain") -> None:
    """As a run does at full weight, every order acting from the start: the best case for an order. `l1_size` is
    `loss.gate_l1_size`; the record of 2026-11-16 is of plain L1."""
    temperature = nn.Parameter(torch.zeros(()))  # there is none here; the updater clamps one
    for step in range(steps):
        data = train[step % len(train)]
        length = data.order.shape[1]
        size = "rankclip" if l1_size == "lists" else "equation"
        l1 = sum(sized(default_gate_l1(r), length, size) * heads.gate(r) for r in orders_of(heads))
        (sized(RAMP_TOP, length) * nll(heads, data, orders_of(heads)) + l1).backward()
        updater.step(Progress(step, steps, EPOCHS), temperature)


def orders_of(heads: TransitionHeads) -> range:
    return range(2, heads.order + 1)


def table(found: dict[tuple[float, float, int], list[Recovery]]) -> str:
    """Means over seeds."""
    beside = " | ".join(f"order {r} recovered | λ_{r} at the end | left by ε" for r in PLANTED)
    lines = [f"| heads_rate | eps | {beside} |", "| --- " * (2 + 3 * len(PLANTED)) + "|"]
    for rate in RATES:
        for eps in EPSILONS:
            cells = [f"{rate:g}", f"{eps:g}"]
            for r in PLANTED:
                each = found[rate, eps, r]
                columns = zip(*((one.share, one.gate, one.undamped) for one in each))
                cells += Recovery(*(statistics.mean(column) for column in columns)).as_cells
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="plants to average over; each half a minute of a core")
    parser.add_argument("--out", type=Path, default=Path("docs/bench"), help="folder for the dated JSON and Markdown")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    about, date = machine_now(1), today()
    found: dict[tuple[float, float, int], list[Recovery]] = {}
    for order in PLANTED:
        for seed in range(options.seeds):
            garden = Garden(order, seed)
            for rate in RATES:
                for eps in EPSILONS:
                    settings = OptimSettings(lr=1e-3, weight_decay=0.1, eps=eps, heads_rate=rate)
                    found.setdefault((rate, eps, order), []).append(garden.recovered(settings))
    rows = [
        {"heads_rate": rate, "eps": eps, "order": r, "runs": [vars(one) for one in each]}
        for (rate, eps, r), each in found.items()
    ]
    record = {"bench": "planted", "date": date, "machine": about, "seeds": options.seeds, "rows": rows}
    text = f"# Bench: planted, {date}\n\n{__doc__.strip()}\n\nSeeds: {options.seeds}.\n\n{table(found)}\n"
    write_dated(options.out, "planted", date, record, text)


if __name__ == "__main__":
    main()
