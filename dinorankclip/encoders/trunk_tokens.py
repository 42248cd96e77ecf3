"""The trunk's own tokens, for a teacher that teaches the trunk itself instead of students (a control of the study).

Tokens and class token are those of the last block after the tower's final norm, before the projection. A step wants
the embedding too, and both come from one pass; it has the value that `Trunk` gives, up to rounding.

Shapes: B images or captions, S image side, L tokens, W width of the tower, D embedding width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dinorankclip.encoders.blocks import Runs, every_token
from dinorankclip.encoders.students import StudentFeatures, up_to
from dinorankclip.encoders.trunk import Trunk
from dinorankclip.types import UserError


class OwnImageTokens:
    """Normalised pixels [B, 3, S, S] → the embedding [B, D] and, row by row of `grid`, the tokens behind it."""

    def __init__(self, trunk: Trunk) -> None:
        if not trunk.pools_class_token:
            raise UserError("--distil.into trunk needs an image tower that is open_clip's plain ViT with a class token")
        self._trunk = trunk
        visual = trunk.towers.visual
        self.width: int = visual.ln_post.normalized_shape[0]
        self.grid: tuple[int, int] = tuple(visual.grid_size)

    def __call__(self, pixels: Tensor) -> tuple[Tensor, StudentFeatures]:
        visual = self._trunk.towers.visual
        tokens = visual._embeds(pixels)
        runs = Runs(((tokens.shape[0], tokens.shape[1]),))
        tokens = every_token(visual.transformer.resblocks, tokens.flatten(0, 1), runs, causal=False)
        tokens = visual.ln_post(tokens).unflatten(0, runs.shapes[0])
        pooled = tokens[:, 0]
        embedding = pooled if visual.proj is None else pooled @ visual.proj
        return embedding, StudentFeatures(pooled, tokens[:, 1:])


class OwnTextTokens:
    """Token ids [B, L] → the embedding [B, D] and the tokens behind it, at the places of the ids.

    The tower is causal: a token knows what stands before it. End-of-text is the class token.
    """

    def __init__(self, trunk: Trunk) -> None:
        if not trunk.reads_causally:
            raise UserError("--distil.into trunk with captions needs CLIP's own text tower: --distil.branches image")
        self._trunk = trunk
        self.width: int = trunk.towers.ln_final.normalized_shape[0]

    def __call__(self, texts: Tensor) -> tuple[Tensor, StudentFeatures]:
        towers, length = self._trunk.towers, texts.shape[1]
        dtype = towers.transformer.get_cast_dtype()
        tokens = towers.token_embedding(texts).to(dtype) + towers.positional_embedding[:length].to(dtype)
        runs = Runs(((texts.shape[0], length),))
        tokens = every_token(towers.transformer.resblocks, tokens.flatten(0, 1), runs, causal=True)
        tokens = towers.ln_final(tokens).unflatten(0, runs.shapes[0])
        ends = self._trunk.end_of_text(texts)
        pooled = tokens[torch.arange(len(texts), device=texts.device), ends]
        return self._trunk.projected_text(pooled), StudentFeatures(pooled, tokens, up_to(ends, length))
