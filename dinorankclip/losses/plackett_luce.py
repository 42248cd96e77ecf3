"""Computes equations 2 and 6: the Plackett–Luce likelihood of a ranked list, of first and of higher order.

Shapes: N rows (lists), M items, K ≤ M listed positions, H width of queries and keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dinorankclip.losses.contrastive import single
from dinorankclip.losses.plackett_luce_blocked import (
    REMOVED,
    FirstOrderLists,
    MeanOfTransitionLists,
    TransitionLists,
    applied,
)

# MKL picks its kernel for exp at the first call; when two threads make that call at once, one of them sometimes
# gets a kernel with errors of 1e-4 (observed with torch 2.13 in one process of ten). One call on one thread decides it.
torch.zeros(1).exp()


def plackett_luce_nll(
    theta: Tensor, order: Tensor, queries: Tensor | None = None, keys: Tensor | None = None, *, backend: str = "auto"
) -> Tensor:
    """Return the negative log-likelihood of each row's list, [N]: equation 6; without queries, equation 2.

        nll_i = - Σ_k log  exp(u_ik(y_k)) / Σ_{d not in y_1…y_{k-1}} exp(u_ik(d)),   y = order[i]
        u_ik(d) = theta[i, d] + queries[i, k] · keys[d]

    As loops:
        for i in range(N):
            remaining = {d for d in range(M) if theta[i, d] > -inf}
            for k in range(K):
                u = {d: theta[i, d] + dot(queries[i, k], keys[d]) for d in remaining}
                if order[i, k] in remaining:
                    nll[i] += log(sum(exp(u[d]) for d in remaining)) - u[order[i, k]]
                    remaining.remove(order[i, k])

    theta [N, M] utilities; `-inf` removes an item from that row: it is no candidate, a position that lists it
        adds nothing, and its gradient is zero.
    order [N, K] the item at each position, no item twice in a row; items not listed stay candidates throughout.
    queries [N, K, H], keys [M, H]: the order-r corrections of equation 6 as one inner product, gates and 1/√h
        included. They must not depend on the candidate (queries) or on row and position (keys).
    backend: `reference` is the equation with an N×K×M tensor; `blocked` gives the same value and gradient from
        blocks of positions, recomputed in backward; `auto` takes blocked. Half precision is computed in single.
        Only `reference` has second derivatives (`create_graph=True`); `blocked` refuses them.
    """
    theta, queries, keys = _checked(theta, order, queries, keys, backend)
    with torch.autocast(theta.device.type, enabled=False):
        if backend == "reference":
            return _reference(theta, order, queries, keys)
        if queries is None:
            return applied(FirstOrderLists, theta, order)
        return applied(TransitionLists, theta, queries, keys, order)


def mean_plackett_luce_nll(
    theta: Tensor, order: Tensor, queries: Tensor | None = None, keys: Tensor | None = None, *, backend: str = "auto"
) -> Tensor:
    """Return `plackett_luce_nll(…).mean()`, a scalar, for training. With queries and keys this is faster: weights of
    rows are known, so the forward pass computes gradients, with three products instead of four and half of the
    exponentials. The gradients of all three inputs are stored until backward."""
    if queries is None or backend == "reference":
        return plackett_luce_nll(theta, order, queries, keys, backend=backend).mean()
    theta, queries, keys = _checked(theta, order, queries, keys, backend)
    assert queries is not None and keys is not None, "given, so they come back"
    with_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in (theta, queries, keys))
    with torch.autocast(theta.device.type, enabled=False):
        return applied(MeanOfTransitionLists, theta, queries, keys, order, with_gradient)


def rankclip_nll(theta: Tensor, order: Tensor, epsilon: float = 1e-10) -> Tensor:
    """Return the first-order NLL as in RankCLIP's public code, with an epsilon inside the logarithm, for parity tests.

        nll_i = Σ_k log(Σ_{j ≥ k} exp(z_j) + ε) - z_k,   z = theta[i, order[i]] - max

    At a trained temperature ε dominates: a perfectly ordered list at s = 100 costs 238 instead of nothing.
    """
    sorted_theta = theta.gather(1, order)
    z = sorted_theta - sorted_theta.amax(1, keepdim=True)
    remaining = z.exp().flip(1).cumsum(1).flip(1)
    # an item that was removed from the row by theta = -inf adds nothing at its position
    return ((remaining + epsilon).log() - z).masked_fill(z == REMOVED, 0.0).sum(1)


def _reference(theta: Tensor, order: Tensor, queries: Tensor | None, keys: Tensor | None) -> Tensor:
    return corrected_nll(theta, order, None if queries is None or keys is None else queries @ keys.T)


def corrected_nll(theta: Tensor, order: Tensor, corrections: Tensor | None) -> Tensor:
    """Return `plackett_luce_nll` of equation 6 with a tensor of all corrections [N, K, M]: [N]."""
    length = order.shape[1]
    scores = theta[:, None, :].expand(-1, length, -1)
    if corrections is not None:
        scores = scores + corrections
    # finished[i, k, d]: item d stands before position k in row i
    position = torch.full_like(theta, length, dtype=torch.long)
    position.scatter_(1, order, torch.arange(length, device=order.device).expand_as(order))
    finished = position[:, None, :] < torch.arange(length, device=order.device)[None, :, None]
    absent = theta.detach().gather(1, order) == REMOVED  # listed, but removed from the row
    scores = scores.masked_fill(finished, REMOVED).masked_fill(absent[:, :, None], 0.0)
    chosen = scores.gather(2, order[:, :, None]).squeeze(2)
    return (scores.logsumexp(2) - chosen).masked_fill(absent, 0.0).sum(1)


def _checked(
    theta: Tensor, order: Tensor, queries: Tensor | None, keys: Tensor | None, backend: str
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return utilities, queries and keys in at least single precision. Check shapes, which blocked code relies on."""
    if (queries is None) != (keys is None):
        raise ValueError("give queries and keys together, or neither")
    if backend not in ("auto", "reference", "blocked"):
        raise ValueError(f"unknown backend {backend!r}")
    shapes = {"theta [N, M]": theta, "order [N, K]": order}
    fit = theta.ndim == order.ndim == 2 and len(theta) == len(order) and order.shape[1] <= theta.shape[1]
    if queries is not None and keys is not None:
        shapes |= {"queries [N, K, H]": queries, "keys [M, H]": keys}
        fit = fit and queries.shape[:-1] == order.shape and keys.shape == (theta.shape[1], queries.shape[-1])
    if not fit or order.numel() == 0:
        given = ", ".join(f"{name} is {list(tensor.shape)}" for name, tensor in shapes.items())
        raise ValueError(f"these shapes do not fit, or there is no position: {given}")
    with torch.autocast(theta.device.type, enabled=False):
        theta = single(theta)
        queries, keys = (None if tensor is None else tensor.to(theta.dtype) for tensor in (queries, keys))
        return theta, queries, keys


def reference_order(similarities: Tensor, length: int | None = None) -> Tensor:
    """Rank the items of each row of similarities [N, M]; return the first `length` positions, [N, K], without gradient.

    Descending, ties by item index (D4): `sorted(range(M), key=lambda d: (-similarities[i][d], d))[:length]`
    """
    return similarities.detach().sort(dim=1, descending=True, stable=True).indices[:, :length].contiguous()


def symmetrised(one: Tensor, other: Tensor, weights: tuple[float, float] = (1.0, 1.0)) -> Tensor:
    """Return equation 8's half-sum over both directions: L = -½ [ a·log P(y_one, y_other) + b·log P(y_other, y_one) ].

    P(y_one, y_other) is the likelihood that one similarity of the pairs ranks as the other similarity does. The paper
    has a = b = 1; `weights` are (a, b).

    As loops, for similarities one and other [N, M] (across: image i's texts and text i's images; in: image i's images
    and text i's texts):
        for i in range(N):
            total += a * nll(one[i], sorted(range(M), key=lambda d: -other[i][d]))     # nll: equation 6
            total += b * nll(other[i], sorted(range(M), key=lambda d: -one[i][d]))
        return total / (2 * N)
    """
    return (weights[0] * one + weights[1] * other) / 2
