"""The variance–covariance term: loops, hand value, gradients, what it is zero for."""

import math

import pytest
import torch

from dinorankclip.config import LossSettings
from dinorankclip.losses import Objective, decorrelation
from dinorankclip.losses.contrastive import unit_rows
from dinorankclip.losses.decorrelation import both_decorrelated
from dinorankclip.types import Embeddings, Progress


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def looped(rows):
    rows, (count, dim) = rows.tolist(), rows.shape
    z = [[math.sqrt(dim) * x for x in row] for row in rows]
    mean = [sum(row[d] for row in z) / count for d in range(dim)]
    total = 0.0
    for d in range(dim):
        for e in range(dim):
            entry = sum((row[d] - mean[d]) * (row[e] - mean[e]) for row in z) / (count - 1)
            total += max(0, 1 - math.sqrt(entry + 1e-4)) / dim if d == e else entry**2 / dim / 25
    return total


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_it_is_what_the_loops_say(shift):
    rows = unit_rows(draw(7, 4) + shift)
    assert decorrelation(rows).item() == pytest.approx(looped(rows), abs=1e-12)


def test_a_value_by_hand():
    """Two opposite rows along the diagonal of a plane: z = ±(1, 1), S = [[2, 2], [2, 2]]. Both variances are above 1,
    and the two covariances give (4 + 4)/2/25."""
    rows = torch.tensor([[1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64) / math.sqrt(2)
    assert decorrelation(rows).item() == pytest.approx(0.16)
    collapsed = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    assert decorrelation(collapsed).item() == pytest.approx(0.99)  # 1 - √1e-4


def test_gradients_are_those_of_differences():
    rows = draw(6, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: decorrelation(unit_rows(x)), rows)


def test_rows_in_all_directions_cost_little_and_a_cone_costs_much():
    spread, cone = unit_rows(draw(4000, 8)), unit_rows(draw(4000, 8) + 5)
    assert decorrelation(spread) < 0.02 < 0.5 < decorrelation(cone)
    assert both_decorrelated(spread, cone) == (decorrelation(spread) + decorrelation(cone)) / 2
    assert both_decorrelated(spread[:1], cone[:1]) == 0


@pytest.mark.parametrize("method", ["clip", "siglip", "rankclip"])
def test_it_joins_any_contrastive_method(method):
    named = Embeddings({name: draw(6, 4, seed=seed) for seed, name in enumerate(("image", "text"))})
    scale, bias = torch.tensor(3.0, dtype=torch.float64), torch.tensor(-1.0, dtype=torch.float64)
    values = {}
    for weight in (0.0, 2.0):
        objective = Objective(4, method, LossSettings(decorrelation=weight)).double()
        values[weight] = objective(named, scale, Progress(5, 10, 1), bias=bias)
    added = values[2.0].terms.pop("decorrelation")
    assert added == 2 * both_decorrelated(unit_rows(named.image), unit_rows(named.text))
    assert values[2.0].terms == values[0.0].terms
