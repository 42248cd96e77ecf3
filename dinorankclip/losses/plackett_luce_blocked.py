"""Computes exact list likelihoods without a tensor over rows × positions × items, forward and backward.

With the items of a row sorted by its list, the candidates of position k are the sorted items k, k+1, …: the normaliser
is the log-sum-exp of a causal attention read from the end, with theta as a bias on the keys. A block of positions needs
only the items from its first position on, so half of the N×K×M scores are never computed. Gradients are computed block
by block too: in the forward pass where the weights of rows are known, else in backward, from scores computed again and
the saved log-sum-exp.

Shapes: N rows, M items, K ≤ M listed positions, H width; inside a block R rows, P positions, J = items not finished
at its first position. "Sorted" tensors have the listed items first, in list order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

Gradients = tuple[Tensor | None, ...]
REMOVED = float("-inf")  # the utility of an item that does not take part in a row
CPU_ITEMS = 1 << 13  # rows × items of a block: with its positions, 2 to 4 MB of fp32 scores, near the cores' caches
DEVICE_SCORES = 1 << 26  # elsewhere a block should fill the device


def positions_at_once(n_items: int) -> int:
    """Return the positions of a block: more waste work in the finished triangle, fewer starve the matrix product."""
    return 64 if n_items <= 256 else 128


class Blocks:
    """Computes scores theta[i, d] + queries[i, k] · keys[d] of sorted items d not finished at position k."""

    def __init__(self, sorted_theta: Tensor, queries: Tensor, keys: Tensor, places: Tensor):
        self.sorted_theta, self.queries, self.keys, self.places = sorted_theta, queries, keys, places
        self.n_rows, self.n_items = sorted_theta.shape
        self.length = queries.shape[1]
        self.step = min(positions_at_once(self.n_items), self.length)
        on_cpu = sorted_theta.device.type == "cpu"
        rows = (CPU_ITEMS if on_cpu else DEVICE_SCORES // self.step) // self.n_items
        rows_at_once = max(1, min(self.n_rows, rows))
        self.row_blocks, self.position_blocks = _cuts(self.n_rows, rows_at_once), _cuts(self.length, self.step)
        self.buffer = sorted_theta.new_empty(rows_at_once * self.step * self.n_items)
        self.key_buffer = keys.new_empty(rows_at_once, self.n_items, keys.shape[1])
        # added, not masked: several times faster, and a score is never +inf
        self.finished = torch.full((self.step, self.step), REMOVED, dtype=keys.dtype, device=keys.device).tril_(-1)

    def sorted_keys(self, rows: slice) -> Tensor:
        return pick_rows(self.keys[None], self.places[rows], self.key_buffer)

    def scores(self, rows: slice, positions: slice, keys_of_rows: Tensor, less: Tensor | None = None) -> Tensor:
        """Return [R, P, J] with finished items at -inf, minus `less` [R, P, 1]. The tensor is the shared buffer: it is
        valid until the next call."""
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
    """Return places [N, M], listed items in list order, then the others by index; and each item's place [N, M]."""
    n_rows, length = order.shape
    places = order
    if length < n_items:
        others = torch.ones(n_rows, n_items, dtype=torch.bool, device=order.device).scatter_(1, order, False)
        if order.device.type == "cpu":
            remaining = others.nonzero()[:, 1].view(n_rows, n_items - length)
        else:  # counting non-zero entries would wait for the device
            remaining = others.byte().argsort(dim=1, descending=True, stable=True)[:, : n_items - length]
        places = torch.cat([order, remaining], 1)
    ranks = torch.arange(n_items, device=order.device).expand_as(places)
    return places, torch.empty_like(places).scatter_(1, places, ranks)


def exponential_(values: Tensor) -> Tensor:
    """Compute exp in place, but never below the cube of the precision, which changes no sum here.

    The floor is for speed: the vectorised exp is 20 to 200 times slower on arguments that underflow, and at s = 100
    most arguments do. Where an exact zero is needed (items removed by theta = -inf), the caller writes it.
    """
    return values.clamp_min_(3 * math.log(torch.finfo(values.dtype).eps)).exp_()


