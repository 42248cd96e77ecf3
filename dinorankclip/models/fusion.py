"""Defines equations of fusion, and the gate: a student's residual is added to the trunk's embedding (equation `fuse`).

Shapes: B items, D embedding width, L dense tokens, C width of a student, S = sum of the bins.
    v  [B, D]  the trunk's embedding, not normalised         u [B, D]  the student's residual, in the trunk's space
    α  [B, D]  the gate, between 0 and 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dinorankclip.losses.contrastive import SHORTEST, single
from dinorankclip.models.students import StudentFeatures

PYRAMID = (2, 4, 8)  # bins of the three pooled scales
# Gate bias at the start. closed: σ(-4) = 0.018, so that the embedding starts within 1.03 degrees of the trunk's.
# zero: σ(0) = 0.5, of a residual that starts at zero, so that the embedding starts as the trunk's.
GATE_STARTS = {"closed": -4.0, "zero": 0.0}


def gated_sum(v: Tensor, u: Tensor, alpha: Tensor) -> Tensor:
    """Compute equation `fuse`: v + α ⊙ u [B, D], not normalised, in at least single precision.

    As loops:
        for b in range(B):
            for d in range(D):
                fused[b, d] = v[b, d] + alpha[b, d] * u[b, d]
    """
    return single(v) + single(alpha) * single(u)


def rescaled(u: Tensor, v: Tensor) -> Tensor:
    """Return u·‖v‖/‖u‖ [B, D], so that the gate alone decides how much is added (D23).

    ‖v‖ passes no gradient. u = 0 stays 0, with zero gradient.

    As loops:
        for b in range(B):
            rescaled[b] = u[b] * norm(v[b]) / norm(u[b]) if norm(u[b]) > 1e-8 else 0
    """
    u, target = single(u), row_norms(v).detach()
    own = row_norms(u)
    return u * torch.where(own > SHORTEST, target / own.clamp_min(SHORTEST), 0.0)


def row_norms(rows: Tensor) -> Tensor:
    """Return ‖row‖ [B, 1], in at least single precision."""
    return torch.linalg.vector_norm(single(rows), dim=-1, keepdim=True)


def fused_angle(fused: Tensor, v: Tensor) -> Tensor:
    """Return the degrees [B] between fused and trunk embedding, 90 if v is zero and `fused` is not.

    As loops:
        for b in range(B):
            angle[b] = degrees(acos(dot(fused[b], v[b]) / (norm(fused[b]) * norm(v[b]))))

    The angle comes from the difference of both, split along and across v: in single precision acos knows no angle
    between 0 and 0.02 degrees.
    """
    fused, v = single(fused), single(v)
    towards = v / row_norms(v).clamp_min(SHORTEST)
    change = fused - v
    across = change - (change * towards).sum(-1, keepdim=True) * towards
    return torch.rad2deg(torch.atan2(row_norms(across).squeeze(-1), (fused * towards).sum(-1)))


def alignment_ratio(alpha: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Return max_d |α_d| · ‖u‖ / ‖v‖ [B], the sine by which proposition `alignment` bounds the angle."""
    largest = single(alpha).abs().amax(-1)
    return largest * row_norms(u).squeeze(-1) / row_norms(v).squeeze(-1).clamp_min(SHORTEST)


def alignment_bound(ratio: Tensor) -> Tensor:
    """Return the bound of proposition `alignment` in degrees: the angle from v to v + α ⊙ u is at most arcsin(ratio).

    For ratios of 1 and above, α ⊙ u may reach across the origin and there is no bound: 180.
    """
    ratio = single(ratio)
    bounded = ratio < 1
    return torch.where(bounded, torch.rad2deg(torch.asin(torch.where(bounded, ratio, 0.0))), 180.0)


def pyramid_pool(tokens: Tensor, lengths: Tensor | None = None, bins: Sequence[int] = PYRAMID) -> Tensor:
    """Pool a token sequence [B, L, C] to three scales: adaptive means over 2, 4 and 8 bins → [B, S, C].

    Item b has its tokens at places 0 … lengths[b]-1 (`lengths` [B]; by default L); later places do not count.
    Bins share tokens when they do not divide the length, also when there are fewer tokens than bins.

    As loops:
        for b in range(B):
            n = lengths[b]
            pooled[b] = [mean(tokens[b, floor(j * n / k) : ceil((j + 1) * n / k)]) for k in bins for j in range(k)]
    """
    tokens, width = single(tokens), tokens.shape[1]
    if lengths is None:
        matrix = pyramid_matrix(torch.tensor(width, device=tokens.device), width, bins)
    else:
        matrix = pyramid_matrix(lengths, width, bins)
        # Padding may hold anything, also values whose product with 0 is not 0.
        padding = torch.arange(width, device=tokens.device) >= lengths[:, None]
        tokens = tokens.masked_fill(padding[..., None], 0.0)
    with torch.autocast(tokens.device.type, enabled=False):
        return matrix.to(tokens.dtype) @ tokens


def pyramid_matrix(lengths: Tensor, width: int, bins: Sequence[int] = PYRAMID) -> Tensor:
    """Return `pyramid_pool` as a matrix: lengths [B] → [B, S, width], or one length (a scalar) → [S, width]."""
    count = torch.tensor([k for k in bins for _ in range(k)], device=lengths.device)
    place = torch.tensor([j for k in bins for j in range(k)], device=lengths.device)
    lengths = lengths[..., None]
    first = torch.div(place * lengths, count, rounding_mode="floor")
    end = torch.div((place + 1) * lengths + count - 1, count, rounding_mode="floor")
    token = torch.arange(width, device=lengths.device)
    inside = (token >= first[..., None]) & (token < end[..., None])
    return inside / (end - first).clamp_min(1)[..., None]


@dataclass
class Fused:
    """Holds the output of a fusion, in at least single precision."""

    embedding: Tensor  # [B, D], v + α ⊙ u, not normalised
    residual: Tensor  # u [B, D], as it is added
    gate: Tensor  # α [B, D]


class Gate(nn.Linear):
    """α = σ(W[v; u] + b) [B, D]. W starts at zero, so that α starts at σ(bias) everywhere."""

    def __init__(self, dim: int, bias: float = GATE_STARTS["closed"]) -> None:
        self.bias_start = bias
        super().__init__(2 * dim, dim)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.constant_(self.bias, self.bias_start)

    def forward(self, v: Tensor, u: Tensor) -> Tensor:  # type: ignore[override]  # nobody calls it as a plain Linear
        return super().forward(torch.cat([v, u.to(v.dtype)], -1)).sigmoid()


class Fusion(nn.Module):
    """One branch: `residual` makes u from the trunk's embedding and a student's features, the gate weighs it.

    Without a gate α is 1 everywhere.
    """

    def __init__(self, residual: nn.Module, gate: Gate | None) -> None:
        super().__init__()
        self.residual = residual
        self.gate = gate

    def forward(self, v: Tensor, features: StudentFeatures) -> Fused:
        """Fuse the trunk embedding [B, D], not normalised, with the student's features of the same items."""
        u = self.residual(v, features)
        alpha = torch.ones_like(u) if self.gate is None else self.gate(v, u)
        return Fused(gated_sum(v, u, alpha), u, alpha)
