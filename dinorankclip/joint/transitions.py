"""Transition heads of one modality: the corrections of orders 2 … R as one query and one key per item.

Shapes: M items, D embedding width, h head width, N lists, K positions, H = h · (number of active orders).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dinorankclip.equations import pair_history, transitions
from dinorankclip.joint.histories import DeepHead, PairHead, TripleHead
from dinorankclip.methods import HIGHEST_ORDER
from dinorankclip.seeds import drawing_from


def first_gate(order: int) -> float:
    """s_r at the start: s_2 = -3, s_3 = -5, s_r = s_2 - 2(r-2), so that λ_r = σ(s_r) starts near zero."""
    return -3.0 - 2.0 * (order - 2)


class TransitionHeads(nn.Module):
    """Heads and gates of orders 2 … `order`. Each order draws its weights from its own named seed.

    Items enter as √D · (unit-norm embedding), with gradient: at unit norm the corrections would start at 1e-4 beside
    utilities of up to 100 and never move (D7).
    """

    heads: Any  # nn.ModuleDict: order → PairHead, TripleHead or DeepHead

    def __init__(self, dim: int, order: int, head_dim: int = 32, *, modality: str = "image", seed: int = 0):
        super().__init__()
        if not 0 <= order <= HIGHEST_ORDER:
            raise ValueError(f"order {order} is not between 0 and {HIGHEST_ORDER}")
        self.order, self.head_dim = order, head_dim
        self.item_scale = math.sqrt(dim)
        self.heads, self.gates = nn.ModuleDict(), nn.ParameterDict()
        for r in range(2, order + 1):
            with drawing_from(seed, "transitions", modality, r):
                self.heads[str(r)] = _head(dim, head_dim, r)
            self.gates[str(r)] = nn.Parameter(torch.tensor(first_gate(r)))

    def gate(self, order: int) -> Tensor:
        """λ_r"""
        return self.gates[str(order)].sigmoid()

    def forward(
        self, items: Tensor, lists: Sequence[Tensor], active: Sequence[int]
    ) -> tuple[list[Tensor], Tensor]:
        """Unit-norm items [M, D] and lists of item indices, each [N, K] → queries, each [N, K, H], and keys [M, H].

        `active` names the orders that act (at least one); the others stay out of the graph, gradient and all.
        """
        scaled = (self.item_scale * items).to(self.gates[str(active[0])].dtype)
        blocks: list[list[Tensor]] = [[] for _ in lists]
        for r in active:
            for block, queries in zip(blocks, self.heads[str(r)].queries(scaled, lists, self.gate(r))):
                block.append(queries)
        keys = [self.heads[str(r)].keys(scaled) for r in active]
        return [torch.cat(block, -1).to(items.dtype) for block in blocks], torch.cat(keys, -1).to(items.dtype)

    @torch.no_grad()
    def centred_pairs(self, items: Tensor) -> Tensor:
        """β̃ [M, M] without its gate for a heatmap: row a centred over candidates d ≠ a, the cell (a, a) empty (NaN)."""
        head, scaled = self.heads["2"], self.item_scale * items
        each = torch.arange(len(items), device=items.device)
        return _centred(transitions(scaled, scaled, head.query.weight, head.key.weight), history=each[:, None])

    @torch.no_grad()
    def centred_triples(self, items: Tensor, before: int) -> Tensor:
        """γ̃ [M, M] without its gate after (before, b), one row for each b; cells of a history item are empty (NaN)."""
        head, scaled = self.heads["3"], self.item_scale * items
        first, second, product = head.first.weight, head.second.weight, head.product.weight
        pairs = pair_history(scaled[before].expand_as(scaled), scaled, first, second, product)
        each = torch.arange(len(items), device=items.device)
        history = torch.stack([torch.full_like(each, before), each], 1)
        table = _centred(transitions(pairs, scaled, head.query.weight, head.key.weight), history)
        table[before] = torch.nan  # the same item twice is no history
        return table


def _centred(table: Tensor, history: Tensor) -> Tensor:
    """Rows of [M, M] centred over the candidates that are not in the row's `history` [M, r-1]; those cells are NaN."""
    table = table.scatter(1, history, torch.nan)
    return table - table.nanmean(1, keepdim=True)


def _head(dim: int, width: int, order: int) -> nn.Module:
    if order == 2:
        return PairHead(dim, width)
    if order == 3:
        return TripleHead(dim, width)
    return DeepHead(dim, width, order)
