"""Equation 8: figures of the public code, loops, gradients, and the loss that is made of it."""

import math

import pytest
import torch
import torch.nn.functional as F

from dinorankclip.losses import RankingLoss
from dinorankclip.losses.plackett_luce import mean_plackett_luce_nll, reference_order, symmetrised
from tests.golden import SCALE, pairs


def rank_consistency(one, other, one_transitions=None, other_transitions=None, backend="auto"):
    """Equation 8 of one term, from the functions that `RankingLoss` calls. `…_transitions` give queries and keys of
    a list [N, K], for the items that a similarity [N, M] ranks; without them lists are of first order."""

    def nll(theta, reference, transitions):
        order = reference_order(reference)
        queries, keys = (None, None) if transitions is None else transitions(order)
        return mean_plackett_luce_nll(theta, order, queries, keys, backend=backend)

    return symmetrised(nll(one, other, one_transitions), nll(other, one, other_transitions))


def similarities():
    image, text = (F.normalize(x, dim=1) for x in pairs()[:2])
    return image, text, SCALE * image @ image.T, SCALE * text @ text.T, SCALE * image @ text.T


def test_the_reference_order_is_descending_with_ties_by_index():
    rows = torch.tensor([[0.5, 2.0, 0.5, 1.0], [1.0, 1.0, -torch.inf, 1.0]], requires_grad=True)
    assert reference_order(rows).tolist() == [[1, 3, 0, 2], [0, 1, 3, 2]]
    assert reference_order(rows, 2).tolist() == [[1, 3], [0, 1]]
    draw = torch.randint(0, 5, (6, 9), generator=torch.Generator().manual_seed(0)).float()
    for row, order in zip(draw.tolist(), reference_order(draw).tolist()):
        assert order == sorted(range(9), key=lambda d, row=row: (-row[d], d))


def test_figures_of_first_order():
    """Exact values of PL(A|B) and PL(B|A), PL(L|Lᵀ) and PL(Lᵀ|L): equation 8 is the mean of each two."""
    *_, a, b, cross = similarities()
    assert rank_consistency(a, b).item() == pytest.approx((4.329651 + 3.417356) / 2, abs=1e-6)
    assert rank_consistency(cross, cross.T).item() == pytest.approx((3.033999 + 3.831864) / 2, abs=1e-6)


def test_by_hand_and_as_loops():
    # two items, one similarity certain of the other's order, the other undecided: (log(1 + e⁻²) + log 2)/2
    one, other = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 1.0]])
    assert rank_consistency(one, other).item() == pytest.approx((math.log1p(math.exp(-2)) + math.log(2)) / 2)
    draw = torch.Generator().manual_seed(0)
    one, other = torch.randn(2, 5, 4, dtype=torch.float64, generator=draw)
    total = 0.0
    for i in range(5):
        for theta, reference in ((one[i].tolist(), other[i].tolist()), (other[i].tolist(), one[i].tolist())):
            probability, left = 1.0, set(range(4))
            for chosen in sorted(range(4), key=lambda d, reference=reference: -reference[d]):
                weight = {d: math.exp(theta[d]) for d in left}
                probability *= weight[chosen] / sum(weight.values())
                left.remove(chosen)
            total -= math.log(probability)
    assert rank_consistency(one, other).item() == pytest.approx(total / 10, abs=1e-12)


@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_gradients(backend):
    draw = torch.Generator().manual_seed(0)
    one, other = (torch.randn(3, 5, dtype=torch.float64, generator=draw).requires_grad_() for _ in range(2))
    queries = torch.randn(3, 5, 2, dtype=torch.float64, generator=draw).requires_grad_()
    keys = torch.randn(5, 2, dtype=torch.float64, generator=draw).requires_grad_()

    def loss(one, other, queries, keys):
        return rank_consistency(one, other, lambda order: (queries, keys), backend=backend)

    assert torch.autograd.gradcheck(loss, (one, other, queries, keys))
    assert torch.autograd.gradcheck(symmetrised, (one, other))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_ranking_loss_is_made_of_it(order):
    image, text, a, b, cross = similarities()
    loss = RankingLoss(3, order, 2, seed=4).double()
    active = tuple(range(2, order + 1))

    def of(modality, items):
        def transitions(lists):
            (queries,), keys = loss.transitions[modality](items, [lists], active)
            return queries, keys

        return transitions if active else None

    images, texts = of("image", image), of("text", text)
    nll = loss.nll_with(image, text, SCALE, active)
    assert nll["in"] == pytest.approx(rank_consistency(a, b, images, texts).item(), abs=1e-12)
    assert nll["cross"] == pytest.approx(rank_consistency(cross, cross.T, texts, images).item(), abs=1e-12)
