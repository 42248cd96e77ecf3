"""The gated sum, its angle and the proposition that bounds it; pyramid pooling against plain loops."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dinorankclip.models.fusion import (
    alignment_bound,
    alignment_ratio,
    fused_angle,
    gated_sum,
    pyramid_matrix,
    pyramid_pool,
    rescaled,
)


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# ------------------------------------------------------------------------------------------- equation and proposition


@st.composite
def fusions(draw):
    """(v, u, α) of one item whose ratio max|α|·‖u‖/‖v‖ is any number below 1."""
    dim = draw(st.integers(2, 6))
    rows = st.lists(st.floats(-10, 10), min_size=dim, max_size=dim)
    v, u = (torch.tensor([draw(rows)], dtype=torch.float64) for _ in range(2))
    alpha = torch.tensor([draw(st.lists(st.floats(-1, 1), min_size=dim, max_size=dim))], dtype=torch.float64)
    assume(v.norm() > 1e-3 and u.norm() > 1e-3 and alpha.abs().max() > 1e-3)
    # Closer to 1 the arcsine itself loses the digits that are compared.
    ratio = draw(st.floats(0, 0.9999))
    return v, u * ratio / alignment_ratio(alpha, u, v), alpha


@settings(max_examples=300, deadline=None)
@given(fusions())
def test_the_angle_keeps_its_bound(case):
    v, u, alpha = case
    ratio = alignment_ratio(alpha, u, v)
    assert ratio < 1
    assert fused_angle(gated_sum(v, u, alpha), v) <= alignment_bound(ratio) + 1e-9


@pytest.mark.parametrize("degrees", [0.001, 1.0, 30.0, 89.0])
def test_the_bound_is_reached(degrees):
    # The change that turns v most for its length ends at a right angle to the sum.
    angle = math.radians(degrees)
    v = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    end = math.cos(angle) * torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    alpha = torch.full_like(v, 0.25)
    u = (end - v) / 0.25
    bound = alignment_bound(alignment_ratio(alpha, u, v))
    torch.testing.assert_close(fused_angle(gated_sum(v, u, alpha), v), bound, rtol=1e-10, atol=0)
    assert bound.item() == pytest.approx(degrees, rel=1e-10)


def test_from_a_ratio_of_one_there_is_no_bound():
    ratio = torch.tensor([0.0, 0.5, 1.0, 7.0], requires_grad=True)
    bound = alignment_bound(ratio)
    assert bound.tolist() == pytest.approx([0.0, 30.0, 180.0, 180.0])
    bound.sum().backward()
    assert ratio.grad.isfinite().all()
    v, u = torch.tensor([[1.0, 0.0]]), torch.tensor([[-2.0, 0.0]])
    assert fused_angle(gated_sum(v, u, torch.ones(1, 2)), v).item() == pytest.approx(180.0)


def test_fusing_by_hand():
    v, u = torch.tensor([[3.0, 4.0, 0.0]]), torch.tensor([[0.0, 0.0, 2.0]])
    alpha = torch.tensor([[0.9, 0.1, 0.5]])
    assert rescaled(u, v).tolist() == [[0.0, 0.0, 5.0]]
    fused = gated_sum(v, rescaled(u, v), alpha)
    assert fused.tolist() == [[3.0, 4.0, 2.5]]
    assert fused_angle(fused, v).item() == pytest.approx(math.degrees(math.atan(0.5)))
    assert alignment_ratio(alpha, rescaled(u, v), v).item() == pytest.approx(0.9)
    assert torch.equal(gated_sum(v, u, torch.zeros_like(v)), v)


@pytest.mark.parametrize("change", [1e-6, 1e-4, 1e-2, 1.0, 100.0])
def test_small_angles_survive_single_precision(change):
    v, across = draw(64, 128, dtype=torch.float32), draw(64, 128, seed=1, dtype=torch.float32)
    fused = v + change * across
    exact = fused_angle(fused.double(), v.double())
    torch.testing.assert_close(fused_angle(fused, v).double(), exact, rtol=1e-5, atol=0)
    cosines = torch.nn.functional.cosine_similarity(fused.double(), v.double())
    if change > 1e-4:  # below, even double precision loses digits in the cosine
        torch.testing.assert_close(exact, torch.rad2deg(torch.acos(cosines)), rtol=1e-7, atol=0)
    assert fused_angle(v, v).eq(0).all()


def test_half_precision_is_left():
    v, u, alpha = (draw(4, 8, seed=seed).bfloat16() for seed in range(3))
    assert gated_sum(v, u, alpha).dtype == rescaled(u, v).dtype == fused_angle(u, v).dtype == torch.float32
    assert pyramid_pool(draw(2, 5, 3).half()).dtype == torch.float32


def test_rescaling_passes_no_gradient_to_the_trunk_and_none_at_zero():
    u, v = draw(3, 4), draw(3, 4, seed=1).requires_grad_()
    u[1] = 0
    u.requires_grad_()
    out = rescaled(u, v)
    torch.testing.assert_close(out.norm(dim=-1)[[0, 2]], v.norm(dim=-1)[[0, 2]])
    assert out[1].eq(0).all()
    (out * draw(3, 4, seed=2)).sum().backward()
    assert v.grad is None
    assert u.grad.isfinite().all() and u.grad[1].eq(0).all() and u.grad[0].ne(0).any()


def test_gradients_of_the_sum():
    v, u, alpha = (draw(3, 4, seed=seed).requires_grad_() for seed in range(3))
    assert torch.autograd.gradcheck(gated_sum, (v, u, alpha))
    assert torch.autograd.gradcheck(lambda u: rescaled(u, v), u)
    assert torch.autograd.gradcheck(fused_angle, (v, u))
    assert torch.autograd.gradcheck(lambda a, u, v: alignment_bound(alignment_ratio(a, u, v) / 100), (alpha, u, v))


# ------------------------------------------------------------------------------------------------------------ pyramid


def pyramid_oracle(tokens, lengths, bins=(2, 4, 8)):
    pooled = []
    for item, n in zip(tokens, lengths):
        ranges = [(math.floor(j * n / k), math.ceil((j + 1) * n / k)) for k in bins for j in range(k)]
        pooled.append(torch.stack([item[first:end].mean(0) for first, end in ranges]))
    return torch.stack(pooled)


def test_pyramid_equals_the_loops():
    lengths = torch.tensor([1, 2, 3, 5, 7, 8, 9, 17, 24])
    tokens = draw(9, 24, 3)
    torch.testing.assert_close(pyramid_pool(tokens, lengths), pyramid_oracle(tokens, lengths.tolist()))
    torch.testing.assert_close(pyramid_pool(tokens), pyramid_oracle(tokens, [24] * 9))
    for length in range(1, 12):  # every token enters each scale, whatever the length
        matrix = pyramid_matrix(torch.tensor(length), length)
        assert matrix.shape == (14, length)
        torch.testing.assert_close(matrix.sum(-1), torch.ones(14))
        assert all(scale.sum(0).gt(0).all() for scale in matrix.split([2, 4, 8]))


@pytest.mark.parametrize("length", [1, 3, 8, 13, 49])
def test_pyramid_is_adaptive_average_pooling(length):
    tokens = draw(2, length, 5)
    columns = tokens.transpose(1, 2)
    pooled = torch.cat([torch.nn.functional.adaptive_avg_pool1d(columns, k) for k in (2, 4, 8)], -1)
    torch.testing.assert_close(pyramid_pool(tokens), pooled.transpose(1, 2))


def test_pyramid_by_hand():
    tokens = torch.tensor([[[1.0], [2.0], [6.0]]])
    # 3 tokens: halves share the middle one; quarters and eighths repeat tokens.
    assert pyramid_pool(tokens, bins=(2, 4)).flatten().tolist() == [1.5, 4.0, 1.0, 1.5, 4.0, 6.0]
    assert pyramid_pool(tokens, torch.tensor([1]), bins=(2,)).flatten().tolist() == [1.0, 1.0]
    assert pyramid_pool(tokens, torch.tensor([0]), bins=(2,)).flatten().tolist() == [0.0, 0.0]


def test_pyramid_gradients_and_padding():
    tokens, lengths = draw(3, 9, 2), torch.tensor([1, 5, 9])
    assert torch.autograd.gradcheck(lambda x: pyramid_pool(x, lengths), tokens.requires_grad_())
    assert torch.autograd.gradcheck(pyramid_pool, tokens)
    hole = torch.arange(9) >= lengths[:, None]
    damaged = tokens.detach().masked_fill(hole[..., None], math.nan).requires_grad_()
    pooled = pyramid_pool(damaged, lengths)
    torch.testing.assert_close(pooled, pyramid_pool(tokens, lengths))
    pooled.sum().backward()
    assert damaged.grad[hole].eq(0).all()
