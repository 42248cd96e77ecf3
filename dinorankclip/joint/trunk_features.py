"""What the trunk's image tower knows before its projection: pooled features for probes, patch tokens for looking.

Walks open_clip's three kinds of image towers (its ViT, a timm model, its ResNet), which share no interface for it.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def pooled_features(visual: Any, pixels: Tensor) -> Tensor:
    """Normalised pixels [B, 3, S, S] → [B, W], pooled, before the projection into the joint space."""
    if hasattr(visual, "_embeds"):  # open_clip's VisionTransformer
        pooled, _tokens = visual._pool(visual.transformer(visual._embeds(pixels)))
        return pooled
    if hasattr(visual, "trunk"):  # a timm model, whose head is the projection
        pooled = visual.trunk(pixels)
        return pooled.flatten(2).mean(-1) if pooled.ndim == 4 else pooled
    # A ResNet pools by attention into the joint space at once: the mean of its last map is what comes before.
    return patch_map(visual, pixels).flatten(1, 2).mean(1)


def patch_map(visual: Any, pixels: Tensor) -> Tensor:
    """Normalised pixels [B, 3, S, S] → dense features [B, h, w, W] of the last block, after the final norm."""
    normed = getattr(visual, "attn_pool", None) is None  # else the norm belongs to the pooled width
    out = visual.forward_intermediates(
        pixels, indices=1, normalize_intermediates=normed, intermediates_only=True, output_fmt="NCHW"
    )
    return out["image_intermediates"][-1].permute(0, 2, 3, 1)
