"""Computes equation 7, how well a candidate follows the items ranked before it, as functions and as trained heads.

Every order has the form Λ = (W_q·history)·(W_k·e_d)/√h, with another history: the last item (order 2, β), the last two
(order 3, γ), or a transformer layer over more. As an inner product of a query that knows the history and a key that
knows the candidate, Λ enters equation 6 without a tensor over histories × candidates.

A head has two functions of the items e [M, D] of one modality:
  key(e)                   [M, h]      the key of each candidate
  queries(e, lists, gate)  [N, K, h]   for each list [N, K]: (gate/√h)·W_q·history; exactly zero at the first r-1
                                       positions, whose history is too short

Shapes: M items, D embedding width, h head width, w width of a history, r order, N lists, K positions, K' = K-r+1
positions with a history, H = h · (number of active orders).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dinorankclip.distributed import gather_rows
from dinorankclip.methods import HIGHEST_ORDER
from dinorankclip.seeds import drawing_from

MLP_RATIO = 4
BLOCK = 1 << 23  # largest number of values in a block of histories; several blocks are recomputed in backward


def transition_scores(histories: Tensor, items: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Return equation 7 of every candidate after each history: [..., M].

        β_ab  = (W_q e_a)·(W_k e_b)/√h          histories = items
        γ_abd = (W_q h_ab)·(W_k e_d)/√h         histories = pair_history(…)

    histories [..., w], items [M, D], query W_q [h, w], key W_k [h, D]. The scores are not centred over candidates, and
    not masked where a candidate is in its own history: neither changes equation 6 (D10).

    As loops, for one history:
        for d in range(M):
            q = [sum(query[n][c] * history[c] for c in range(w)) for n in range(h)]
            k = [sum(key[n][c] * items[d][c] for c in range(D)) for n in range(h)]
            out[d] = sum(q[n] * k[n] for n in range(h)) / sqrt(h)
    """
    return F.linear(histories, gated_query(query)) @ F.linear(items, key).T


def gated_query(query: Tensor, gate: Tensor | float = 1.0) -> Tensor:
    """Return (λ/√h)·W_q [h, w], which turns a history into the query for a candidate's key W_k·e_d.

    Gate λ and 1/√h enter only here, on the smallest tensor of the computation.
    """
    return query * (gate / math.sqrt(len(query)))


def pair_history(before: Tensor, last: Tensor, first: Tensor, second: Tensor, product: Tensor) -> Tensor:
    """Return h_ab = LN(W_1 e_a + W_2 e_b + W_3 (e_a ⊙ e_b)) [..., h], of the last item b and the item a before b.

    before e_a and last e_b [..., D]; first, second, product: W_1, W_2, W_3 [h, D].

    As loops, for one pair:
        for n in range(h):
            x[n] = sum(W1[n][c] * a[c] + W2[n][c] * b[c] + W3[n][c] * a[c] * b[c] for c in range(D))
        mean, variance = sum(x) / h, sum((x[n] - mean) ** 2 for n in range(h)) / h
        out = [(x[n] - mean) / sqrt(variance + 1e-5) for n in range(h)]
    """
    return history_norm(F.linear(before * last, product) + F.linear(before, first) + F.linear(last, second))


def history_norm(values: Tensor) -> Tensor:
    """Apply LN over the last dimension, without weights: W_q follows, which could only repeat them."""
    return F.layer_norm(values, values.shape[-1:], eps=1e-5)


class PairHead(nn.Module):
    """Computes order 2: β_ab = (W_q e_a)·(W_k e_b)/√h. The history is the item before."""

    def __init__(self, dim: int, width: int):
        super().__init__()
        self.query, self.key = _linear(dim, width), _linear(dim, width)

    def queries(self, items: Tensor, lists: Sequence[Tensor], gate: Tensor) -> list[Tensor]:
        table = F.linear(items, gated_query(self.query.weight, gate))
        return [_pick_late(table, order[:, :-1], order.shape[1]) for order in lists]


