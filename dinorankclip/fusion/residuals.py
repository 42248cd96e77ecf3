"""What a student adds to the trunk's embedding: the u of v + α ⊙ u, one class for each way of making it.

Shapes: B items, d embedding width, L dense tokens, C width of a student.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dinorankclip.encoders.students import StudentFeatures
from dinorankclip.equations import lengths_of, rescaled

from .scales import dense, pyramid


class Concatenated(nn.Module):
    """u = W[v; norm(c)] - v, so that v + u is the mixture itself. W starts as [identity, 0]: at the trunk."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(dim + width, dim, bias=False)
        nn.init.eye_(self.mix.weight)

    def forward(self, v: Tensor, features: StudentFeatures) -> Tensor:
        return self.mix(torch.cat([v, self.norm(features.summary).to(v.dtype)], -1)) - v


class Added(nn.Module):
    """u = W·norm(c). W starts at zero: at the trunk."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.projection = nn.Linear(width, dim, bias=False)
        nn.init.zeros_(self.projection.weight)

    def forward(self, v: Tensor, features: StudentFeatures) -> Tensor:
        return self.projection(self.norm(features.summary))


class Reader(nn.Module):
    """A student's class token and dense tokens → one vector [B, C], by the parts that a variant has."""

    def __init__(self, width: int, with_pyramid: bool, attention: nn.Module, summary: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scales = pyramid if with_pyramid else dense
        self.attention = attention
        self.summary = summary

    def forward(self, features: StudentFeatures) -> Tensor:
        scales = self.scales(self.norm(features.tokens), features.mask)
        return self.summary(self.norm(features.summary), self.attention(scales))


class Projected(nn.Module):
    """x = norm(reader(features)), projected to the trunk's width and given the trunk's length (D23).

    For a gate, W starts at random and u = ‖v‖·Wx/‖Wx‖: the gate alone says how much of it is added.
    Without one, W starts at zero and u = ‖v‖·Wx: at the trunk, where Wx/‖Wx‖ would be 0/0.
    """

    def __init__(self, reader: Reader, dim: int, width: int, gated: bool) -> None:
        super().__init__()
        self.reader = reader
        self.norm = nn.LayerNorm(width)
        self.projection = nn.Linear(width, dim, bias=False)
        self.gated = gated
        if not gated:
            nn.init.zeros_(self.projection.weight)

    def forward(self, v: Tensor, features: StudentFeatures) -> Tensor:
        u = self.projection(self.norm(self.reader(features)))
        return rescaled(u, v) if self.gated else u * lengths_of(v).detach()
