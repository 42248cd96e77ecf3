"""Exact list likelihoods without a tensor over rows × positions × items, forward and backward.

With the items of a row sorted by its list, the candidates of position k are the sorted items k, k+1, …: the
normaliser is the log-sum-exp of a causal attention read from the end, with theta as a bias on the keys. A block of
positions needs only the items from its first position on, so half of the N×K×M scores are never computed; backward
recomputes a block's scores from the saved log-sum-exp.

Shapes: N rows, M items, K ≤ M listed positions, H width; inside a block R rows, P positions, J = items not finished
at its first position. "Sorted" tensors have the listed items first, in list order.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

REMOVED = float("-inf")
CPU_ITEMS = 1 << 13  # rows × items of a block: with its positions, 2 to 4 MB of fp32 scores, near the cores' caches
DEVICE_SCORES = 1 << 26  # elsewhere a block should fill the device


def positions_at_once(n_items: int) -> int:
    """Positions of a block: more waste work in the finished triangle, fewer starve the matrix product."""
    return 64 if n_items <= 256 else 128


class FirstOrderLists(torch.autograd.Function):
    """Without queries, every normaliser is a cumulative log-sum-exp from the end: O(N·M) time and memory.

    backward: p(d at position k) = exp(theta_d - lse_k), so d nll/d theta_d = exp(theta_d + log Σ_{k ≤ pos(d)}
    exp(-lse_k)) - [d is listed]; the exponent is at most log K, whatever the utilities.
    """

    @staticmethod
    def forward(ctx, theta: Tensor, order: Tensor) -> Tensor:
        places, inverse = sorting(order, theta.shape[1])
        sorted_theta = theta.gather(1, places)
        log_sum = sorted_theta.flip(1).logcumsumexp(1).flip(1)[:, : order.shape[1]]
        nll, log_sum = _close(log_sum, sorted_theta)
        ctx.save_for_backward(sorted_theta, log_sum, inverse)
        return nll

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_nll: Tensor):
        sorted_theta, log_sum, inverse = ctx.saved_tensors
        length = log_sum.shape[1]
        weight = (-log_sum).logcumsumexp(1)
        weight = torch.cat([weight, weight[:, -1:].expand(-1, sorted_theta.shape[1] - length)], 1)
        grad = exponential_(sorted_theta + weight)
        grad[:, :length] -= _listed(sorted_theta, length)
        grad.masked_fill_(sorted_theta == REMOVED, 0.0)
        return grad.mul_(grad_nll[:, None]).gather(1, inverse), None


class TransitionLists(torch.autograd.Function):
    """Lists whose scores carry a correction queries[i, k] · keys[d]."""

    @staticmethod
    def forward(ctx, theta: Tensor, queries: Tensor, keys: Tensor, order: Tensor) -> Tensor:
        places, inverse = sorting(order, theta.shape[1])
        sorted_theta = theta.gather(1, places)
        log_sum = torch.empty_like(order, dtype=theta.dtype)
        blocks = _Blocks(sorted_theta, queries, keys, places)
        diagonal_score = torch.empty_like(log_sum)
        for rows in blocks.row_blocks():
            keys_of_rows = blocks.sorted_keys(rows)
            for positions in blocks.position_blocks():
                scores = blocks.scores(rows, positions, keys_of_rows)  # [R, P, J]
                diagonal_score[rows, positions] = scores.diagonal(dim1=1, dim2=2)
                top = scores.amax(2, keepdim=True).clamp_min_(torch.finfo(theta.dtype).min)  # all removed: not -inf
                total = exponential_(scores.sub_(top)).sum(2)
                log_sum[rows, positions] = total.log_().add_(top.squeeze(2))
        nll, log_sum = _close(log_sum, sorted_theta, diagonal_score)
        ctx.save_for_backward(sorted_theta, queries, keys, places, inverse, log_sum)
        return nll

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_nll: Tensor):
        sorted_theta, queries, keys, places, inverse, log_sum = ctx.saved_tensors
        with torch.autocast(grad_nll.device.type, enabled=False):
            blocks = _Blocks(sorted_theta, queries, keys, places)
            listed = _listed(sorted_theta, log_sum.shape[1])
            grad_theta = torch.zeros_like(sorted_theta)
            grad_queries, grad_keys = torch.empty_like(queries), torch.zeros_like(keys)
            grad_buffer, unsorted = torch.empty_like(blocks.key_buffer), torch.empty_like(blocks.key_buffer)
            for rows in blocks.row_blocks():
                keys_of_rows = blocks.sorted_keys(rows)  # [R, M, H]
                grad_of_rows = grad_buffer[: len(keys_of_rows)].zero_()
                weight = grad_nll[rows, None, None]
                weighted_queries = queries[rows] * weight
                for positions in blocks.position_blocks():
                    first = positions.start
                    # probabilities, minus one at the item that was chosen: d nll / d scores
                    slope = exponential_(blocks.scores(rows, positions, keys_of_rows, log_sum[rows, positions, None]))
                    slope.diagonal(dim1=1, dim2=2).sub_(listed[rows, positions])
                    grad_theta[rows, first:] += slope.sum(1)
                    grad_queries[rows, positions] = torch.bmm(slope, keys_of_rows[:, first:])
                    grad_of_rows[:, first:].baddbmm_(slope.mT, weighted_queries[:, positions])
                grad_queries[rows] *= weight * listed[rows, :, None]
                grad_keys += _pick(grad_of_rows, inverse[rows], unsorted).sum(0)
            grad_theta.masked_fill_(sorted_theta == REMOVED, 0.0)
            grad_theta = grad_theta.mul_(grad_nll[:, None]).gather(1, inverse)
        return grad_theta, grad_queries, grad_keys, None


class _Blocks:
    """How the scores are cut up, and the one place where a block of them is computed."""

    def __init__(self, sorted_theta: Tensor, queries: Tensor, keys: Tensor, places: Tensor):
        self.sorted_theta, self.queries, self.keys, self.places = sorted_theta, queries, keys, places
        self.n_rows, self.n_items = sorted_theta.shape
        self.length = queries.shape[1]
        self.step = min(positions_at_once(self.n_items), self.length)
        on_cpu = sorted_theta.device.type == "cpu"
        rows = (CPU_ITEMS if on_cpu else DEVICE_SCORES // self.step) // self.n_items
        self.rows_at_once = max(1, min(self.n_rows, rows))
        self.buffer = sorted_theta.new_empty(self.rows_at_once * self.step * self.n_items)
        self.key_buffer = keys.new_empty(self.rows_at_once, self.n_items, keys.shape[1])
        # added, not masked: several times faster, and a score is never +inf
        self.finished = torch.full((self.step, self.step), REMOVED, dtype=keys.dtype, device=keys.device).tril_(-1)

    def row_blocks(self) -> list[slice]:
        return _cuts(self.n_rows, self.rows_at_once)

    def position_blocks(self) -> list[slice]:
        return _cuts(self.length, self.step)

    def sorted_keys(self, rows: slice) -> Tensor:
        return _pick(self.keys[None], self.places[rows], self.key_buffer)

    def scores(self, rows: slice, positions: slice, keys_of_rows: Tensor, less: Tensor | None = None) -> Tensor:
        """[R, P, J] with finished items at -inf, `less` [R, P, 1] taken off. The tensor is the shared buffer: valid
        until the next call."""
        bias = self.sorted_theta[rows, None, positions.start :]
        queries = self.queries[rows, positions]
        shape = (queries.shape[0], queries.shape[1], bias.shape[2])
        scores = self.buffer[: shape[0] * shape[1] * shape[2]].view(shape)
        if less is None:
            scores.copy_(bias.expand(shape))
        else:
            torch.sub(bias, less, out=scores)
        scores.baddbmm_(queries, keys_of_rows[:, positions.start :].mT)
        size = shape[1]
        scores[:, :, :size] += self.finished[:size, :size]
        return scores


def sorting(order: Tensor, n_items: int) -> tuple[Tensor, Tensor]:
    """places [N, M]: listed items in list order, then the others by index; inverse [N, M]: where an item went."""
    n_rows, length = order.shape
    places = order
    if length < n_items:
        others = torch.ones(n_rows, n_items, dtype=torch.bool, device=order.device).scatter_(1, order, False)
        places = torch.cat([order, others.nonzero()[:, 1].view(n_rows, n_items - length)], 1)
    ranks = torch.arange(n_items, device=order.device).expand_as(places)
    return places, torch.empty_like(places).scatter_(1, places, ranks)


def _close(log_sum: Tensor, sorted_theta: Tensor, chosen: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Row sums of log_sum - chosen over positions whose item takes part; the others' log_sum becomes +inf, which
    makes all their probabilities exactly zero in backward."""
    chosen = sorted_theta[:, : log_sum.shape[1]] if chosen is None else chosen
    absent = sorted_theta[:, : log_sum.shape[1]] == REMOVED
    nll = (log_sum - chosen).masked_fill_(absent, 0.0).sum(1)
    return nll, log_sum.masked_fill(absent, float("inf"))


