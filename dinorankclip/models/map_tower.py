"""Builds SigLIP's image tower in any size: timm's ViT without class token, pooled by attention (a MAP head).

open_clip knows this tower by the names of timm alone, whose sizes and activations are fixed. Here sizes stand in the
trunk's configuration: `pool_type` "map" in `vision_cfg`. Names of parameters are those of open_clip's timm towers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from open_clip.timm_model import TimmModel
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from dinorankclip.types import UserError

MAP = "map"
# A stand-in of open_clip's own kind while the towers are built; `MapTower` takes its place.
SMALLEST = {"layers": 1, "width": 8, "head_width": 8, "patch_size": 16, "image_size": 16}


class MapTower(TimmModel):
    """Maps normalised pixels [B, 3, S, S] to [B, W]. Methods are those of open_clip's timm towers."""

    def __init__(self, config: dict[str, Any], quick_gelu: bool = False) -> None:
        nn.Module.__init__(self)
        width, size = config["width"], config["image_size"]
        size = (size, size) if isinstance(size, int) else tuple(size)
        if quick_gelu:
            raise UserError("an image tower pooled by attention computes with GELU, not QuickGELU")
        self.image_size = size
        self.trunk = VisionTransformer(
            img_size=size,
            patch_size=config["patch_size"],
            embed_dim=width,
            depth=config["layers"],
            num_heads=width // config.get("head_width", 64),
            mlp_ratio=config.get("mlp_ratio", 4.0),
            class_token=False,
            global_pool="map",
            num_classes=0,
            norm_layer=partial(nn.LayerNorm, **(config.get("norm_kwargs") or {})),
            act_layer=partial(nn.GELU, **(config.get("act_kwargs") or {})),
        )
        self.head = nn.Sequential()
