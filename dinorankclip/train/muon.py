"""Moves the matrices inside transformer blocks by orthogonal steps (Muon, Jordan et al. 2024).

A step of a matrix is its momentum with every singular value brought near 1, so that rare directions of the gradient
move as far as frequent ones. Matrices of like shape are made orthogonal together. With several processes each makes
its share of them orthogonal and all exchange the results, so the steps are the same everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dinorankclip import distributed

# Two-dimensional weights of these names are Muon's. Embeddings, projections to the shared space, convolutions, fusions
# and transition heads stay AdamW's.
MATRICES = ("*.resblocks.*weight", "*.blocks.*weight", "*_student.layers.*weight")
FUSED = ("*in_proj_weight", "*qkv.weight")  # query, key and value in one matrix: three steps of their own
# Coefficients of p(x) = a·x + b·x³ + c·x⁵, one polynomial an iteration. Each is the best for the interval that the one
# before leaves, in the sense of the largest |1 - p(x)| (as Amsel et al. 2025 do); all end with [0.7, 1.3]. Only the
# first depends on the number of iterations: it takes singular values from 0.0091 (3), 0.0021 (4) or 0.0005 (5) up to 1.
FIRST = {3: (8.1306, -23.7673, 17.5629), 4: (8.4209, -24.9129, 18.4740), 5: (8.4922, -25.1944, 18.6979)}
THEN = ((4.2194, -3.1341, 0.5835), (4.1022, -3.0525, 0.5742), (3.6841, -2.7562, 0.5404), (2.7329, -2.0355, 0.4591))
SIZE = 0.2  # mean square root of AdamW's steps, as measured by Liu et al. 2025: Muon's get the same
WIDE = 2  # matrices at least this many times as wide as high are iterated in their Gram matrix, which is smaller
LEAST_NORM = 1e-12


def is_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Return whether Muon moves a parameter."""
    return parameter.ndim == 2 and any(fnmatchcase(name, pattern) for pattern in MATRICES)


def polynomials(iterations: int) -> tuple[tuple[float, float, float], ...]:
    """Return the coefficients (a, b, c) of each iteration."""
    return (FIRST[iterations], *THEN[1 - iterations :])


@torch.no_grad()
def orthogonal(matrices: Tensor, iterations: int = 4) -> Tensor:
    """Return U·f(S)·Vᵀ of each matrix U·S·Vᵀ, f(S) near 1, without a decomposition (Newton–Schulz).

    matrices [n, h, w] with h ≤ w. X₀ = M/‖M‖, then X ← p(X) = (a·I + b·G + c·G²)·X with G = X·Xᵀ and (a, b, c) of
    `polynomials`. Wide matrices take the same polynomials of G alone and multiply X₀ once, since all of them commute.

    As loops:
        for m in range(n):
            U, S, V = svd(matrices[m] / norm(matrices[m]))
            for a, b, c in polynomials(iterations):
                S = [a*s + b*s**3 + c*s**5 for s in S]
            out[m] = U * S * V
    """
    x = matrices / matrices.norm(dim=(-2, -1), keepdim=True).clamp_min(LEAST_NORM)
    if x.shape[-1] < WIDE * x.shape[-2]:
        for first, third, fifth in polynomials(iterations):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=third, alpha=fifth), x, beta=first)
        return x
    gram, product = x @ x.mT, None
    for at, (first, third, fifth) in enumerate(polynomials(iterations), 1):
        factor = torch.baddbmm(gram, gram, gram, beta=third, alpha=fifth)
        factor.diagonal(dim1=-2, dim2=-1).add_(first)
        product = factor if product is None else factor @ product
        if at < iterations:
            gram = factor @ (gram @ factor)
    return product @ x


class Piece(NamedTuple):
    """Names a part of a parameter that is made orthogonal by itself: its first row, its rows, and if it is tall."""

    parameter: int
    first: int
    rows: int
    tall: bool


class Muon(torch.optim.Optimizer):
    """Applies W ← (1 - rate·decay)·W - rate·0.2·√(larger side)·orthogonal(Nesterov momentum)."""

    def __init__(self, groups: list[dict[str, Any]], lr: float, momentum: float, iterations: int) -> None:
        defaults = {"lr": lr, "momentum": momentum, "iterations": iterations, "weight_decay": 0.0}
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Move every matrix that has a gradient."""
        for group in self.param_groups:
            moving = [
                (name, parameter)
                for name, parameter in zip(group["names"], group["params"])
                if parameter.grad is not None
            ]
            if not moving:
                continue
            parameters = [parameter for _, parameter in moving]
            gradients = [parameter.grad for parameter in parameters]
            bad = getattr(self, "found_inf", None)  # as torch's fused optimisers have it: 1 on the device skips a step
            for parameter in parameters:
                if not self.state[parameter]:
                    self.state[parameter]["momentum"] = torch.zeros_like(parameter)
            momenta = [self.state[parameter]["momentum"] for parameter in parameters]
            kept = 1 - group["lr"] * group["weight_decay"]
            if bad is not None:
                gradients = [torch.where(bad > 0, *both) for both in zip(momenta, gradients)]
                kept = torch.where(bad > 0, 1.0, kept)
            torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
            looked_ahead = list(torch._foreach_lerp(gradients, momenta, group["momentum"]))
            torch._foreach_mul_(parameters, kept)
            for pieces in _by_shape([name for name, _ in moving], looked_ahead).values():
                self._move(parameters, looked_ahead, pieces, group["lr"], group["iterations"], bad)

    @staticmethod
    def _move(
        parameters: list[Tensor],
        directions: list[Tensor],
        pieces: list[Piece],
        rate: float,
        iterations: int,
        bad: Tensor | None,
    ) -> None:
        stack = torch.stack([_wide(directions[piece.parameter], piece) for piece in pieces])
        steps = orthogonal_everywhere(stack, iterations)
        if bad is not None:
            steps = torch.where(bad > 0, 0.0, steps)
        size = rate * SIZE * math.sqrt(stack.shape[-1])
        targets = [_wide(parameters[piece.parameter], piece) for piece in pieces]
        torch._foreach_add_(targets, list(steps.unbind()), alpha=-size)


def orthogonal_everywhere(stack: Tensor, iterations: int) -> Tensor:
    """Return `orthogonal` of a stack [n, a, b] that all processes have; each computes its share."""
    world, count = distributed.world(), len(stack)
    if world.size == 1:
        return orthogonal(stack, iterations)
    share = -(-count // world.size)
    own = stack[world.rank * share : (world.rank + 1) * share]
    padded = stack.new_zeros(share, *stack.shape[1:])
    padded[: len(own)] = orthogonal(own, iterations) if len(own) else own
    return distributed.gather_rows(padded)[:count]


def _by_shape(names: Iterable[str], tensors: list[Tensor]) -> dict[tuple[int, int], list[Piece]]:
    """Return the pieces of the named matrices by their shape, wide side last."""
    pieces: dict[tuple[int, int], list[Piece]] = {}
    for at, (name, tensor) in enumerate(zip(names, tensors)):
        parts = 3 if any(fnmatchcase(name, pattern) for pattern in FUSED) else 1
        rows, columns = len(tensor) // parts, tensor.shape[1]
        shape = (min(rows, columns), max(rows, columns))
        pieces.setdefault(shape, []).extend(Piece(at, part * rows, rows, rows > columns) for part in range(parts))
    return pieces


def _wide(tensor: Tensor, piece: Piece) -> Tensor:
    """Return a view of a piece of a matrix, wide side last."""
    rows = tensor[piece.first : piece.first + piece.rows]
    return rows.mT if piece.tall else rows
