"""Spread of an order's correction, and gradients of the terms, by hand."""

import pytest
import torch

from dinorankclip.losses.telemetry import gradient_report, relative_spread


def test_spread_by_hand():
    draw = torch.Generator().manual_seed(0)
    theta = torch.randn(2, 6, dtype=torch.float64, generator=draw)
    theta[1, 4] = -torch.inf  # removed: no candidate
    order = torch.stack([torch.randperm(6, generator=draw) for _ in range(2)])
    queries = torch.randn(2, 6, 4, dtype=torch.float64, generator=draw)
    keys = torch.randn(6, 4, dtype=torch.float64, generator=draw)
    sums = {"theta": 0.0, 2: 0.0, 3: 0.0}
    for i in range(2):
        for k in range(2, 5):  # order 3 has a history, two candidates remain
            left = [d for d in range(6) if d not in order[i, :k].tolist() and theta[i, d] > -torch.inf]
            sums["theta"] += theta[i, left].std(correction=0).item()
            sums[2] += (keys[left, :2] @ queries[i, k, :2]).std(correction=0).item()
            sums[3] += (keys[left, 2:] @ queries[i, k, 2:]).std(correction=0).item()
    spread = relative_spread(theta, order, queries, keys, (2, 3))
    assert spread == pytest.approx({r: sums[r] / sums["theta"] for r in (2, 3)})


def test_lists_too_short_for_a_history_have_no_spread():
    order = torch.tensor([[0, 1], [1, 0]])
    assert relative_spread(torch.zeros(2, 2), order, torch.ones(2, 2, 2), torch.ones(2, 2), (2, 3)) == {2: 0.0, 3: 0.0}


def test_gradient_norms_and_cosines():
    x = torch.tensor([3.0, 4.0], requires_grad=True)
    y = torch.tensor([1.0], requires_grad=True)
    terms = {
        "along": (x * torch.tensor([3.0, 4.0])).sum(),
        "across": (x * torch.tensor([-4.0, 3.0])).sum(),
        "against": -2 * (x * torch.tensor([3.0, 4.0])).sum(),
        "elsewhere": (2 * y).sum(),
        "constant": torch.tensor(1.0),
    }
    report = gradient_report(terms, (x,))
    assert report["gradient_norm/along"] == pytest.approx(5)
    assert report["gradient_norm/against"] == pytest.approx(10)
    assert report["gradient_norm/elsewhere"] == report["gradient_norm/constant"] == 0
    assert report["gradient_cosine/across|along"] == pytest.approx(0, abs=1e-7)
    assert report["gradient_cosine/against|along"] == pytest.approx(-1)
    assert not any("elsewhere" in name for name in report if name.startswith("gradient_cosine"))
    terms["along"].backward()  # the graph is still there
