"""Planted recovery: lists drawn from a known model of order 2 or 3; the heads must find what is there, and no more."""

import pytest
import torch

from bench.planted import Lists, Plant, Sizes, mean_nll, nll
from dinorankclip.losses.transitions import TransitionHeads

SIZES = Sizes(items=12, dim=6, width=4, lists=96)


def learned(orders: range, train: list[Lists], seed: int) -> TransitionHeads:
    heads = TransitionHeads(SIZES.dim, max(orders), SIZES.width, seed=seed)
    optimizer = torch.optim.Adam(heads.parameters(), lr=0.03)
    epochs = 12
    steps = epochs * len(train)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        optimizer.zero_grad()
        nll(heads, train[step % len(train)], orders).backward()
        optimizer.step()
        schedule.step()
    return heads


def held_out(true_order: int, seed: int) -> dict[str | int, float]:
    """NLL on new items and lists: of the true model, and of heads trained at orders 1, 2 and 3."""
    draw = torch.Generator().manual_seed(seed)
    plant = Plant(range(2, true_order + 1), SIZES, seed)
    train, test = [plant.drawn(draw) for _ in range(40)], [plant.drawn(draw) for _ in range(20)]
    scores = {"true": plant.nll(test), 1: mean_nll(None, test, ())}
    for orders in (range(2, 3), range(2, 4)):
        scores[max(orders)] = mean_nll(learned(orders, train, seed), test, orders)
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
