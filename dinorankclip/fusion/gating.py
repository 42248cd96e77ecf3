"""The last step of every fusion: trunk embedding + gate ⊙ residual (equation `fuse`).

Shapes: B items, d embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dinorankclip.encoders.students import StudentFeatures
from dinorankclip.equations import gated_sum

GATE_START = -4.0  # σ(-4) = 0.018: the embedding starts within 1.03 degrees of the trunk's


@dataclass
class Fused:
    """What fusion says, in at least single precision."""

    embedding: Tensor  # [B, d], v + α ⊙ u, not normalised
    residual: Tensor  # u [B, d], as it is added
    gate: Tensor  # α [B, d]


class Gate(nn.Linear):
    """α = σ(W[v; u] + b) [B, d]. W starts at zero, so that α starts at σ(-4) everywhere."""

    def __init__(self, dim: int) -> None:
        super().__init__(2 * dim, dim)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.constant_(self.bias, GATE_START)

    def forward(self, v: Tensor, u: Tensor) -> Tensor:  # type: ignore[override]  # nobody calls it as a plain Linear
        return super().forward(torch.cat([v, u.to(v.dtype)], -1)).sigmoid()


class Fusion(nn.Module):
    """One branch: `residual` makes u out of the trunk's embedding and a student's features, the gate weighs it.

    Without a gate α is 1 everywhere.
    """

    def __init__(self, residual: nn.Module, gate: Gate | None) -> None:
        super().__init__()
        self.residual = residual
        self.gate = gate

    def forward(self, v: Tensor, features: StudentFeatures) -> Fused:
        """Trunk embedding [B, d], not normalised, and the student's features of the same items."""
        u = self.residual(v, features)
        alpha = torch.ones_like(u) if self.gate is None else self.gate(v, u)
        return Fused(gated_sum(v, u, alpha), u, alpha)
