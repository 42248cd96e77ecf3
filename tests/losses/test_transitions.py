"""Equation 7 as loops, by hand, and its gradients. The heads that use it: test_transition_heads.py."""

import math

import pytest
import torch

from dinorankclip.losses.transitions import gated_query, pair_history, transition_scores

ITEMS, DIM, WIDTH = 4, 5, 3


def draw(*shape, seed):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def weights(*widths):
    return [draw(WIDTH, width, seed=number) for number, width in enumerate(widths, start=10)]


def times(matrix, vector):
    return [sum(x * y for x, y in zip(row, vector)) for row in matrix.tolist()]


def correction(history, candidate, query, key):
    return sum(a * b for a, b in zip(times(query, history), times(key, candidate))) / math.sqrt(WIDTH)


def normed(x):
    mean = sum(x) / len(x)
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    return [(value - mean) / math.sqrt(variance + 1e-5) for value in x]


def test_pairs_equal_the_loops():
    items, (query, key) = draw(ITEMS, DIM, seed=0), weights(DIM, DIM)
    beta = transition_scores(items, items, query, key)
    e = items.tolist()
    for a in range(ITEMS):
        for b in range(ITEMS):
            assert beta[a, b].item() == pytest.approx(correction(e[a], e[b], query, key), abs=1e-12)


def test_triples_equal_the_loops():
    items, (first, second, product, query, key) = draw(ITEMS, DIM, seed=0), weights(DIM, DIM, DIM, WIDTH, DIM)
    gamma = transition_scores(pair_history(items[:, None], items, first, second, product), items, query, key)
    assert gamma.shape == (ITEMS, ITEMS, ITEMS)
    e = items.tolist()
    for a in range(ITEMS):
        for b in range(ITEMS):
            parts = (times(first, e[a]), times(second, e[b]), times(product, [x * y for x, y in zip(e[a], e[b])]))
            history = normed([sum(values) for values in zip(*parts)])
            for d in range(ITEMS):
                assert gamma[a, b, d].item() == pytest.approx(correction(history, e[d], query, key), abs=1e-12)


def test_by_hand():
    items = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    # W_q e = 1 and 2, W_k e = 3 and 0, h = 1
    query, key = torch.tensor([[1.0, 1.0]]), torch.tensor([[3.0, 0.0]])
    assert transition_scores(items, items, query, key).tolist() == [[3, 0], [6, 0]]
    # W_1 e_a + W_2 e_b + W_3(e_a ⊙ e_b) = (1, 0) + (2, 2) + (2, 0): normed (1, -1), but for LN's 1e-5
    eye = torch.eye(2)
    a, b = torch.tensor([1.0, 0.0]), torch.tensor([2.0, 2.0])
    history = pair_history(a, b, eye, eye, eye)
    assert history.tolist() == pytest.approx([1, -1], abs=1e-5)
    # keys (1, 0) and (0, 2): ((1, -1)·key)/√2
    gamma = transition_scores(history, items, eye, eye)
    assert gamma.tolist() == pytest.approx([1 / math.sqrt(2), -2 / math.sqrt(2)], abs=1e-4)


def test_the_gate_scales_the_query_once():
    items, (query, key) = draw(ITEMS, DIM, seed=0), weights(DIM, DIM)
    gated = items @ gated_query(query, 0.25).T @ (items @ key.T).T
    torch.testing.assert_close(gated, 0.25 * transition_scores(items, items, query, key))


def test_gradients():
    items, before = draw(ITEMS, DIM, seed=0).requires_grad_(), draw(ITEMS, DIM, seed=1).requires_grad_()
    first, second, product, query, key = (w.requires_grad_() for w in weights(DIM, DIM, DIM, WIDTH, DIM))
    gate = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(transition_scores, (items, items, draw(WIDTH, DIM, seed=5).requires_grad_(), key))
    assert torch.autograd.gradcheck(pair_history, (before, items, first, second, product))
    assert torch.autograd.gradcheck(gated_query, (query, gate))