class TripleHead(nn.Module):
    """Computes order 3: γ_abd = (W_q h_ab)·(W_k e_d)/√h with h_ab = LN(W_1 e_a + W_2 e_b + W_3(e_a ⊙ e_b)).

    W_1 and W_2 are applied to items instead of pairs, and W_3 in the cheaper of two ways; the value equals that
    of `pair_history`.
    """

    def __init__(self, dim: int, width: int):
        super().__init__()
        self.first, self.second, self.product = (_linear(dim, width) for _ in range(3))
        self.query, self.key = _linear(width, width), _linear(dim, width)

    def queries(self, items: Tensor, lists: Sequence[Tensor], gate: Tensor) -> list[Tensor]:
        weight = gated_query(self.query.weight, gate)
        n_items = len(items)
        if n_items * n_items <= sum(order[:, 2:].numel() for order in lists):
            table = self._table(items, weight).flatten(0, 1)
            return [_pick_late(table, y[:, :-2] * n_items + y[:, 1:-1], y.shape[1]) for y in lists]
        return [_late(self._listed(items, y[:, :-2], y[:, 1:-1], weight), y.shape[1]) for y in lists]

    def _table(self, items: Tensor, weight: Tensor) -> Tensor:
        """Return queries of all pairs, [M, M, h], which is cheaper when the lists together name at least as many."""
        first, second = self.first(items), self.second(items)

        def some(rows: slice) -> Tensor:
            # W_3(e_a ⊙ e_b) = (W_3 diag e_a) e_b: scaling the weights costs M·h·D where e_a ⊙ e_b costs M²·D
            scaled = items[rows, None, :] * self.product.weight  # [A, h, D]
            product = (items @ scaled.flatten(0, 1).T).view(len(items), -1, first.shape[1]).transpose(0, 1)
            return F.linear(history_norm(product + first[rows, None] + second), weight)

        return torch.cat(_in_blocks(some, len(items), len(items) * first.shape[1]))

    def _listed(self, items: Tensor, before: Tensor, last: Tensor, weight: Tensor) -> Tensor:
        """Return queries of the pairs (before, last) [N, K'] only, for short lists or a process with few rows."""
        first, second = self.first(items), self.second(items)

        def some(rows: slice) -> Tensor:
            a, b = before[rows], last[rows]
            product = self.product(_pick(items, a) * _pick(items, b))
            return F.linear(history_norm(product + _pick(first, a) + _pick(second, b)), weight)

        return torch.cat(_in_blocks(some, len(before), before.shape[1] * items.shape[1]))


