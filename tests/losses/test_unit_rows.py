"""Rows of length one: what they are, their gradients, and rows that have no direction."""

import pytest
import torch
import torch.nn.functional as F

from dinorankclip.losses.contrastive import info_nce, unit_rows


def draw(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def test_by_hand():
    rows = torch.tensor([[3.0, 4.0], [0.0, -2.0], [0.0, 0.0], [1e-9, 0.0]])
    torch.testing.assert_close(unit_rows(rows), torch.tensor([[0.6, 0.8], [0.0, -1.0], [0.0, 0.0], [0.0, 0.0]]))
    assert unit_rows(torch.tensor([3.0, 4.0])).tolist() == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_with_a_direction_are_divided_by_their_length_bit_for_bit(dtype):
    rows, incoming = 10 ** draw(500, 1, dtype=dtype) * draw(500, 33, dtype=dtype, seed=1), draw(500, 33, seed=2)
    found = []
    for function in (unit_rows, lambda x: F.normalize(x, dim=-1)):
        leaf = rows.clone().requires_grad_()
        out = function(leaf)
        out.backward(incoming.to(dtype))
        found.append((out.detach(), leaf.grad))
    assert all(torch.equal(ours, usual) for ours, usual in zip(*found))


def test_gradients():
    assert torch.autograd.gradcheck(unit_rows, draw(5, 4).requires_grad_())
    assert torch.autograd.gradgradcheck(unit_rows, draw(3, 4).requires_grad_())


@pytest.mark.parametrize("length", [0.0, 1e-10])
def test_a_row_without_a_direction_gets_no_gradient_and_the_others_theirs(length):
    """One such row among six at s = 100. It is the same distance from all: others have the gradient of that."""
    image, text = draw(6, 8, dtype=torch.float32).requires_grad_(), draw(6, 8, dtype=torch.float32, seed=1)
    with torch.no_grad():
        image[2] *= length / image[2].norm()
    info_nce(image, text, 100.0).backward()
    assert image.grad[2].tolist() == [0.0] * 8
    others = [n for n in range(6) if n != 2]
    logits = torch.zeros(6, 6, dtype=torch.float64)
    leaf = image.detach().double()[others].requires_grad_()
    logits[others] = 100.0 * F.normalize(leaf, dim=1) @ F.normalize(text.double(), dim=1).T
    own = torch.arange(6)
    ((F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2).backward()
    assert image.grad[others].abs().max() < 100
    torch.testing.assert_close(image.grad[others].double(), leaf.grad, rtol=1e-4, atol=1e-5)