def _listed(sorted_theta: Tensor, length: int) -> Tensor:
    """One at positions whose item takes part, else zero."""
    return (sorted_theta[:, :length] != REMOVED).to(sorted_theta.dtype)


def exponential_(values: Tensor) -> Tensor:
    """exp in place, but never below the cube of the precision, which no sum here can feel.

    The floor is for speed: the vectorised exp is 20 to 200 times slower on arguments that underflow, and at s = 100
    most of them do. Where an exact zero is promised (items removed by theta = -inf), the caller writes it.
    """
    return values.clamp_min_(3 * math.log(torch.finfo(values.dtype).eps)).exp_()


def _pick(tables: Tensor, places: Tensor, buffer: Tensor) -> Tensor:
    """Rows of each table [R or 1, M, H] at places [R, M], written to the buffer [≥ R, M, H]. A gather also serves to
    undo a sorting: unlike a scatter, it adds up the same way on every run and device."""
    n_rows, n_items, width = places.shape[0], *tables.shape[1:]
    if len(tables) > 1:
        places = places + torch.arange(n_rows, device=places.device)[:, None] * n_items
    picked = buffer[:n_rows]
    torch.index_select(tables.reshape(-1, width), 0, places.reshape(-1), out=picked.view(-1, width))
    return picked


def _cuts(total: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, total)) for start in range(0, total, step)]
