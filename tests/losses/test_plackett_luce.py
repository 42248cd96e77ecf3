"""Plackett–Luce lists: values known by hand and by the public code, two backends, masks, extremes."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from dinorankclip.losses import plackett_luce_blocked
from dinorankclip.losses.plackett_luce import mean_plackett_luce_nll, plackett_luce_nll, rankclip_nll
from tests.golden import SCALE, pairs, sorted_by

EXACT = {
    "A|B": [1.714993, 0.069108, 1.875560, 13.658947],
    "B|A": [3.782034, 0.272457, 5.820258, 3.794677],
    "L|Lt": [5.168925, 0.953346, 0.012862, 6.000862],
    "Lt|L": [3.506923, 3.547341, 1.324267, 6.948926],
}
PUBLIC = {
    "A|B": [1.715041, 0.069644, 1.876240, 13.658947],
    "B|A": [3.782041, 0.273013, 5.820707, 3.794676],
    "L|Lt": [5.168933, 0.953349, 0.021504, 6.000863],
    "Lt|L": [3.506932, 3.547921, 1.324270, 6.948926],
}


def golden_lists():
    image, text = (F.normalize(x, dim=1) for x in pairs()[:2])
    logits = {"A": image @ image.T, "B": text @ text.T, "L": image @ text.T, "Lt": text @ image.T}
    return {name: (SCALE * logits[name.split("|")[0]], sorted_by(logits[name.split("|")[1]])) for name in EXACT}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_rows_of_rankclip(name, backend):
    theta, order = golden_lists()[name]
    assert plackett_luce_nll(theta, order, backend=backend).tolist() == pytest.approx(EXACT[name], abs=1e-6)
    assert rankclip_nll(theta, order).tolist() == pytest.approx(PUBLIC[name], abs=2e-6)


def test_one_list_on_its_own():
    predicted = torch.tensor([[2, 1, 0.5, -0.3], [0.1, 0.9, -1.2, 0.4], [1.5, -0.7, 0.2, 0.8]], dtype=torch.float64)
    true = torch.tensor([[0.9, 0.1, 0.4, 0.2], [0.3, 0.8, 0.6, 0.5], [0.05, 0.7, 0.2, 0.35]], dtype=torch.float64)
    rows = plackett_luce_nll(predicted, sorted_by(true))
    assert rows.tolist() == pytest.approx([3.197260, 3.596993, 5.642719], abs=1e-6)
    assert rows.mean().item() == pytest.approx(4.145658, abs=1e-6)
    assert plackett_luce_nll(true, sorted_by(predicted)).mean().item() == pytest.approx(3.236024, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_perfect_list_at_a_trained_temperature_costs_nothing(dtype):
    theta = (100 * torch.tensor([[1.0, 0.8, 0.6, 0.4, 0.2]], dtype=dtype)).requires_grad_()
    value = plackett_luce_nll(theta, torch.arange(5)[None])
    (gradient,) = torch.autograd.grad(value.sum(), theta)
    assert 0 <= value.item() < 1e-6
    assert gradient.abs().max() < 1e-7
    public = theta.detach().clone().requires_grad_()
    (wrong,) = torch.autograd.grad(rankclip_nll(public, torch.arange(5)[None]).sum(), public)
    assert wrong.abs().max() > 0.9  # what the public epsilon does here


def test_what_the_public_epsilon_does_to_a_perfect_list():
    theta = (100 * torch.tensor([[1.0, 0.6, 0.3, 0.1, -0.3]], dtype=torch.float64)).requires_grad_()
    value = rankclip_nll(theta, torch.arange(5)[None])
    (gradient,) = torch.autograd.grad(value.sum(), theta)
    assert value.item() == pytest.approx(237.8966, abs=1e-3)
    assert gradient[0].tolist() == pytest.approx([4, -1, -1, -1, -1], abs=1e-3)
    assert plackett_luce_nll(theta.detach(), torch.arange(5)[None]).item() == pytest.approx(2.06e-9, rel=0.01)


@pytest.mark.parametrize("backend", ["reference", "blocked"])
def test_a_utility_of_minus_one_is_no_padding(backend):
    theta = torch.tensor([[-1.0, 0.5, 2.0, -1.0], [0.3, -1.0, -1.0, 1.0]], dtype=torch.float64)
    order = torch.tensor([[2, 0, 1, 3], [1, 3, 0, 2]])
    shifted = plackett_luce_nll(theta + 7, order, backend=backend)
    assert plackett_luce_nll(theta, order, backend=backend).tolist() == pytest.approx(shifted.tolist(), abs=1e-12)


def test_uniform_lists_cost_log_factorial():
    theta = torch.zeros(3, 7, dtype=torch.float64)
    draw = torch.Generator().manual_seed(0)
    order = torch.stack([torch.randperm(7, generator=draw) for _ in range(3)])
    assert plackett_luce_nll(theta, order).tolist() == pytest.approx([math.lgamma(8)] * 3, abs=1e-12)
    assert plackett_luce_nll(theta, order[:, :2]).tolist() == pytest.approx([math.log(42)] * 3, abs=1e-12)


def test_all_orders_of_a_row_are_a_distribution():
    orders = torch.tensor(list(itertools.permutations(range(5))))
    draw = torch.Generator().manual_seed(1)
    theta = (3 * torch.randn(5, dtype=torch.float64, generator=draw)).expand(120, 5)
    assert (-plackett_luce_nll(theta, orders)).exp().sum().item() == pytest.approx(1, abs=1e-12)


def problem(rows, items, length, width, size, seed, removed=0.0, ties=False):
    draw = torch.Generator().manual_seed(seed)
    theta = size * torch.randn(rows, items, dtype=torch.float64, generator=draw)
    if ties:
        theta = (theta / size).round() * size
    if removed:
        theta[torch.rand(rows, items, generator=draw) < removed] = -torch.inf
    order = torch.rand(rows, items, generator=draw).argsort(1)[:, :length]
    queries = torch.randn(rows, length, width, dtype=torch.float64, generator=draw)
    keys = torch.randn(items, width, dtype=torch.float64, generator=draw)
    weight = torch.randn(rows, dtype=torch.float64, generator=draw)
    return theta, order, queries, keys, weight


def value_and_gradients(backend, theta, order, queries, keys, weight, transitions):
    leaves = [x.clone().requires_grad_() for x in ((theta, queries, keys) if transitions else (theta,))]
    nll = plackett_luce_nll(leaves[0], order, *leaves[1:], backend=backend)
    return [nll.detach(), *torch.autograd.grad((nll * weight).sum(), leaves)]


def mean_and_gradients(function, theta, order, queries, keys, transitions):
    leaves = [x.clone().requires_grad_() for x in ((theta, queries, keys) if transitions else (theta,))]
    mean = function(leaves[0], order, *leaves[1:])
    return [mean.detach(), *torch.autograd.grad(3 * mean, leaves)]


CASES = {
    "whole lists": dict(rows=9, items=17, length=17),
    "short lists": dict(rows=9, items=40, length=11),
    "one position": dict(rows=3, items=5, length=1),
    "rows and positions no multiple of a block": dict(rows=13, items=150, length=133),
    "ties": dict(rows=5, items=20, length=20, ties=True),
    "removed items": dict(rows=9, items=30, length=30, removed=0.4),
    "removed items, short lists": dict(rows=9, items=30, length=12, removed=0.4),
    "large utilities": dict(rows=9, items=80, length=80, size=100.0),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("transitions", [False, True])
def test_blocked_equals_reference(case, transitions, monkeypatch):
    monkeypatch.setattr(plackett_luce_blocked, "CPU_ITEMS", 600)  # several blocks of rows, too
    data = problem(**{"width": 3, "size": 2.0, "seed": 1, **CASES[case]})
    slow = value_and_gradients("reference", *data, transitions)
    fast = value_and_gradients("blocked", *data, transitions)
    for a, b in zip(slow, fast):
        assert torch.isfinite(b).all()
        assert (a - b).abs().max() < 1e-9


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("transitions", [False, True])
def test_mean_equals_mean_of_reference_rows(case, transitions, monkeypatch):
    monkeypatch.setattr(plackett_luce_blocked, "CPU_ITEMS", 600)
    *data, _ = problem(**{"width": 3, "size": 2.0, "seed": 1, **CASES[case]})
    slow = mean_and_gradients(lambda *given: plackett_luce_nll(*given, backend="reference").mean(), *data, transitions)
    fast = mean_and_gradients(mean_plackett_luce_nll, *data, transitions)
    for a, b in zip(slow, fast):
        assert torch.isfinite(b).all()
        assert (a - b).abs().max() < 1e-9


def test_mean_without_gradients_is_the_same_value():
    theta, order, queries, keys, _ = problem(5, 20, 20, 3, 2.0, seed=4)
    with_gradient = mean_plackett_luce_nll(theta, order, queries.requires_grad_(), keys)
    with torch.no_grad():
        assert torch.equal(mean_plackett_luce_nll(theta, order, queries, keys), with_gradient)
    assert with_gradient.requires_grad


def test_mean_in_single_precision_at_a_trained_temperature():
    """Gradients within a few units in the last place of utilities of ±100."""
    *data, _ = problem(8, 300, 300, 4, 100.0, seed=9)
    theta, order, queries, keys = data
    single = (theta.float().double(), order, queries.float().double(), keys.float().double())
    exact = mean_and_gradients(lambda *given: plackett_luce_nll(*given, backend="reference").mean(), *single, True)
    result = mean_and_gradients(mean_plackett_luce_nll, theta.float(), order, queries.float(), keys.float(), True)
    for a, b in zip(exact, result):
        assert b.dtype == torch.float32
        assert (a - b).abs().max() < 2e-5 * a.abs().max()


@pytest.mark.parametrize("asked", [0, 1, 2])
def test_mean_with_a_gradient_of_one_input_alone(asked):
    theta, order, queries, keys, _ = problem(5, 20, 12, 3, 2.0, seed=10)
    gradients = []
    for backend in ("reference", "blocked"):
        inputs = [x.clone() for x in (theta, queries, keys)]
        leaf = inputs[asked].requires_grad_()
        mean = mean_plackett_luce_nll(inputs[0], order, *inputs[1:], backend=backend)
        gradients.append(torch.autograd.grad(mean, leaf)[0])
    assert (gradients[0] - gradients[1]).abs().max() < 1e-12


def test_mean_of_strided_inputs_and_of_a_retained_graph():
    theta, order, queries, keys, _ = problem(6, 20, 20, 4, 2.0, seed=11)
    plain = mean_and_gradients(mean_plackett_luce_nll, theta, order, queries, keys, True)
    strided = [x.mT.contiguous().mT for x in (theta, order, queries, keys)]
    assert not any(x.is_contiguous() for x in strided)
    for a, b in zip(plain, mean_and_gradients(mean_plackett_luce_nll, *strided, True)):
        assert (a - b).abs().max() < 1e-12  # products may add up in another order
    leaf = theta.clone().requires_grad_()
    mean = mean_plackett_luce_nll(leaf, order, queries, keys)
    first = torch.autograd.grad(5 * mean, leaf, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(5 * mean, leaf)[0])


@pytest.mark.parametrize("transitions", [False, True])
def test_second_derivatives_are_the_references_alone(transitions):
    theta, order, queries, keys, _ = problem(2, 4, 3, 2, 1.0, seed=12)
    inputs = [x.requires_grad_() for x in ((theta, queries, keys) if transitions else (theta,))]
    exact = lambda t, *qk: plackett_luce_nll(t, order, *qk, backend="reference")  # noqa: E731
    assert torch.autograd.gradgradcheck(exact, inputs)
    for function in (plackett_luce_nll, mean_plackett_luce_nll):
        value = function(inputs[0], order, *inputs[1:]).sum()
        with pytest.raises(NotImplementedError, match="reference"):
            torch.autograd.grad(value, inputs, create_graph=True)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 4),
    items=st.integers(2, 12),
    share=st.floats(0.1, 1),
    width=st.integers(1, 4),
    size=st.floats(0.01, 100),
    removed=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 10**6),
)
def test_properties(rows, items, share, width, size, removed, seed):
    length = max(1, round(share * items))
    data = problem(rows, items, length, width, size, seed, removed)
    theta, order, queries, keys, _ = data
    for transitions in (False, True):
        slow = value_and_gradients("reference", *data, transitions)
        fast = value_and_gradients("blocked", *data, transitions)
        for a, b in zip(slow, fast):
            assert torch.isfinite(b).all() and (a - b).abs().max() < 1e-9
        assert (fast[0] >= 0).all()
        assert (fast[1][theta == -torch.inf] == 0).all()
        assert fast[1].sum(1).abs().max() < 1e-9  # shifting all utilities of a row changes nothing
        shifted = plackett_luce_nll(theta + 7, order, *((queries, keys) if transitions else ()))
        assert (shifted - fast[0]).abs().max() < 1e-9
    mean = mean_and_gradients(mean_plackett_luce_nll, *data[:4], True)
    exact = mean_and_gradients(lambda *given: plackett_luce_nll(*given, backend="reference").mean(), *data[:4], True)
    for a, b in zip(exact, mean):
        assert (a - b).abs().max() < 1e-9
    # in single precision, an error of a few units in the last place of the utilities for each position
    single = plackett_luce_nll(theta.float(), order, queries.float(), keys.float())
    assert (single - fast[0]).abs().max() < 1e-5 * length * (1 + size)


@pytest.mark.parametrize("function", [plackett_luce_nll, mean_plackett_luce_nll])
@pytest.mark.parametrize("transitions", [False, True])
def test_gradcheck(transitions, function):
    theta, order, queries, keys, _ = problem(3, 6, 4, 2, 1.0, seed=3)
    inputs = [x.requires_grad_() for x in ((theta, queries, keys) if transitions else (theta,))]
    assert torch.autograd.gradcheck(lambda t, *qk: function(t, order, *qk), inputs)


def test_centring_over_all_over_remaining_or_not_at_all():
    """Equation 6 centres each correction over the remaining candidates; softmax does not see it."""
    theta, order, queries, keys, _ = problem(4, 7, 7, 3, 2.0, seed=5)
    corrections = queries @ keys.T  # [N, K, M]
    position = order.argsort(1)
    remaining = position[:, None, :] >= torch.arange(7)[None, :, None]
    over_all = corrections - corrections.mean(2, keepdim=True)
    mean = (corrections * remaining).sum(2, keepdim=True) / remaining.sum(2, keepdim=True)
    over_remaining = corrections - mean

    def nll(correction):
        scores = (theta[:, None] + correction).masked_fill(~remaining, -torch.inf)
        return -scores.log_softmax(2).gather(2, order[:, :, None]).sum((1, 2))

    ours = plackett_luce_nll(theta, order, queries, keys)
    for correction in (corrections, over_all, over_remaining):
        assert (nll(correction) - ours).abs().max() < 1e-9


def test_zero_corrections_are_first_order():
    theta, order, queries, keys, weight = problem(6, 70, 70, 4, 30.0, seed=6)
    first = value_and_gradients("blocked", theta, order, queries, keys, weight, False)
    for silent in ((queries * 0, keys), (queries, keys * 0)):
        both = value_and_gradients("blocked", theta, order, *silent, weight, True)
        assert (first[0] - both[0]).abs().max() < 1e-9
        assert (first[1] - both[1]).abs().max() < 1e-9


def test_half_precision_and_autocast_sum_in_single():
    theta, order, queries, keys, _ = problem(5, 60, 60, 4, 20.0, seed=7)
    low = [x.bfloat16() for x in (theta, queries, keys)]
    wide = [x.float() for x in low]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = plackett_luce_nll(low[0].requires_grad_(), order, low[1], low[2])
        value.sum().backward()
    assert value.dtype == torch.float32
    assert torch.equal(value, plackett_luce_nll(wide[0], order, wide[1], wide[2]))
    assert low[0].grad.dtype == torch.bfloat16 and torch.isfinite(low[0].grad).all()
    leaves = [x.detach().clone().requires_grad_() for x in low]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mean = mean_plackett_luce_nll(leaves[0], order, *leaves[1:])
        mean.backward()
    assert mean.dtype == torch.float32 and mean.item() == pytest.approx(value.mean().item(), rel=1e-6)
    assert all(x.grad.dtype == torch.bfloat16 and torch.isfinite(x.grad).all() for x in leaves)


def test_wrong_calls_are_refused():
    theta, order, queries, _, _ = problem(2, 3, 3, 2, 1.0, seed=8)
    with pytest.raises(ValueError, match="together"):
        plackett_luce_nll(theta, order, queries)
    with pytest.raises(ValueError, match="backend"):
        plackett_luce_nll(theta, order, backend="fast")


@pytest.mark.parametrize("backend", ["reference", "blocked"])
@pytest.mark.parametrize("function", [plackett_luce_nll, mean_plackett_luce_nll])
def test_shapes_that_do_not_fit_are_refused(function, backend):
    theta, order, queries, keys, _ = problem(4, 6, 4, 2, 1.0, seed=8)
    wrong = [
        (theta, order[:, :2], queries, keys),  # more queries than positions
        (theta, order, queries[:, :2], keys),
        (theta, order, queries, torch.cat([keys, keys[:1]])),
        (theta, order, torch.cat([queries, queries]), keys),
        (theta, order, queries, keys[:, :1]),
        (theta[:3], order, queries, keys),
        (theta[:, :3], order, queries, keys[:3]),
        (theta, order[:, :0], queries[:, :0], keys),  # no position
        (theta[:0], order[:0], queries[:0], keys),  # no row
    ]
    for inputs in wrong:
        with pytest.raises(ValueError, match="do not fit"):
            function(*inputs, backend=backend)
    with pytest.raises(ValueError, match="do not fit"):
        function(theta[0], order[0], backend=backend)
