"""A run of two hundred steps can learn what was planted, if its heads may move; at the trunk's rate it cannot. Gates of
order 5 open where L1 has the size of the lists and there is something to find."""

import pytest
import torch
import torch.nn.functional as F

from bench.planted import Garden, Sizes
from bench.planted_high import OldestItem, where_absent, where_planted
from dinorankclip.config import OptimSettings


@pytest.mark.parametrize("order", [2, 3])
def test_a_short_run_recovers_half_of_what_was_planted_if_its_heads_may_move(order):
    garden = Garden(order, seed=0, batches=20, held_out=4)
    share = {
        rate: garden.recovered(OptimSettings(lr=1e-3, weight_decay=0.1, heads_rate=rate), steps=200).share
        for rate in (1.0, 60.0)
    }
    print(f"order {order}: recovered", share)
    assert share[1.0] < 0.05 and share[60.0] > 0.5


SMALL = {"sizes": Sizes(items=10, dim=8, width=8, lists=64), "held_out": 6}


def test_order_5_is_found_with_l1_in_the_size_of_the_lists_and_not_with_plain_l1():
    lists, plain = where_planted("order 5", seed=0, steps=200, **SMALL)
    print(lists, plain)
    assert lists.recovered > 0.5 and lists.gate > 100 * 1.2e-4
    assert abs(plain.recovered) < 0.01 and plain.gate < 1.2e-4


def test_gates_of_orders_4_and_5_close_where_nothing_was_planted():
    for row in where_absent("utilities alone", seed=0, steps=80, **SMALL):
        assert row.gate < {4: 9.2e-4, 5: 1.24e-4}[row.order] and abs(row.brought) < 1e-3, row


def test_what_is_planted_at_the_oldest_item_cannot_be_found_by_a_lower_order():
    """The mean query over histories is zero but for the draw: no item is favoured whatever came before."""
    plant = OldestItem(4, 1.5, SMALL["sizes"], seed=0)
    draw = torch.Generator().manual_seed(5)
    items = F.normalize(torch.randn(300, 8, generator=draw), dim=1)
    lists = torch.stack([torch.randperm(300, generator=draw)[:4] for _ in range(3000)])
    (queries,), _ = plant.heads(items, [lists], (4,))
    last = queries[:, -1]
    assert last.mean(0).norm() < 0.1 * last.norm(dim=1).mean()
    swapped = lists.clone()
    swapped[:, 1], swapped[:, 2] = lists[:, 2], lists[:, 1]  # the items between
    (others,), _ = plant.heads(items, [swapped], (4,))
    oldest = lists.clone()
    oldest[:, 0] = lists[:, 0].roll(1)
    (moved,), _ = plant.heads(items, [oldest], (4,))
    change = [(each[:, -1] - last).norm(dim=1).median() for each in (others, moved)]
    assert change[1] > 1.0 * last.norm(dim=1).median() and change[1] > change[0]
