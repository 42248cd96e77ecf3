"""Builds the six fusions of the paper's ablation from shared modules (chosen in D24).

    variant        class token   pyramid   channel and spatial attention   refiner   gate
    concat         x
    additive       x
    single-scale   x                                                                 x
    spp            x             x                                         x         x
    spp-cbam       x             x         x                                         x
    full           x             x         x                               x         x

Each module draws its initial weights from a random stream of its own: variants that share a module start it alike.

Shapes: B items, D embedding width, L dense tokens, T tokens of all scales (L + 14 with the pyramid), C width of a
student, H heads, E = C/H.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dinorankclip.models.fusion import GATE_STARTS, PYRAMID, Fusion, Gate, pyramid_pool, rescaled, row_norms
from dinorankclip.models.students import StudentFeatures
from dinorankclip.seeds import drawing_from
from dinorankclip.types import UserError

REDUCTION, LEAST_HIDDEN = 8, 8  # divisor and minimum of the hidden width of channel attention
KERNEL = 7  # tokens under the kernel of spatial attention
HEAD_WIDTH = 32  # channels of a head of the refiner
_REACH = KERNEL // 2


@dataclass
class Scales:
    """Joins tokens of one or more scales in one sequence. Tokens that are not valid (padding of captions) are zero."""

    tokens: Tensor  # [B, T, C]
    valid: Tensor | None  # bool [B, T]; None: all
    sizes: tuple[int, ...]  # how many tokens each scale has; they sum to T

    def mean(self) -> Tensor:
        """Return the mean over the valid tokens [B, C]; zero for an item that has none."""
        if self.valid is None:
            return self.tokens.mean(1)
        return self.tokens.sum(1) / self.valid.sum(1, keepdim=True).clamp_min(1)

    def largest(self) -> Tensor:
        """Return the maximum over the valid tokens, channel by channel [B, C]."""
        if self.valid is None:
            return self.tokens.amax(1)
        return self.tokens.masked_fill(~self.valid[..., None], -torch.inf).amax(1)


def dense(tokens: Tensor, mask: Tensor | None) -> Scales:
    """Return the student's tokens [B, L, C] as one scale."""
    if mask is not None:
        tokens = tokens.masked_fill(~mask[..., None], 0.0)
    return Scales(tokens, mask, (tokens.shape[1],))


def pyramid(tokens: Tensor, mask: Tensor | None) -> Scales:
    """Return U = [dense; 2 bins; 4 bins; 8 bins]. Valid tokens come first in `mask` [B, L]."""
    fine = dense(tokens, mask)
    pooled = pyramid_pool(fine.tokens, None if mask is None else mask.sum(1))
    valid = None if mask is None else torch.cat([mask, torch.ones_like(pooled[..., 0], dtype=torch.bool)], 1)
    return Scales(torch.cat([fine.tokens, pooled.to(fine.tokens.dtype)], 1), valid, (*fine.sizes, *PYRAMID))


class ChannelAttention(nn.Module):
    """Weighs channels, as in CBAM: tokens ⊙ σ(MLP(mean over tokens) + MLP(maximum over tokens)), one MLP for both."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = max(LEAST_HIDDEN, width // REDUCTION)
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, scales: Scales) -> Scales:
        pooled = torch.stack([scales.mean(), scales.largest()])
        weights = self.fc2(F.relu(self.fc1(pooled))).sum(0).sigmoid()  # [B, C]
        return replace(scales, tokens=scales.tokens * weights[:, None])


class SpatialAttention(nn.Module):
    """Weighs tokens: a convolution over [mean over channels; maximum over channels] of neighbouring tokens.

    Neighbours are of the same scale. Beyond a scale's ends, and after the last token of a caption, there are zeros.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 1, KERNEL, padding=_REACH)

    def forward(self, scales: Scales) -> Scales:
        both = torch.stack([scales.tokens.mean(-1), scales.tokens.amax(-1)], 1)
        # Zeros between the scales keep them apart, so that one convolution serves all.
        apart = torch.cat([F.pad(scale, (0, _REACH)) for scale in both.split(scales.sizes, -1)], -1)
        scores = self.conv(apart).squeeze(1).split([size + _REACH for size in scales.sizes], -1)
        weights = torch.cat([scale[:, :size] for scale, size in zip(scores, scales.sizes)], -1).sigmoid()  # [B, T]
        return replace(scales, tokens=scales.tokens * weights[..., None])


class MeanSummary(nn.Module):
    """Returns the class token plus the mean of all tokens."""

    def forward(self, summary: Tensor, scales: Scales) -> Tensor:
        return summary + scales.mean()


