"""Channel attention, then spatial attention, as in CBAM, over the tokens of all scales.

Shapes: B items, T tokens of all scales, C width of a student.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .scales import Scales

REDUCTION, LEAST_HIDDEN = 8, 8
KERNEL = 7
_REACH = KERNEL // 2


class ChannelAttention(nn.Module):
    """Weighs channels: tokens ⊙ σ(MLP(mean over tokens) + MLP(maximum over tokens)), one MLP for both."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = max(LEAST_HIDDEN, width // REDUCTION)
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def weights(self, scales: Scales) -> Tensor:
        """[B, C] in (0, 1)."""
        pooled = torch.stack([scales.mean(), scales.largest()])
        return self.fc2(F.relu(self.fc1(pooled))).sum(0).sigmoid()

    def forward(self, scales: Scales) -> Scales:
        return replace(scales, tokens=scales.tokens * self.weights(scales)[:, None])


class SpatialAttention(nn.Module):
    """Weighs tokens: a convolution over [mean over channels; maximum over channels] of neighbouring tokens.

    Neighbours are of the same scale. Beyond its ends, and where a caption has no more tokens, there are zeros.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 1, KERNEL, padding=_REACH)

    def weights(self, scales: Scales) -> Tensor:
        """[B, T] in (0, 1)."""
        both = torch.stack([scales.tokens.mean(-1), scales.tokens.amax(-1)], 1)
        # Zeros between the scales keep them apart, so that one convolution serves all.
        apart = torch.cat([F.pad(scale, (0, _REACH)) for scale in both.split(scales.sizes, -1)], -1)
        seen = self.conv(apart).squeeze(1).split([size + _REACH for size in scales.sizes], -1)
        return torch.cat([scale[:, :size] for scale, size in zip(seen, scales.sizes)], -1).sigmoid()

    def forward(self, scales: Scales) -> Scales:
        return replace(scales, tokens=scales.tokens * self.weights(scales)[..., None])
