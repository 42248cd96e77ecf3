"""Lists drawn from a known model with transitions: what heads can learn from them is known beforehand.

Every data set has its own items, so what is learned must be a rule about embeddings. Utilities are known; only
transitions are learned.

Shapes: M items of width D, N lists of all M items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dinorankclip.losses.plackett_luce import mean_plackett_luce_nll
from dinorankclip.losses.transitions import TransitionHeads

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
            (queries,), keys = self.heads(items, [order[:, : k + 1].contiguous()], self.orders)
            scores = (theta + queries[:, k] @ keys.T).masked_fill(~left, -torch.inf)
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
