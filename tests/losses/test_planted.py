"""Planted recovery: lists drawn from a known model of order 2 or 3; the heads must find what is there, and no more.

Every data set has its own items, so what is learned must be a rule about embeddings. Utilities are known; only
transitions are learned.
"""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dinorankclip.equations import plackett_luce_nll
from dinorankclip.joint.transitions import TransitionHeads

ITEMS, DIM, WIDTH, LISTS = 12, 6, 4, 96


@dataclass
class Lists:
    items: Tensor  # [M, D]
    theta: Tensor  # [N, M]
    order: Tensor  # [N, M]


def truth(order: int, seed: int) -> TransitionHeads:
    heads = TransitionHeads(DIM, order, WIDTH, seed=1000 + seed)
    with torch.no_grad():
        for r in range(2, order + 1):
            heads.gates[str(r)].fill_(4.0)
            heads.heads[str(r)].query.weight.mul_(2.0)  # strong enough to matter beside utilities of size one
    return heads.requires_grad_(False)


def nll(heads: TransitionHeads | None, data: Lists, order: int) -> Tensor:
    if order < 2:
        return plackett_luce_nll(data.theta, data.order).mean()
    (queries,), keys = heads(data.items, [data.order], range(2, order + 1))
    return plackett_luce_nll(data.theta, data.order, queries, keys).mean()


def drawn(heads: TransitionHeads, draw: torch.Generator) -> Lists:
    """Lists sampled position by position from the true model."""
    items = F.normalize(torch.randn(ITEMS, DIM, generator=draw), dim=1)
    theta = torch.randn(LISTS, ITEMS, generator=draw)
    order = torch.rand(LISTS, ITEMS, generator=draw).argsort(1)
    left = torch.ones(LISTS, ITEMS, dtype=torch.bool)
    for k in range(ITEMS):
        (queries,), keys = heads(items, [order], range(2, heads.order + 1))
        scores = (theta + queries[:, k] @ keys.T).masked_fill(~left, -torch.inf)
        chosen = torch.multinomial(scores.softmax(1), 1, generator=draw)
        # bring the chosen item to position k, keep the row a permutation
        place = (order == chosen).nonzero()[:, 1:]
        order.scatter_(1, place, order[:, k : k + 1].clone())
        order[:, k : k + 1] = chosen
        left.scatter_(1, chosen, False)
    return Lists(items, theta, order)


def learned(order: int, train: list[Lists], seed: int) -> TransitionHeads:
    heads = TransitionHeads(DIM, order, WIDTH, seed=seed)
    optimizer = torch.optim.Adam(heads.parameters(), lr=0.03)
    epochs = 12
    steps = epochs * len(train)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        optimizer.zero_grad()
        nll(heads, train[step % len(train)], order).backward()
        optimizer.step()
        schedule.step()
    return heads


def held_out(true_order: int, seed: int) -> dict[str | int, float]:
    """NLL on new items and lists: of the true model, and of heads trained at orders 1, 2 and 3."""
    draw = torch.Generator().manual_seed(seed)
    true = truth(true_order, seed)
    train, test = [drawn(true, draw) for _ in range(40)], [drawn(true, draw) for _ in range(20)]
    models = {1: None, 2: learned(2, train, seed), 3: learned(3, train, seed)}
    with torch.no_grad():
        scores = {r: sum(nll(m, data, r).item() for data in test) / len(test) for r, m in models.items()}
        scores["true"] = sum(nll(true, data, true_order).item() for data in test) / len(test)
    return scores


@pytest.mark.parametrize("seed", range(3))
def test_order_3_is_found_where_it_was_planted(seed):
    scores = held_out(3, seed)
    print(f"lists of order 3, seed {seed}:", {k: round(v, 4) for k, v in scores.items()})
    assert scores[3] < 1.02 * scores["true"]
    assert scores[3] < 0.98 * scores[2] < 0.98 * scores[1]


@pytest.mark.parametrize("seed", range(3))
def test_order_3_does_not_win_where_order_2_was_planted(seed):
    scores = held_out(2, seed)
    print(f"lists of order 2, seed {seed}:", {k: round(v, 4) for k, v in scores.items()})
    assert scores[2] < 1.02 * scores["true"]
    assert scores[3] > 0.998 * scores[2]
    assert scores[2] < 0.98 * scores[1]
