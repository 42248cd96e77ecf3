"""Computes SigLIP's sigmoid loss (Zhai et al. 2023), in blocks of rows that need memory linear in the batch.

Each image–text pair of a batch is a yes-or-no question of its own: no row has a denominator over the others. So rows
are computed a block at a time, in one buffer, and backward computes a block's logits again instead of keeping them.

Shapes: N own pairs, M pairs over all processes, D embedding width, R rows of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dinorankclip.losses.contrastive import EVERY_ROW, unit_rows
from dinorankclip.losses.groups import other_positives
from dinorankclip.losses.plackett_luce_blocked import Gradients, applied, first_derivatives

BLOCK = 1 << 20  # logits of a block: 4 MB of fp32, near a core's cache


def sigmoid_rows(
    image: Tensor,
    text: Tensor,
    scale: Tensor | float,
    bias: Tensor | float,
    own: slice = EVERY_ROW,
    groups: Tensor | None = None,
) -> Tensor:
    """Return the sigmoid loss by rows: [N]. `sigmoid_loss` is their mean over a whole batch.

        L_i = -Σ_j log σ(z_ij·(s·v_i·t_j + b)),   z_ij = 1 if i = j, else -1

    j runs over i and the pairs that do not belong together with i, by `groups` [M, C] (groups.py). Other pairs of a
    group are left out instead of being asked for with z = 1: a group says that a pair is no negative, but not that it
    matches as well, and a pair's weight should not depend on how often its caption happens to occur in a batch.

    As loops:
        for i in range(M)[own]:
            row = 0
            for j in (j for j in range(M) if j == i or not set(groups[i]) & set(groups[j])):
                logit = s * dot(v[i], t[j]) + b
                row += log(1 + exp(-logit if i == j else logit))
            rows.append(row)

    image, text [M, D]: unit-norm embeddings of the pairs of all processes; `own` are a process's N rows of them.
    Apart from a block of `BLOCK` logits (or one row), memory grows as M·D. There are no second derivatives.
    """
    partner = torch.arange(len(image), device=image.device)[own]
    scale, bias = (torch.as_tensor(number, dtype=image.dtype, device=image.device) for number in (scale, bias))
    groups = None if groups is None else groups.to(image.device, non_blocking=True)
    return applied(_SigmoidRows, image[own], text, scale, bias, partner, groups)


def sigmoid_loss(
    image: Tensor, text: Tensor, scale: Tensor | float, bias: Tensor | float, groups: Tensor | None = None
) -> Tensor:
    """Return the loss of a batch [N, D], whose rows are normalised here: the mean of `sigmoid_rows`, a scalar."""
    with torch.autocast(image.device.type, enabled=False):
        return sigmoid_rows(unit_rows(image), unit_rows(text), scale, bias, groups=groups).mean()


class _SigmoidRows(torch.autograd.Function):
    """Computes rows [N] of images `mine` [N, D], whose own texts are text[partner], among texts [M, D]."""

    @staticmethod
    def forward(
        ctx: Any, mine: Tensor, text: Tensor, scale: Tensor, bias: Tensor, partner: Tensor, groups: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(mine, text, scale, bias, partner, groups)
        rows, zero = mine.new_empty(len(mine)), mine.new_zeros(())
        for some, answers in _wrong_answers(mine, text, scale, bias, partner, groups):
            rows[some] = torch.logaddexp(answers, zero, out=answers).sum(1)
        return rows

    @staticmethod
    @first_derivatives
    def backward(ctx: Any, grad_rows: Tensor) -> Gradients:
        mine, text, scale, bias, partner, groups = ctx.saved_tensors
        grad_mine, grad_text = torch.empty_like(mine), torch.zeros_like(text)
        grad_bias = torch.zeros_like(bias)
        with torch.autocast(mine.device.type, enabled=False):
            for some, answers in _wrong_answers(mine, text, scale, bias, partner, groups):
                # d log(1 + exp(x)) / dx = σ(x); x is minus the logit at the own text
                slopes = answers.sigmoid_().mul_(grad_rows[some, None])
                _negate_own(slopes, partner[some])
                torch.mm(slopes, text, out=grad_mine[some])
                grad_text.addmm_(slopes.T, mine[some])
                grad_bias += slopes.sum()
            grad_scale = (grad_mine * mine).sum().view_as(scale)
        return grad_mine.mul_(scale), grad_text.mul_(scale), grad_scale, grad_bias, None, None


def _wrong_answers(
    mine: Tensor, text: Tensor, scale: Tensor, bias: Tensor, partner: Tensor, groups: Tensor | None
) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows and logits of their wrong answers, -z·(s·v·t + b) [R, M], in a buffer that all blocks share. Pairs
    that are left out have -inf, whose loss and slope are zero."""
    at_once = max(1, min(len(mine), BLOCK // len(text)))
    buffer = mine.new_empty(at_once, len(text))
    for start in range(0, len(mine), at_once):
        some = slice(start, min(start + at_once, len(mine)))
        logits = torch.mm(mine[some], text.T, out=buffer[: some.stop - start])
        logits.mul_(scale).add_(bias)
        _negate_own(logits, partner[some])
        if groups is not None:
            logits.masked_fill_(other_positives(groups, partner[some]), float("-inf"))
        yield some, logits


def _negate_own(values: Tensor, partner: Tensor) -> None:
    """Change the sign of values [R, M] where a row meets its own text, in place."""
    own = partner[:, None]
    values.scatter_(1, own, -values.gather(1, own))
