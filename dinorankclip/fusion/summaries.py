"""Scales and the class token → one vector: by attention of the class token, or by their mean.

Shapes: B items, T tokens of all scales, C width of a student, H heads, E = C/H.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .scales import Scales

HEAD_WIDTH = 32
_WIDENING = 4


class MeanSummary(nn.Module):
    """The class token plus the mean of all tokens."""

    def forward(self, summary: Tensor, scales: Scales) -> Tensor:
        return summary + scales.mean()


class Refiner(nn.Module):
    """One transformer layer over [class token; tokens], of which only the class token's output is computed.

    Tokens and class token come normalised, and are not normalised again: that would divide every token by its own
    length, and with it by the weight that spatial attention has given it.

    With a single query, keys and values need not be made token by token: q·(W_k x) = (W_kᵀq)·x, and a weighted sum
    of W_v x is W_v times the weighted sum of x. A bias of the keys would add the same to all scores, one of the
    values the same as the bias of `proj`: there are none.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = heads_for(width)
        self.query = nn.Linear(width, width)
        self.key, self.value = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.proj = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, _WIDENING * width), nn.Linear(_WIDENING * width, width)

    def forward(self, summary: Tensor, scales: Scales) -> Tensor:
        """Class token [B, C] and tokens [B, T, C] → [B, C]."""
        tokens = torch.cat([summary[:, None], scales.tokens], 1)
        x = summary + self.proj(self._mixed(summary, tokens, scales.valid))
        return x + self.fc2(F.gelu(self.fc1(self.norm(x))))

    def _mixed(self, summary: Tensor, tokens: Tensor, valid: Tensor | None) -> Tensor:
        query = self.query(summary).unflatten(-1, (self.heads, -1)).transpose(0, 1)  # [H, B, E]
        wanted = (query @ self.key.weight.unflatten(0, (self.heads, -1))).transpose(0, 1)  # [B, H, C]
        scores = wanted @ tokens.transpose(1, 2) / math.sqrt(query.shape[-1])  # [B, H, 1+T]
        if valid is not None:
            scores = scores.masked_fill(F.pad(~valid, (1, 0))[:, None], -torch.inf)
        found = (scores.softmax(-1) @ tokens).transpose(0, 1)  # [H, B, C]
        values = self.value.weight.unflatten(0, (self.heads, -1)).transpose(1, 2)  # [H, C, E]
        return (found @ values).transpose(0, 1).flatten(1)


def heads_for(width: int) -> int:
    """Heads of about 32 channels that divide the width."""
    return next(heads for heads in range(max(1, width // HEAD_WIDTH), 0, -1) if width % heads == 0)
