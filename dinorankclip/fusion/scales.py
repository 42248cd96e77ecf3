"""A student's dense tokens, alone or with the pooled scales of the pyramid.

Shapes: B items, L dense tokens, T tokens of all scales (L + 14 with the pyramid), C width of a student.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dinorankclip.equations import PYRAMID, pyramid_pool


@dataclass
class Scales:
    """Tokens of one or more scales, one after another. Tokens that are not valid (padding of captions) are zero."""

    tokens: Tensor  # [B, T, C]
    valid: Tensor | None  # bool [B, T]; None: all
    sizes: tuple[int, ...]  # how many tokens each scale has; they sum to T

    def mean(self) -> Tensor:
        """Mean over the valid tokens [B, C]; zero for an item that has none."""
        if self.valid is None:
            return self.tokens.mean(1)
        return self.tokens.sum(1) / self.valid.sum(1, keepdim=True).clamp_min(1)

    def largest(self) -> Tensor:
        """Maximum over the valid tokens, channel by channel [B, C]."""
        if self.valid is None:
            return self.tokens.amax(1)
        return self.tokens.masked_fill(~self.valid[..., None], -torch.inf).amax(1)


def dense(tokens: Tensor, mask: Tensor | None) -> Scales:
    """The student's tokens [B, L, C] as one scale."""
    if mask is not None:
        tokens = tokens.masked_fill(~mask[..., None], 0.0)
    return Scales(tokens, mask, (tokens.shape[1],))


def pyramid(tokens: Tensor, mask: Tensor | None) -> Scales:
    """U = [dense; 2 bins; 4 bins; 8 bins]. Valid tokens are the first ones of `mask` [B, L]."""
    fine = dense(tokens, mask)
    pooled = pyramid_pool(fine.tokens, None if mask is None else mask.sum(1))
    valid = None if mask is None else torch.cat([mask, torch.ones_like(pooled[..., 0], dtype=torch.bool)], 1)
    return Scales(torch.cat([fine.tokens, pooled.to(fine.tokens.dtype)], 1), valid, (*fine.sizes, *PYRAMID))
