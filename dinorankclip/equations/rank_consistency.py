"""Equation 8: two similarities of the same pairs, each ranked as the other ranks.

    across  one: image i's texts    other: text i's images
    in      one: image i's images   other: text i's texts

Shapes: N rows, M items, K listed positions.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from .ranking import Backend, mean_plackett_luce_nll

Transitions = Callable[[Tensor], tuple[Tensor, Tensor]]  # lists [N, K] → queries [N, K, H] and keys [M, H]


def rank_consistency(
    one: Tensor,
    other: Tensor,
    one_transitions: Transitions | None = None,
    other_transitions: Transitions | None = None,
    *,
    backend: Backend = "auto",
) -> Tensor:
    """Equation 8 of one term, mean over rows: a scalar.

        L = -½ [ log P(y_one, y_other) + log P(y_other, y_one) ]

    one, other [N, M]: utilities; the list that one is scored on is the order of the other. `…_transitions` give the
    corrections of the items that a similarity ranks, for its lists; without them P is of first order.

    As loops:
        for i in range(N):
            total += nll(one[i], sorted(range(M), key=lambda d: -other[i][d]))     # nll: equation 6
            total += nll(other[i], sorted(range(M), key=lambda d: -one[i][d]))
        return total / (2 * N)
    """

    def nll(theta: Tensor, reference: Tensor, transitions: Transitions | None) -> Tensor:
        order = reference_order(reference)
        queries, keys = (None, None) if transitions is None else transitions(order)
        return mean_plackett_luce_nll(theta, order, queries, keys, backend=backend)

    return symmetrised(nll(one, other, one_transitions), nll(other, one, other_transitions))


def reference_order(similarities: Tensor, length: int | None = None) -> Tensor:
    """The list that a row's similarities [N, M] give, its first `length` positions: [N, K], without gradient.

    Descending, ties by item index (D4): sorted(range(M), key=lambda d: (-similarities[i][d], d))[:length]
    """
    return similarities.detach().sort(dim=1, descending=True, stable=True).indices[:, :length].contiguous()


def symmetrised(one: Tensor, other: Tensor) -> Tensor:
    """Equation 8's half-sum over both ranking directions."""
    return (one + other) / 2
