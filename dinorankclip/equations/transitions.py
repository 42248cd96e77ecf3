"""Equation 7: how well a candidate follows what was ranked just before it, the last item (β) or the last two (γ).

Both are one form, Λ = (W_q·history)·(W_k·e_d)/√h, with another history. As an inner product of a query that knows the
history and a key that knows the candidate they enter equation 6 without a tensor over histories × candidates.

Shapes: M items e [M, D], D embedding width, h head width, w width of a history: D for β, h for γ.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor


def transitions(histories: Tensor, items: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Equation 7, of every candidate after each history: [..., M].

        β_ab  = (W_q e_a)·(W_k e_b)/√h          histories = items
        γ_abd = (W_q h_ab)·(W_k e_d)/√h         histories = pair_history(…)

    histories [..., w], items [M, D], query W_q [h, w], key W_k [h, D]. Neither centred over candidates nor masked where
    a candidate stands in its own history: equation 6 takes those away by itself (D10).

    As loops, for one history:
        for d in range(M):
            q = [sum(query[n][c] * history[c] for c in range(w)) for n in range(h)]
            k = [sum(key[n][c] * items[d][c] for c in range(D)) for n in range(h)]
            out[d] = sum(q[n] * k[n] for n in range(h)) / sqrt(h)
    """
    return F.linear(histories, gated_query(query)) @ F.linear(items, key).T


def gated_query(query: Tensor, gate: Tensor | float = 1.0) -> Tensor:
    """(λ/√h)·W_q [h, w], which makes of a history the query for a candidate's key W_k·e_d.

    Gate λ and 1/√h enter here and nowhere else, on the smallest tensor on the way.
    """
    return query * (gate / math.sqrt(len(query)))


def pair_history(before: Tensor, last: Tensor, first: Tensor, second: Tensor, product: Tensor) -> Tensor:
    """h_ab = LN(W_1 e_a + W_2 e_b + W_3 (e_a ⊙ e_b)) [..., h], of the last item b and the one before it, a.

    before e_a and last e_b [..., D]; first, second, product: W_1, W_2, W_3 [h, D].

    As loops, for one pair:
        for n in range(h):
            x[n] = sum(W1[n][c] * a[c] + W2[n][c] * b[c] + W3[n][c] * a[c] * b[c] for c in range(D))
        mean, variance = sum(x) / h, sum((x[n] - mean) ** 2 for n in range(h)) / h
        out = [(x[n] - mean) / sqrt(variance + 1e-5) for n in range(h)]
    """
    return history_norm(F.linear(before * last, product) + F.linear(before, first) + F.linear(last, second))


def history_norm(values: Tensor) -> Tensor:
    """LN over the last dimension, without weights of its own: W_q follows and would only repeat them."""
    return F.layer_norm(values, values.shape[-1:], eps=1e-5)
