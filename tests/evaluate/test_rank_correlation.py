import math

import pytest
import torch

from dinorankclip.evaluate.rank_metrics import average_ranks, inversions, kendall, rounded, spearman
from tests.evaluate.slow_orders import slow_kendall, slow_spearman


@pytest.mark.parametrize("items", [2, 3, 7, 8, 9, 16, 17, 33])
@pytest.mark.parametrize("values", [1, 2, 4, 1000])
def test_both_follow_the_loops_with_and_without_ties(items, values):
    generator = torch.Generator().manual_seed(items * values)
    x = torch.randint(0, values, (6, items), generator=generator).float()
    y = torch.randint(0, max(2, values // 2), (6, items), generator=generator).float()
    assert kendall(x, y).tolist() == pytest.approx([slow_kendall(*rows) for rows in zip(x.tolist(), y.tolist())])
    assert spearman(x, y).tolist() == pytest.approx([slow_spearman(*rows) for rows in zip(x.tolist(), y.tolist())])


def test_a_case_by_hand():
    # Pairs in order: 4 of 6; (b, c) tied in x, (c, d) turned round in y.
    x, y = torch.tensor([[1.0, 2.0, 2.0, 3.0]]), torch.tensor([[1.0, 2.0, 4.0, 3.0]])
    assert kendall(x, y).item() == pytest.approx((4 - 1) / math.sqrt(5 * 6))
    assert average_ranks(x).tolist() == [[0, 1.5, 1.5, 3]]
    assert inversions(torch.tensor([[2, 0, 3, 1], [3, 2, 1, 0], [0, 1, 2, 3]])).tolist() == [3, 6, 0]


def test_same_order_reversed_order_no_order():
    x = torch.rand(5, 100, generator=torch.Generator().manual_seed(0))
    for measure in (kendall, spearman):
        assert measure(x, x.exp()).tolist() == pytest.approx([1] * 5)
        assert measure(x, -x).tolist() == pytest.approx([-1] * 5)
        assert measure(x, torch.zeros_like(x)).tolist() == [0] * 5


def test_independent_orders_agree_by_chance_alone():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(400, 200, generator=generator), torch.rand(400, 200, generator=generator)
    for measure in (kendall, spearman):
        found = measure(x, y)
        assert abs(found.mean()) < 3 * found.std() / 20
    # The variance that theory gives τ: 2(2n + 5) / 9n(n - 1).
    assert kendall(x, y).var().item() == pytest.approx(2 * 405 / (9 * 200 * 199), rel=0.25)


def test_rounding_errors_are_no_order():
    assert rounded(torch.tensor([0.3, 0.3 + 6e-8, 0.300003])).tolist() == [300000, 300000, 300003]
