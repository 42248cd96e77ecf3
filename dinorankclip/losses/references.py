"""Gives lists another order than the other modality's, and transitions that need no heads: from frozen features.

A teacher is a frozen network whose features of the batch's images and captions are at hand. An order or a transition
that comes from a teacher cannot drift with the model, as an order that the model itself gives can.

Shapes: N own pairs, M pairs over all processes, C width of features, K listed positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dinorankclip import distributed
from dinorankclip.losses.contrastive import unit_rows
from dinorankclip.losses.plackett_luce import corrected_nll
from dinorankclip.losses.plackett_luce_blocked import MeanOfTableLists, applied
from dinorankclip.losses.transitions import start_of_gate

REFERENCES = ("paired", "model", "teacher")
TRANSITIONS = ("learnt", "teacher", "model")
Gather = Callable[[Tensor], Tensor]
Features = Mapping[str, Tensor]  # "image" and "text": frozen features of the same pairs, [M, C] each


def gathered_teacher(teacher: Features | None) -> dict[str, Tensor] | None:
    """Return the features of all processes' pairs, without gradient, of own features [N, C]."""
    if teacher is None:
        return None
    return {modality: distributed.gather_rows(rows.detach()) for modality, rows in teacher.items()}


def unit_teacher(teacher: Features | None, pairs: int) -> dict[str, Tensor]:
    """Return unit-norm features of both modalities; raise `ValueError` unless both are there, a row for each pair."""
    given = {} if teacher is None else {name: rows for name, rows in teacher.items() if name in ("image", "text")}
    if len(given) < 2:
        raise ValueError(
            'this ranking loss takes an order or transitions from a teacher: give teacher={"image": …, "text": …}, '
            f"frozen features of the batch [N, C]; there is {' and '.join(given) or 'nothing'}"
        )
    for name, rows in given.items():
        if rows.ndim != 2 or len(rows) != pairs:
            raise ValueError(f"teacher features of {pairs} pairs are [{pairs}, C]; those of {name} {list(rows.shape)}")
    return {name: unit_rows(rows.detach()) for name, rows in given.items()}


def teacher_similarities(features: Tensor, own: slice) -> Tensor:
    """Return cosines of own items to all items [N, M]; the item itself is +inf, first even among copies of it.

    features [M, C], of unit norm. Sorted, a row i is the list y_i = (i, then items by similarity to i).

    As loops:
        for i in own:
            for d in range(M):
                out[i][d] = inf if d == i else sum(features[i][c] * features[d][c] for c in range(C))
    """
    rows = torch.arange(len(features), device=features.device)[own]
    return (features[own] @ features.T).scatter_(1, rows[:, None], torch.inf)


class FixedTransitions(nn.Module):
    """Holds order 2 without heads: λ₂·c·cos(f_a, f_d) for a candidate d after item a. Only the gate λ₂ learns.

    With c = 1 a candidate gains at most λ₂ ≤ 1 nat. θ = s·cos of the model has a spread of several nats over
    candidates, so the correction decides between near ties and does not replace θ. A larger `scale` c lets it.
    """

    def __init__(self, scale: float = 1.0, gate_start: Sequence[float] | None = None) -> None:
        super().__init__()
        self.scale = scale
        start = start_of_gate(2) if gate_start is None else float(gate_start[0])
        self.gates = nn.ParameterDict({"2": nn.Parameter(torch.tensor(start))})

    def gate(self, order: int) -> Tensor:
        """Return λ_r, the gate of an order."""
        gate: Tensor = self.gates[str(order)]
        return gate.sigmoid()

    def weight(self) -> Tensor:
        """Return λ₂·c."""
        return self.gate(2) * self.scale

    def queries(self, table: Tensor, order: Tensor) -> Tensor:
        """Return corrections [N, K, M] as queries for keys that are the identity, for a report about a few lists."""
        return self.weight().to(table.dtype) * F.pad(table[order[:, :-1]], (0, 0, 1, 0))


def mean_table_nll(theta: Tensor, order: Tensor, table: Tensor, weight: Tensor, backend: str = "auto") -> Tensor:
    """Return the mean NLL of lists whose correction is weight · table[item just listed, candidate], a scalar.

    theta [N, M], order [N, K] and backend as in `plackett_luce_nll`, table [M, M] without gradient, weight a scalar.
    Rows of the table are fetched, which costs N·K·M, where queries and keys of a teacher's width C cost N·K·M·C.

    As loops: `plackett_luce_nll` with
        u[d] = theta[i, d] + (weight * table[order[i, k-1], d] if k > 0 else 0)
    """
    if backend != "reference":
        return applied(MeanOfTableLists, theta, order, table, weight)
    return corrected_nll(theta, order, weight * F.pad(table[order[:, :-1]], (0, 0, 1, 0))).mean()


def centred_table(table: Tensor, order: Tensor, counted: Tensor | None, gather: Gather) -> Tensor:
    """Return the table [M, M] minus its mean over histories: over the items just listed before positions that count.

    order [N, K]; counted, bool [N, K], or None if every position counts. `gather` brings numbers of all processes
    together. Afterwards the mean correction of every candidate is zero.

    As loops:
        for d in range(M):
            before = [order[i][k - 1] for i in range(N) for k in range(1, K) if counted[i][k]]
            out[a][d] = table[a][d] - sum(table[b][d] for b in before) / len(before)
    """
    last = order[:, :-1]
    times = torch.ones_like(last) if counted is None else counted[:, 1:].long()
    own = torch.zeros(len(table), dtype=torch.long, device=table.device).scatter_add_(
        0, last.flatten(), times.flatten()
    )
    share = gather(own.to(table.dtype)[None]).sum(0)
    return table - (share / share.sum().clamp_min(1)) @ table