class Refiner(nn.Module):
    """Applies one transformer layer to [class token; tokens], of which only the class token's output is computed.

    Tokens and class token arrive normalised, and are not normalised again: that would divide every token by its own
    length, and with it by the weight that spatial attention has given it.

    With a single query, keys and values need not be made token by token: q·(W_k x) = (W_kᵀq)·x, and a weighted sum
    of W_v x is W_v times the weighted sum of x. Keys and values have no bias: a bias of the keys would add the same
    to all scores, a bias of the values the same as the bias of `proj`.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = heads_for(width)
        self.query = nn.Linear(width, width)
        self.key, self.value = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.proj = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, summary: Tensor, scales: Scales) -> Tensor:
        """Map the class token [B, C] and tokens [B, T, C] to [B, C]."""
        tokens = torch.cat([summary[:, None], scales.tokens], 1)
        x = summary + self.proj(self._attend(summary, tokens, scales.valid))
        return x + self.fc2(F.gelu(self.fc1(self.norm(x))))

    def _attend(self, summary: Tensor, tokens: Tensor, valid: Tensor | None) -> Tensor:
        query = self.query(summary).unflatten(-1, (self.heads, -1)).transpose(0, 1)  # [H, B, E]
        direction = (query @ self.key.weight.unflatten(0, (self.heads, -1))).transpose(0, 1)  # [B, H, C]
        scores = direction @ tokens.transpose(1, 2) / math.sqrt(query.shape[-1])  # [B, H, 1+T]
        if valid is not None:
            scores = scores.masked_fill(F.pad(~valid, (1, 0))[:, None], -torch.inf)
        mixed = (scores.softmax(-1) @ tokens).transpose(0, 1)  # [H, B, C]
        values = self.value.weight.unflatten(0, (self.heads, -1)).transpose(1, 2)  # [H, C, E]
        return (mixed @ values).transpose(0, 1).flatten(1)


def heads_for(width: int) -> int:
    """Return a number of heads that divides the width and gives each about 32 channels."""
    return next(heads for heads in range(max(1, width // HEAD_WIDTH), 0, -1) if width % heads == 0)


class Reader(nn.Module):
    """Maps a student's class token and dense tokens to one vector [B, C], by the modules that a variant has."""

    def __init__(self, width: int, with_pyramid: bool, attention: nn.Module, summary: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scales = pyramid if with_pyramid else dense
        self.attention = attention
        self.summary = summary

    def forward(self, features: StudentFeatures) -> Tensor:
        scales = self.scales(self.norm(features.tokens), features.mask)
        return self.summary(self.norm(features.summary), self.attention(scales))


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


class Projected(nn.Module):
    """x = norm(reader(features)), projected to the trunk's width and scaled to the trunk's length (D23).

    For a gate, W starts at random and u = ‖v‖·Wx/‖Wx‖: the gate alone decides how much of u is added.
    Without a gate, W starts at zero and u = ‖v‖·Wx: at the trunk, where Wx/‖Wx‖ would be 0/0.
    With start "zero", W starts at zero and u = Wx, the paper's residual without a length of ours. While u is zero the
    gate has no gradient; W has, weighed by α = σ(0), and after its first step the gate follows.
    """

    def __init__(self, reader: Reader, dim: int, width: int, gated: bool, start: str = "closed") -> None:
        super().__init__()
        self.reader = reader
        self.norm = nn.LayerNorm(width)
        self.projection = nn.Linear(width, dim, bias=False)
        self.gated, self.start = gated, start
        if start == "zero" or not gated:
            nn.init.zeros_(self.projection.weight)

    def forward(self, v: Tensor, features: StudentFeatures) -> Tensor:
        u = self.projection(self.norm(self.reader(features)))
        if self.start == "zero":
            return u
        return rescaled(u, v) if self.gated else u * row_norms(v).detach()


FROM_CLASS_TOKEN = {"concat": Concatenated, "additive": Added}
FROM_TOKENS: dict[str, tuple[str, ...]] = {  # the modules of a variant that reads the student's dense tokens
    "single-scale": (),
    "spp": ("pyramid", "refiner"),
    "spp-cbam": ("pyramid", "attention"),
    "full": ("pyramid", "attention", "refiner"),
}
VARIANTS = (*FROM_CLASS_TOKEN, *FROM_TOKENS)


def build_fusion(
    variant: str,
    gate: bool,
    dim: int,
    student_width: int,
    branch: str,
    seed: int = 0,
    *,
    start: str = "closed",
    gate_bias: float | None = None,
) -> Fusion:
    """Build the fusion of one branch, "image" or "text": (trunk embedding [B, dim], `StudentFeatures`) → `Fused`.

    `start` is one of `GATE_STARTS`, which `gate_bias` overrides. concat and additive start at the trunk in any case.
    concat and additive ignore `gate` and have none: their α is 1. (Training refuses to switch off a gate that
    they do not have; folders of earlier versions may say so, and load as they were built.)
    """
    if variant not in VARIANTS:
        raise UserError(f"no fusion is called '{variant}'; there are {', '.join(VARIANTS)}")
    if start not in GATE_STARTS:
        raise UserError(f"no start of a fusion is called '{start}'; there are {', '.join(GATE_STARTS)}")

    def drawn(stream: str, build: Callable[[], nn.Module]) -> nn.Module:
        with drawing_from(seed, f"fusion {branch}", stream):
            return build()

    if variant in FROM_CLASS_TOKEN:
        return Fusion(drawn("projection", lambda: FROM_CLASS_TOKEN[variant](dim, student_width)), None)
    modules = FROM_TOKENS[variant]
    attention = OrderedDict()
    if "attention" in modules:
        attention["channel"] = drawn("channel", lambda: ChannelAttention(student_width))
        attention["spatial"] = drawn("spatial", SpatialAttention)
    summary = drawn("refiner", lambda: Refiner(student_width)) if "refiner" in modules else MeanSummary()
    reader = Reader(student_width, "pyramid" in modules, nn.Sequential(attention), summary)
    residual = drawn("projection", lambda: Projected(reader, dim, student_width, gated=gate, start=start))
    bias = GATE_STARTS[start] if gate_bias is None else gate_bias
    return Fusion(residual, Gate(dim, bias) if gate else None)
