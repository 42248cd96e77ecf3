"""What the ViT sources share: input size and grid, splitting tokens, and the check that the final norm was applied."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dinorankclip.types import UserError

from .teacher import Teacher

USUAL_SIZE = 224  # 14×14 tokens for patches of 16 pixels, as in the paper
_LEAST_WEIGHT = 1e-6


def grid_of(size: int, patch: int, source: str) -> tuple[int, int]:
    if size % patch or size < patch:
        nearest = max(1, round(size / patch)) * patch
        raise UserError(f"{source} cuts images into patches of {patch} pixels; {size} is no multiple, {nearest} is")
    return size // patch, size // patch


def split(tokens: Tensor, prefix: int) -> tuple[Tensor, Tensor]:
    """[B, prefix + L, C], class token first, then registers → (patch tokens, class token)."""
    return tokens[:, prefix:], tokens[:, 0]


def demand_final_norm(teacher: Teacher, norm: nn.LayerNorm) -> None:
    """Look at one image: every token must be what the network's final LayerNorm puts out.

    Libraries differ in whether the features they hand out are taken before or after it, and before it a few channels
    are many times larger than the rest: the Gram would be theirs alone.
    """
    size = teacher.input_size
    noise = torch.randint(0, 256, (1, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    seen = teacher.dense(noise)
    tokens = torch.cat([seen.summary[:, None], seen.tokens], 1)[0]
    if bool((norm.weight.abs() < _LEAST_WEIGHT).any()):
        return  # a channel that the norm sets to a constant cannot be undone
    tokens = (tokens - norm.bias) / norm.weight
    mean, spread = tokens.mean(-1), tokens.std(-1, unbiased=False)
    if mean.abs().max() > 0.05 or (spread - 1).abs().max() > 0.05:
        raise UserError(
            f"{teacher.name}: its tokens are not those after the final norm (mean {mean.abs().max():.2g}, spread "
            f"{spread.min():.2g} to {spread.max():.2g} instead of 0 and 1)"
        )