def pick_rows(tables: Tensor, places: Tensor, buffer: Tensor) -> Tensor:
    """Write the rows of each table [R or 1, M, H] at places [R, M] to the buffer [≥ R, M, H]. A gather also undoes a
    sorting: unlike a scatter, it adds up the same way on every run and device."""
    n_rows, n_items, width = places.shape[0], *tables.shape[1:]
    if len(tables) > 1:
        places = places + torch.arange(n_rows, device=places.device)[:, None] * n_items
    picked = buffer[:n_rows]
    torch.index_select(tables.reshape(-1, width), 0, places.reshape(-1), out=picked.view(-1, width))
    return picked


def _cuts(total: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, total)) for start in range(0, total, step)]


def applied(function: type[torch.autograd.Function], *inputs: Tensor | bool | None) -> Tensor:
    """Call `function.apply`, which torch leaves untyped."""
    value: Tensor = function.apply(*inputs)  # type: ignore[no-untyped-call]
    return value


def first_derivatives(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """Mark a backward that cannot be differentiated again. `once_differentiable` is not enough: where the incoming
    gradient is a constant, as that of a loss, it silently drops the second derivative."""

    @wraps(backward)
    def checked(ctx: Any, *gradients: Tensor) -> Gradients:
        if torch.is_grad_enabled():  # true in backward only with create_graph=True
            raise NotImplementedError(
                "losses in blocks have no second derivatives; ranked lists have them with backend='reference'"
            )
        return backward(ctx, *gradients)

    return checked


class FirstOrderLists(torch.autograd.Function):
    """Computes first-order lists: normalisers are cumulative log-sum-exps from the end, in O(N·M) time and memory.

    backward: p(d at position k) = exp(theta_d - lse_k), so d nll/d theta_d = exp(theta_d + log Σ_{k ≤ pos(d)}
    exp(-lse_k)) - [d is listed]; the exponent is at most log K, whatever the utilities.
    """

    @staticmethod
    def forward(ctx: Any, theta: Tensor, order: Tensor) -> Tensor:
        places, inverse = sorting(order, theta.shape[1])
        sorted_theta, length = theta.gather(1, places), order.shape[1]
        log_sum = sorted_theta.flip(1).logcumsumexp(1).flip(1)[:, :length]
        # +inf at absent positions: their probabilities add nothing to the sums over positions
        present_log_sum = log_sum.masked_fill(_absent(sorted_theta, length), torch.inf)
        ctx.save_for_backward(sorted_theta, present_log_sum, inverse)
        return _close(log_sum, sorted_theta, sorted_theta[:, :length])

    @staticmethod
    @first_derivatives
    def backward(ctx: Any, grad_nll: Tensor) -> Gradients:
        sorted_theta, log_sum, inverse = ctx.saved_tensors
        length = log_sum.shape[1]
        weight = (-log_sum).logcumsumexp(1)
        weight = torch.cat([weight, weight[:, -1:].expand(-1, sorted_theta.shape[1] - length)], 1)
        grad = exponential_(sorted_theta + weight)
        grad[:, :length] -= (~_absent(sorted_theta, length)).to(grad.dtype)
        grad.masked_fill_(sorted_theta == REMOVED, 0.0)
        return grad.mul_(grad_nll[:, None]).gather(1, inverse), None


class TransitionLists(torch.autograd.Function):
    """Computes the NLL [N] of lists with a correction queries[i, k] · keys[d]. Backward computes the scores again."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, queries: Tensor, keys: Tensor, order: Tensor) -> Tensor:
        places, inverse = sorting(order, theta.shape[1])
        sorted_theta = theta.gather(1, places)
        nll, log_sum = _walk(Blocks(sorted_theta, queries, keys, places))
        ctx.save_for_backward(sorted_theta, queries, keys, places, inverse, log_sum)
        return nll

    @staticmethod
    @first_derivatives
    def backward(ctx: Any, grad_nll: Tensor) -> Gradients:
        sorted_theta, queries, keys, places, inverse, log_sum = ctx.saved_tensors
        with torch.autocast(grad_nll.device.type, enabled=False):
            blocks = Blocks(sorted_theta, queries, keys, places)
            slopes = _Slopes(blocks, inverse, grad_nll)
            for rows in blocks.row_blocks:
                keys_of_rows = blocks.sorted_keys(rows)
                for positions in blocks.position_blocks:
                    less = log_sum[rows, positions, None]
                    probabilities = exponential_(blocks.scores(rows, positions, keys_of_rows, less))
                    slopes.add(rows, positions, keys_of_rows, probabilities, slopes.weight[rows, positions])
                slopes.end(rows, keys_of_rows)
        return *slopes.gradients(), None


class MeanOfTransitionLists(torch.autograd.Function):
    """Computes the mean of `TransitionLists` over rows, a scalar. The weight of a row is known beforehand, so gradients
    come from the scores of the forward pass, and no score is computed twice."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, queries: Tensor, keys: Tensor, order: Tensor, with_gradient: bool) -> Tensor:
        places, inverse = sorting(order, theta.shape[1])
        blocks = Blocks(theta.gather(1, places), queries, keys, places)
        weight = theta.new_full((len(theta),), 1 / len(theta))
        slopes = _Slopes(blocks, inverse, weight) if with_gradient else None
        nll, _ = _walk(blocks, slopes)
        if slopes is not None:
            ctx.save_for_backward(*slopes.gradients())
        return nll.mean()

    @staticmethod
    @first_derivatives
    def backward(ctx: Any, grad_mean: Tensor) -> Gradients:
        # not in place: a retained graph uses the gradients again
        gradients = zip(ctx.saved_tensors, ctx.needs_input_grad)
        return *(grad_mean * gradient if needed else None for gradient, needed in gradients), None, None


class MeanOfTableLists(torch.autograd.Function):
    """Computes the mean NLL of lists with a correction weight · table[item just listed, d], a scalar.

    theta [N, M], order [N, K], table [M, M] without gradient, weight a scalar. Gradients come from the scores of the
    forward pass, in blocks of rows. A correction is fetched, not multiplied, so time grows as N·K·M.
    """

    @staticmethod
    def forward(ctx: Any, theta: Tensor, order: Tensor, table: Tensor, weight: Tensor) -> Tensor:
        n_rows, n_items, length = *theta.shape, order.shape[1]
        rows_at_once = max(1, (CPU_ITEMS if theta.device.type == "cpu" else DEVICE_SCORES // length) // n_items)
        finished = torch.full((length, length), REMOVED, dtype=theta.dtype, device=theta.device).tril_(-1)
        grad_theta, grad_weight = torch.zeros_like(theta), torch.zeros_like(weight)
        nll = theta.new_zeros(())
        smallest = torch.finfo(theta.dtype).min
        for rows in _cuts(n_rows, rows_at_once):
            some_theta, listed = theta[rows], order[rows]
            present = (some_theta.gather(1, listed) != REMOVED).to(theta.dtype) / n_rows  # weight of a position [R, K]
            fetched = table.new_zeros(len(listed), length, n_items)
            fetched[:, 1:] = table[listed[:, :-1]]
            scores = torch.addcmul(some_theta[:, None], fetched, weight.to(theta.dtype))
            at_listed = listed[:, None].expand(-1, length, -1)  # [R, K, K]: of each position, the listed items
            of_listed = scores.gather(2, at_listed)
            scores.scatter_(2, at_listed, of_listed + finished)
            top = scores.amax(2, keepdim=True).clamp_min_(smallest)
            powers = exponential_(scores.sub_(top))
            total = powers.sum(2)
            chosen = of_listed.diagonal(dim1=1, dim2=2).masked_fill(present == 0, 0.0)
            nll += ((total.log() + top.squeeze(2)).masked_fill_(present == 0, 0.0) - chosen).mul_(present).sum()
            share = present / total
            grad = torch.bmm(share[:, None], powers).squeeze(1).scatter_add_(1, listed, -present)
            grad_theta[rows] = grad.masked_fill_(some_theta == REMOVED, 0.0)
            mean = powers.mul_(fetched).sum(2).mul_(share)
            grad_weight += (mean - present * fetched.gather(2, listed[:, :, None]).squeeze(2)).sum()
        ctx.save_for_backward(grad_theta, grad_weight)
        return nll

    @staticmethod
    @first_derivatives
    def backward(ctx: Any, grad_mean: Tensor) -> Gradients:
        grad_theta, grad_weight = ctx.saved_tensors
        return grad_mean * grad_theta, None, None, grad_mean.to(grad_weight.dtype) * grad_weight


def _walk(blocks: Blocks, slopes: _Slopes | None = None) -> tuple[Tensor, Tensor]:
    """Return nll [N] and log-sum-exp [N, K] of all lists; add the gradients to `slopes` on the way."""
    log_sum = blocks.queries.new_empty(blocks.n_rows, blocks.length)
    diagonal_score = torch.empty_like(log_sum)
    smallest = torch.finfo(log_sum.dtype).min
    for rows in blocks.row_blocks:
        keys_of_rows = blocks.sorted_keys(rows)
        for positions in blocks.position_blocks:
            scores = blocks.scores(rows, positions, keys_of_rows)  # [R, P, J]
            diagonal_score[rows, positions] = scores.diagonal(dim1=1, dim2=2)
            top = scores.amax(2, keepdim=True).clamp_min_(smallest)  # finite even if all items are removed
            powers = exponential_(scores.sub_(top))
            total = powers.sum(2)
            if slopes is not None:
                slopes.add(rows, positions, keys_of_rows, powers, slopes.weight[rows, positions] / total)
            log_sum[rows, positions] = total.log_().add_(top.squeeze(2))
        if slopes is not None:
            slopes.end(rows, keys_of_rows)
    return _close(log_sum, blocks.sorted_theta, diagonal_score), log_sum


class _Slopes:
    """Adds up the gradients of Σ_i weight_i · nll_i, block by block.

    d nll / d scores = probabilities - one at the item that was chosen. Probabilities come as any positive `powers`
    and the `share` [R, P] that turns a position's powers into its row's weight times probabilities.
    """

    def __init__(self, blocks: Blocks, inverse: Tensor, row_weight: Tensor):
        self.blocks, self.inverse = blocks, inverse
        # a position whose item does not take part weighs nothing
        absent = _absent(blocks.sorted_theta, blocks.length)
        self.weight = row_weight[:, None].expand(-1, blocks.length).masked_fill(absent, 0.0)
        self.grad_theta = torch.zeros_like(blocks.sorted_theta)
        self.grad_queries, self.grad_keys = torch.empty_like(blocks.queries), torch.zeros_like(blocks.keys)
        self.grad_of_rows, self.unsorted = (torch.empty_like(blocks.key_buffer) for _ in range(2))
        self.grad_of_rows.zero_()

    def add(self, rows: slice, positions: slice, keys_of_rows: Tensor, powers: Tensor, share: Tensor) -> None:
        first, share = positions.start, share[:, :, None]
        shared_queries = self.blocks.queries[rows, positions] * share
        self.grad_theta[rows, first:] += torch.bmm(share.mT, powers).squeeze(1)
        # products go to whole tensors: for a part of a tensor, the matrix product would process its batch one by one
        torch.mul(torch.bmm(powers, keys_of_rows[:, first:]), share, out=self.grad_queries[rows, positions])
        self.grad_of_rows[: len(powers), first:] += torch.bmm(powers.mT, shared_queries)

    def end(self, rows: slice, keys_of_rows: Tensor) -> None:
        """Finish these rows: subtract the chosen items, and add the gradients of their keys."""
        chosen, length = self.weight[rows, :, None], self.blocks.length
        grad_of_rows = self.grad_of_rows[: len(keys_of_rows)]
        self.grad_theta[rows, :length] -= self.weight[rows]
        self.grad_queries[rows] -= chosen * keys_of_rows[:, :length]
        grad_of_rows[:, :length] -= chosen * self.blocks.queries[rows]
        self.grad_keys += pick_rows(grad_of_rows, self.inverse[rows], self.unsorted).sum(0)
        grad_of_rows.zero_()

    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of theta, queries and keys."""
        self.grad_theta.masked_fill_(self.blocks.sorted_theta == REMOVED, 0.0)
        return self.grad_theta.gather(1, self.inverse), self.grad_queries, self.grad_keys


def _close(log_sum: Tensor, sorted_theta: Tensor, chosen: Tensor) -> Tensor:
    """Return nll [N]: row sums of log_sum - chosen over the positions whose item takes part."""
    return (log_sum - chosen).masked_fill_(_absent(sorted_theta, log_sum.shape[1]), 0.0).sum(1)


def _absent(sorted_theta: Tensor, length: int) -> Tensor:
    """Return a mask [N, K] of positions whose item does not take part."""
    return sorted_theta[:, :length] == REMOVED
