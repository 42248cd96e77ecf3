"""A run of two hundred steps can learn what was planted, if its heads may move; at the trunk's rate it cannot."""

import pytest

from bench.planted import Garden
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
