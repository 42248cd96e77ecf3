"""All that a model sees in pictures or reads in captions, for looking inside.

Shapes: B images or captions, D embedding width, h×w a grid of patches, C student width, W width of the trunk's
image tower, L tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from dinorankclip.equations import fused_angle
from dinorankclip.joint.model import JointModel, Side
from dinorankclip.joint.trunk_features import patch_map


@dataclass(frozen=True)
class ImageReading:
    """`gate` and `angle` are None where nothing is fused, `tokens` where there is no student."""

    embedding: Tensor  # [B, D], of length 1
    contrastive: Tensor  # [B, D], the trunk's own, of length 1
    trunk_tokens: Tensor  # [B, h, w, W], the last block of the trunk's image tower
    tokens: Tensor | None = None  # [B, h, w, C], of the student
    gate: Tensor | None = None  # [B, D], α of the fusion
    angle: Tensor | None = None  # [B], degrees between the fused and the trunk's embedding


@dataclass(frozen=True)
class TextReading:
    """As `ImageReading`; `mask` says which places hold tokens of the caption (the start token included)."""

    embedding: Tensor  # [B, D]
    contrastive: Tensor  # [B, D]
    tokens: Tensor | None = None  # [B, L, C]
    mask: Tensor | None = None  # bool [B, L]
    gate: Tensor | None = None  # [B, D]
    angle: Tensor | None = None  # [B]


def image_reading(model: JointModel, pixels: Tensor) -> ImageReading:
    """Normalised pixels [B, 3, S, S] → everything there is to see."""
    side = model.see(pixels)
    tokens = None
    if side.features is not None and model.image_student is not None:
        tokens = side.features.tokens.unflatten(1, model.image_student.grid).float()
    trunk_tokens = patch_map(model.trunk.towers.visual, pixels).float()
    return ImageReading(**_common(side), trunk_tokens=trunk_tokens, tokens=tokens)


def text_reading(model: JointModel, ids: Tensor) -> TextReading:
    """Token ids [B, L] → everything there is to read."""
    side = model.read(ids)
    if side.features is None:
        return TextReading(**_common(side))
    return TextReading(**_common(side), tokens=side.features.tokens.float(), mask=side.features.mask)


def _common(side: Side) -> dict[str, Tensor]:
    values = {
        "embedding": F.normalize(side.raw.float(), dim=-1),
        "contrastive": F.normalize(side.contrastive.float(), dim=-1),
    }
    if side.fused is not None:
        values["gate"] = side.fused.gate.float()
        values["angle"] = fused_angle(side.raw.float(), side.contrastive.float())
    return values