class DeepHead(nn.Module):
    """Computes order r ≥ 4: one pre-norm transformer layer over the r-1 items before, read at the last item.

        x_d = W e_d;   z_o = x_{y_{k-o}} + p_o  for offsets o = 1 … r-1
        attention of LN(z_1) over all LN(z_o), one head;  g = z_1 + attended;  history = LN(g + MLP(LN(g)))

    Keys and values belong to (item, offset) and are computed once for a batch; attention logits come from an M×M table
    for each offset, which all lists share.
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
    """Return a layer with Xavier weights (the paper's table), drawn from torch's current generator, and zero bias."""
    layer = nn.Linear(width_in, width_out, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def _pick(table: Tensor, index: Tensor) -> Tensor:
    """Return the rows of a [T, w] table at `index` [N, K]: [N, K, w]."""
    return table.index_select(0, index.reshape(-1)).view(*index.shape, table.shape[1])


def _late(queries: Tensor, length: int) -> Tensor:
    """Extend [N, K', h] to [N, K, h] with zeros at the first positions."""
    return F.pad(queries, (0, 0, length - queries.shape[1], 0))


def _pick_late(table: Tensor, index: Tensor, length: int) -> Tensor:
    """Compute `_late(_pick(table, index), length)` in one pass: early positions read an added row of zeros."""
    missing = length - index.shape[1]
    return _pick(F.pad(table, (0, 0, 0, 1)), F.pad(index, (missing, 0), value=len(table)))


def _in_blocks(some: Callable[[slice], Tensor], rows: int, numbers_per_row: int) -> list[Tensor]:
    """Apply `some` to all rows, in blocks of bounded memory; several blocks are recomputed in backward."""
    step = max(1, BLOCK // max(1, numbers_per_row))
    if step >= rows:
        return [some(slice(0, rows))]
    cuts = [slice(start, min(start + step, rows)) for start in range(0, rows, step)]
    return [checkpoint(some, cut, use_reentrant=False, preserve_rng_state=False) for cut in cuts]


def start_of_gate(order: int) -> float:
    """Return s_r at the start: the paper's s_2 = -3, s_r = s_2 - 2(r-2)."""
    return -3.0 - 2.0 * (order - 2)


def centred_queries(
    queries: Tensor,
    active: Sequence[int],
    counted: Tensor | None = None,
    gather: Callable[[Tensor], Tensor] = gather_rows,
) -> Tensor:
    """Return queries minus their mean over histories [N, K, H], so that no candidate's correction has a mean.

    A correction is q(history)·k(d). Its mean over histories, mean(q)·k(d), depends on the candidate alone: it would be
    a popularity of d, not a transition. Histories of order r are those of all positions from r-1 on of all lists.

    queries [N, K, H] of one kind of lists, blocks of h for each active order, zero where a history is too short.
    counted, bool [N, K]: positions that count; None: all. `gather` brings rows of numbers [1, …] of all processes
    together, with gradient: histories of other processes are histories of the batch, too.

    As loops, for the block of order r:
        places = [(i, k) for i in range(N) for k in range(r - 1, K) if counted[i][k]]
        for n in range(h):
            mean = sum(queries[i][k][n] for i, k in places) / len(places)
            for i, k in places:
                out[i][k][n] = queries[i][k][n] - mean        # 0 at other places
    """
    rows, length, width = queries.shape
    position = torch.arange(length, device=queries.device)
    acts = torch.stack([position >= r - 1 for r in active], -1).expand(rows, -1, -1)  # [N, K, orders]
    if counted is not None:
        acts = acts & counted[:, :, None]
    acts = acts.to(queries.dtype).repeat_interleave(width // len(active), -1)
    own = torch.stack([(queries * acts).sum((0, 1)), acts.sum((0, 1))])
    total, count = gather(own[None]).sum(0).unbind(0)
    return (queries - total / count.clamp_min(1)) * acts


class TransitionHeads(nn.Module):
    """Holds heads and gates of orders 2 … `order` for one modality. Each order draws weights from its own named seed.

    Items enter as √D · (unit-norm embedding), with gradient: at unit norm the corrections would start at 1e-4 beside
    utilities of up to 100 and never move (D7). Gates λ_r = σ(s_r) start near zero, at the paper's s_2 = -3,
    s_r = s_2 - 2(r-2), or at `gate_start` = (s_2, s_3, …).
    """

    heads: Any  # nn.ModuleDict: order → PairHead, TripleHead or DeepHead

    def __init__(
        self,
        dim: int,
        order: int,
        head_dim: int = 32,
        *,
        modality: str = "image",
        seed: int = 0,
        gate_start: Sequence[float] | None = None,
    ):
        super().__init__()
        if not 0 <= order <= HIGHEST_ORDER:
            raise ValueError(f"order {order} is not between 0 and {HIGHEST_ORDER}")
        starts = [start_of_gate(r) for r in range(2, order + 1)] if gate_start is None else list(gate_start)
        self.order, self.head_dim = order, head_dim
        self.item_scale = math.sqrt(dim)
        self.heads, self.gates = nn.ModuleDict(), nn.ParameterDict()
        for r in range(2, order + 1):
            with drawing_from(seed, "transitions", modality, r):
                head = {2: PairHead, 3: TripleHead}.get(r)
                self.heads[str(r)] = head(dim, head_dim) if head else DeepHead(dim, head_dim, r)
            self.gates[str(r)] = nn.Parameter(torch.tensor(float(starts[r - 2])))

    def gate(self, order: int) -> Tensor:
        """Return λ_r, the gate of an order."""
        gate: Tensor = self.gates[str(order)]
        return gate.sigmoid()

    def forward(self, items: Tensor, lists: Sequence[Tensor], active: Sequence[int]) -> tuple[list[Tensor], Tensor]:
        """Return queries [N, K, H] of each list [N, K] of item indices, and keys [M, H], of unit-norm items [M, D].

        `active` names the orders that act (at least one); the others stay out of the graph and get no gradient.
        """
        scaled = (self.item_scale * items).to(self.gates[str(active[0])].dtype)
        blocks: list[list[Tensor]] = [[] for _ in lists]
        for r in active:
            for block, queries in zip(blocks, self.heads[str(r)].queries(scaled, lists, self.gate(r))):
                block.append(queries)
        keys = [self.heads[str(r)].key(scaled) for r in active]
        return [torch.cat(block, -1).to(items.dtype) for block in blocks], torch.cat(keys, -1).to(items.dtype)

    @torch.no_grad()
    def centred_pairs(self, items: Tensor) -> Tensor:
        """Return β̃ [M, M] without its gate, for a heatmap: row a centred over candidates d ≠ a, the cell (a, a) NaN."""
        head, scaled = self.heads["2"], self.item_scale * items
        each = torch.arange(len(items), device=items.device)
        return _centred(transition_scores(scaled, scaled, head.query.weight, head.key.weight), history=each[:, None])

    @torch.no_grad()
    def centred_triples(self, items: Tensor, before: int) -> Tensor:
        """Return γ̃ [M, M] without its gate after (before, b), a row for each b; cells of history items are NaN."""
        head, scaled = self.heads["3"], self.item_scale * items
        first, second, product = head.first.weight, head.second.weight, head.product.weight
        pairs = pair_history(scaled[before].expand_as(scaled), scaled, first, second, product)
        each = torch.arange(len(items), device=items.device)
        history = torch.stack([torch.full_like(each, before), each], 1)
        table = _centred(transition_scores(pairs, scaled, head.query.weight, head.key.weight), history)
        table[before] = torch.nan  # an item cannot come twice
        return table


def _centred(table: Tensor, history: Tensor) -> Tensor:
    """Centre rows of [M, M] over the candidates outside the row's `history` [M, r-1]; cells of the history are NaN."""
    table = table.scatter(1, history, torch.nan)
    return table - table.nanmean(1, keepdim=True)
