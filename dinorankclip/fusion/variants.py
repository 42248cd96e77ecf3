"""The six fusions of the paper's ablation, as compositions of parts (D24).

    variant        class token   pyramid   channel and spatial attention   refiner   gate
    concat         x
    additive       x
    single-scale   x                                                                 x
    spp            x             x                                         x         x
    spp-cbam       x             x         x                                         x
    full           x             x         x                               x         x

Each part draws its initial weights from a stream of its own: variants that share a part start it alike.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from dinorankclip.seeds import drawing_from
from dinorankclip.types import UserError

from .attention import ChannelAttention, SpatialAttention
from .gating import Fusion, Gate
from .residuals import Added, Concatenated, Projected, Reader
from .summaries import MeanSummary, Refiner


@dataclass(frozen=True)
class Parts:
    """What a variant that reads the student's dense tokens is made of."""

    pyramid: bool = False
    attention: bool = False
    refiner: bool = False


FROM_CLASS_TOKEN = {"concat": Concatenated, "additive": Added}
FROM_TOKENS = {
    "single-scale": Parts(),
    "spp": Parts(pyramid=True, refiner=True),
    "spp-cbam": Parts(pyramid=True, attention=True),
    "full": Parts(pyramid=True, attention=True, refiner=True),
}
VARIANTS = (*FROM_CLASS_TOKEN, *FROM_TOKENS)


def build_fusion(variant: str, gate: bool, dim: int, student_width: int, branch: str, seed: int = 0) -> Fusion:
    """The fusion of one branch, "image" or "text": (trunk embedding [B, dim], `StudentFeatures`) → `Fused`.

    concat and additive have no gate, whatever `gate` says: their α is 1. (Training refuses to switch off what is not
    there; models of earlier versions may say so, and are built as they were.)
    """
    if variant not in VARIANTS:
        raise UserError(f"no fusion is called '{variant}'; there are {', '.join(VARIANTS)}")

    def drawn(part: str, build: Callable[[], nn.Module]) -> nn.Module:
        with drawing_from(seed, f"fusion {branch}", part):
            return build()

    if variant in FROM_CLASS_TOKEN:
        return Fusion(drawn("projection", lambda: FROM_CLASS_TOKEN[variant](dim, student_width)), None)
    parts = FROM_TOKENS[variant]
    attention = OrderedDict()
    if parts.attention:
        attention["channel"] = drawn("channel", lambda: ChannelAttention(student_width))
        attention["spatial"] = drawn("spatial", SpatialAttention)
    summary = drawn("refiner", lambda: Refiner(student_width)) if parts.refiner else MeanSummary()
    reader = Reader(student_width, parts.pyramid, nn.Sequential(attention), summary)
    residual = drawn("projection", lambda: Projected(reader, dim, student_width, gated=gate))
    return Fusion(residual, Gate(dim) if gate else None)
