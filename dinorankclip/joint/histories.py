"""Equation 7 as modules, and its continuation above order 3: how an order sees what was ranked before.

Every head answers two questions about the items e [M, D] of one modality:
  keys(e)                  [M, h]      what a candidate offers
  queries(e, lists, gate)  [N, K, h]   for each list [N, K]: (gate/√h)·W_q·history; exactly zero at the first r-1
                                       positions, whose history is too short

Shapes: M items, D embedding width, h head width, r order, N lists, K positions, K' = K-r+1 those with a history.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dinorankclip.equations import gated_query, history_norm

MLP_RATIO = 4
BLOCK = 1 << 23  # numbers that one block of histories may hold; what needs more is cut and recomputed in backward


class PairHead(nn.Module):
    """Order 2: β_ab = (W_q e_a)·(W_k e_b)/√h. The history is the item before."""

    def __init__(self, dim: int, width: int):
        super().__init__()
        self.query, self.key = _linear(dim, width), _linear(dim, width)

    def keys(self, items: Tensor) -> Tensor:
        return self.key(items)

    def queries(self, items: Tensor, lists: Sequence[Tensor], gate: Tensor) -> list[Tensor]:
        table = F.linear(items, gated_query(self.query.weight, gate))
        return [_pick_late(table, order[:, :-1], order.shape[1]) for order in lists]


class TripleHead(nn.Module):
    """Order 3: γ_abd = (W_q h_ab)·(W_k e_d)/√h with h_ab = LN(W_1 e_a + W_2 e_b + W_3(e_a ⊙ e_b)).

    W_1 and W_2 are applied to items, not to pairs, and W_3 in the cheaper of two ways: the value is `pair_history`'s.
    """

    def __init__(self, dim: int, width: int):
        super().__init__()
        self.first, self.second, self.product = (_linear(dim, width) for _ in range(3))
        self.query, self.key = _linear(width, width), _linear(dim, width)

    def keys(self, items: Tensor) -> Tensor:
        return self.key(items)

    def queries(self, items: Tensor, lists: Sequence[Tensor], gate: Tensor) -> list[Tensor]:
        weight = gated_query(self.query.weight, gate)
        n_items = len(items)
        if n_items * n_items <= sum(order[:, 2:].numel() for order in lists):
            table = self._table(items, weight).flatten(0, 1)
            return [_pick_late(table, y[:, :-2] * n_items + y[:, 1:-1], y.shape[1]) for y in lists]
        return [_late(self._listed(items, y[:, :-2], y[:, 1:-1], weight), y.shape[1]) for y in lists]

    def _table(self, items: Tensor, weight: Tensor) -> Tensor:
        """Queries of all pairs, [M, M, h], for lists that together name more pairs than there are."""
        first, second = self.first(items), self.second(items)

        def some(rows: slice) -> Tensor:
            # W_3(e_a ⊙ e_b) = (W_3 diag e_a) e_b: scaling the weights costs M·h·D where e_a ⊙ e_b costs M²·D
            scaled = items[rows, None, :] * self.product.weight  # [A, h, D]
            product = (items @ scaled.flatten(0, 1).T).view(len(items), -1, first.shape[1]).transpose(0, 1)
            return F.linear(history_norm(product + first[rows, None] + second), weight)

        return torch.cat(_in_blocks(some, len(items), len(items) * first.shape[1]))

    def _listed(self, items: Tensor, before: Tensor, last: Tensor, weight: Tensor) -> Tensor:
        """Queries of the pairs (before, last) [N, K'] only, for short lists or a process with few rows."""
        first, second = self.first(items), self.second(items)

        def some(rows: slice) -> Tensor:
            a, b = before[rows], last[rows]
            product = self.product(_pick(items, a) * _pick(items, b))
            return F.linear(history_norm(product + _pick(first, a) + _pick(second, b)), weight)

        return torch.cat(_in_blocks(some, len(before), before.shape[1] * items.shape[1]))


class DeepHead(nn.Module):
    """Order r ≥ 4: one pre-norm transformer layer over the r-1 items before, of which only the last is read.

        x_d = W e_d;   z_o = x_{y_{k-o}} + p_o  for offsets o = 1 … r-1
        attention of LN(z_1) over all LN(z_o), one head;  g = z_1 + attended;  history = LN(g + MLP(LN(g)))

    Keys and values belong to (item, offset) and are computed once a batch; attention logits come from one M×M table
    an offset, which all lists share.
    """

    def __init__(self, dim: int, width: int, order: int):
        super().__init__()
        self.order = order
        self.project = _linear(dim, width)
        self.positional_embedding = nn.Parameter(torch.randn(order - 1, width) * 0.02)
        self.attend_query, self.attend_key = _linear(width, width), _linear(width, width)
        self.attend_value, self.attend_out = _linear(width, width), _linear(width, width)
        self.widen = _linear(width, MLP_RATIO * width, bias=True)
        self.narrow = _linear(MLP_RATIO * width, width, bias=True)
        self.query, self.key = _linear(width, width), _linear(dim, width)

    def keys(self, items: Tensor) -> Tensor:
        return self.key(items)

    def queries(self, items: Tensor, lists: Sequence[Tensor], gate: Tensor) -> list[Tensor]:
        weight = gated_query(self.query.weight, gate)
        placed = self.project(items) + self.positional_embedding[:, None, :]  # z [r-1, M, h], offset 1 first
        normed = history_norm(placed)
        values = self.attend_out(self.attend_value(normed))
        asked = self.attend_query(normed[0]) / math.sqrt(normed.shape[-1])
        logits = asked @ self.attend_key(normed).mT  # [r-1, M, M]: the last item asks, the item at an offset answers
        return [_late(self._histories(placed[0], values, logits, y, weight), y.shape[1]) for y in lists]

    def _histories(self, start: Tensor, values: Tensor, logits: Tensor, order: Tensor, weight: Tensor) -> Tensor:
        length, span, n_items = order.shape[1], self.order - 1, len(start)
        if length <= span:
            return start.new_zeros(len(order), 0, weight.shape[0])
        # past[o] [N, K']: the item o+1 places before positions r-1 … K-1
        past = [order[:, span - 1 - o : length - 1 - o] for o in range(span)]

        def some(rows: slice) -> Tensor:
            last = past[0][rows]
            heard = torch.stack([logits[o].flatten()[last * n_items + past[o][rows]] for o in range(span)], -1)
            share = heard.softmax(-1)
            g = _pick(start, last)
            for o in range(span):
                g = g + share[..., o, None] * _pick(values[o], past[o][rows])
            g = g + self.narrow(F.gelu(self.widen(history_norm(g))))
            return F.linear(history_norm(g), weight)

        return torch.cat(_in_blocks(some, len(order), past[0].shape[1] * weight.shape[0] * (MLP_RATIO + self.order)))


def _linear(width_in: int, width_out: int, bias: bool = False) -> nn.Linear:
    """Xavier weights (the paper's table), zero bias; drawn from torch's current generator."""
    layer = nn.Linear(width_in, width_out, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def _pick(table: Tensor, index: Tensor) -> Tensor:
    """Rows of a [T, w] table at `index` [N, K]: [N, K, w]."""
    return table.index_select(0, index.reshape(-1)).view(*index.shape, table.shape[1])


def _late(queries: Tensor, length: int) -> Tensor:
    """[N, K', h] → [N, K, h], zero at the positions before."""
    return F.pad(queries, (0, 0, length - queries.shape[1], 0))


def _pick_late(table: Tensor, index: Tensor, length: int) -> Tensor:
    """`_late(_pick(table, index), length)` in one pass: early positions read a row of zeros added to the table."""
    missing = length - index.shape[1]
    return _pick(F.pad(table, (0, 0, 0, 1)), F.pad(index, (missing, 0), value=len(table)))


def _in_blocks(some: Callable[[slice], Tensor], rows: int, numbers_per_row: int) -> list[Tensor]:
    """`some` over all rows, in blocks of bounded memory; with several blocks, each is recomputed in backward."""
    step = max(1, BLOCK // max(1, numbers_per_row))
    if step >= rows:
        return [some(slice(0, rows))]
    cuts = [slice(start, min(start + step, rows)) for start in range(0, rows, step)]
    return [checkpoint(some, cut, use_reentrant=False, preserve_rng_state=False) for cut in cuts]
