"""How the scores of ranked lists are cut into blocks, and the one place where a block of them is computed.

Shapes: N rows, M items, K ≤ M listed positions, H width; inside a block R rows, P positions, J = items not finished
at its first position. "Sorted" tensors have the listed items first, in list order.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

REMOVED = float("-inf")  # the utility of an item that does not take part in a row
CPU_ITEMS = 1 << 13  # rows × items of a block: with its positions, 2 to 4 MB of fp32 scores, near the cores' caches
DEVICE_SCORES = 1 << 26  # elsewhere a block should fill the device


def positions_at_once(n_items: int) -> int:
    """Positions of a block: more waste work in the finished triangle, fewer starve the matrix product."""
    return 64 if n_items <= 256 else 128


class Blocks:
    """Scores theta[i, d] + queries[i, k] · keys[d] of sorted items d not finished at position k."""

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
        return pick_rows(self.keys[None], self.places[rows], self.key_buffer)

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


def exponential_(values: Tensor) -> Tensor:
    """exp in place, but never below the cube of the precision, which no sum here can feel.

    The floor is for speed: the vectorised exp is 20 to 200 times slower on arguments that underflow, and at s = 100
    most of them do. Where an exact zero is promised (items removed by theta = -inf), the caller writes it.
    """
    return values.clamp_min_(3 * math.log(torch.finfo(values.dtype).eps)).exp_()


def pick_rows(tables: Tensor, places: Tensor, buffer: Tensor) -> Tensor:
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
