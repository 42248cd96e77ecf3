"""Trains low-rank corrections in place of matrices (LoRA, Hu et al. 2021): W + s·U·D, only U and D learn.

A corrected matrix is computed when its module asks for it (torch's parametrizations), so every tower that open_clip
or timm builds can be trained so. Plain linear layers and the blocks of open_clip_blocks.py take a shorter way
(`low_rank_linear`): the same values and gradients without the gradient of W, which nobody needs.

`merged_state` gives the state of the model as if it had been trained in full. Checkpoints and exports hold that state,
so that a corrected model opens like any other. Corrections themselves lie beside it in a checkpoint, for the resume.

Shapes: W [h, w], D [r, w], U [h, r], r the rank.
"""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from dinorankclip.seeds import drawing_from
from dinorankclip.types import UserError

INSIDE = ".parametrizations."  # part of the names of corrected matrices and of their corrections
SAME = 1e-5  # largest difference between stored weights and those that corrections give


class Correction(nn.Module):
    """Adds s·U·D to a matrix. U starts at zero, so that nothing changes at the start."""

    def __init__(self, matrix: Tensor, rank: int, scale: float) -> None:
        super().__init__()
        height, width = matrix.shape
        self.lora_down = nn.Parameter(torch.empty(rank, width, device=matrix.device))
        self.lora_up = nn.Parameter(torch.zeros(height, rank, device=matrix.device))
        self.scale = scale
        nn.init.kaiming_uniform_(self.lora_down, a=math.sqrt(5))

    def forward(self, matrix: Tensor) -> Tensor:
        return torch.addmm(matrix, self.lora_up, self.lora_down, alpha=self.scale)


class _LowRankLinear(torch.autograd.Function):
    """Computes x·(W + s·U·D)ᵀ with gradients to x, D and U alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, down: Tensor, up: Tensor, scale: float) -> Tensor:
        whole = torch.addmm(matrix, up, down, alpha=scale)
        ctx.save_for_backward(x, whole, down, up)
        ctx.scale = scale
        return F.linear(x, whole)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, whole, down, up = ctx.saved_tensors
        grad = grads[0]
        rows, inputs = grad.flatten(0, -2), x.flatten(0, -2)
        to_down = (rows @ up).mT @ inputs * ctx.scale
        to_up = rows.mT @ (inputs @ down.mT) * ctx.scale
        return grad @ whole if ctx.needs_input_grad[0] else None, None, to_down, to_up, None


def low_rank_linear(
    module: nn.Module, x: Tensor, weight: str, bias: Tensor | None, rows: slice = slice(None)
) -> Tensor:
    """Apply some rows of a matrix of a module, corrected or not: `F.linear` in every way but the gradient of W."""
    inside = getattr(module, "parametrizations", None)
    if inside is None or weight not in inside or torch.is_autocast_enabled(x.device.type):
        matrix = getattr(module, weight)
        return F.linear(x, matrix if rows == slice(None) else matrix[rows], bias)
    held = inside[weight]
    correction: Any = held[0]
    whole = _LowRankLinear.apply(
        x, held.original[rows], correction.lora_down, correction.lora_up[rows], correction.scale
    )
    return whole if bias is None else whole + bias


def _corrected_forward(linear: nn.Linear, x: Tensor) -> Tensor:
    return low_rank_linear(linear, x, "weight", linear.bias)


def correct(model: nn.Module, rank: int, alpha: float | None, targets: tuple[str, ...], seed: int) -> dict[str, int]:
    """Freeze a model and give its matrices that match `targets` and learn a correction each. Return the matrices and
    their numbers of trained parameters."""
    learns = {name: p for name, p in model.named_parameters() if p.requires_grad and p.ndim == 2}
    names = [name for name in learns if any(fnmatchcase(name, pattern) for pattern in targets)]
    if not names:
        raise UserError(
            f"--tune.lora-targets {' '.join(targets)} matches no matrix that learns; names are such as "
            f"{', '.join(sorted(learns)[:3]) or 'none: everything is frozen'}"
        )
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    counts = {}
    for name in names:
        owner, _, weight = name.rpartition(".")
        module = model.get_submodule(owner)
        with drawing_from(seed, "lora", name):
            correction = Correction(learns[name], rank, (2 * rank if alpha is None else alpha) / rank)
        parametrize.register_parametrization(module, weight, correction)
        if isinstance(module, nn.Linear):
            module.forward = partial(_corrected_forward, module)  # type: ignore[method-assign]
        counts[name] = rank * sum(learns[name].shape)
    return counts


@torch.no_grad()
def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the state of a model with corrections added to their matrices, under the names of a model without any."""
    found = {}
    for name, tensor in model.state_dict().items():
        owner, inside, rest = name.partition(INSIDE)
        if not inside:
            found[name] = tensor
        elif rest.endswith(".original"):
            weight = rest.removesuffix(".original")
            found[f"{owner}.{weight}"] = getattr(model.get_submodule(owner), weight)
    return found


def corrections(model: nn.Module) -> dict[str, Tensor]:
    """Return the corrections of a model by name; empty without any."""
    return {name: tensor for name, tensor in model.state_dict().items() if INSIDE in name and ".lora_" in name}


def restore(model: nn.Module, stored: dict[str, Tensor], weights: dict[str, Tensor], start: str) -> None:
    """Load corrections into a model whose matrices are those of the start; `weights` are those of the checkpoint."""
    model.load_state_dict(stored, strict=False)
    for name, tensor in merged_state(model).items():
        if not torch.allclose(tensor, weights[name].to(tensor.device), rtol=0, atol=SAME):
            raise UserError(
                f"{start} is not as it was when this run began: {name} and its correction do not give the weights of "
                "the checkpoint. Restore it, or begin anew with --restart"
            )
