"""Reads the trunk's own dense tokens, in the place of a student's: for a teacher of the trunk, and for its fusion.

    last          tokens of the last block after the tower's final norm; the block must run on all tokens
    penultimate   tokens that enter the last block, as they are: they are computed anyway
The class token (of captions the end-of-text token) is that of the last block after the final norm in both.

Shapes: B images or captions, S image side, L ids of a caption, h×w grid of patches, W width of the tower, D embedding
width.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from dinorankclip.models.open_clip_blocks import Runs, every_token
from dinorankclip.models.students import StudentFeatures, up_to
from dinorankclip.models.trunk import Trunk
from dinorankclip.types import UserError

LAST, PENULTIMATE = "last", "penultimate"


class OwnTokens:
    """Defines what both kinds share: a call returns the trunk's embedding and its features, in one pass."""

    width: int

    def __init__(self, trunk: Trunk, which: str = LAST) -> None:
        self._trunk, self._which = trunk, which

    def __call__(self, items: Tensor) -> tuple[Tensor, StudentFeatures]:
        raise NotImplementedError

    def compared(self, items: Tensor) -> StudentFeatures:
        """Return the features that are compared with the teacher's: penultimate tokens after a layer norm without
        weights, because the norm that the objective trains for them is in no model folder."""
        features = self(items)[1]
        if self._which != PENULTIMATE:
            return features
        return replace(features, tokens=F.layer_norm(features.tokens, features.tokens.shape[-1:]))


class OwnImageTokens(OwnTokens):
    """Maps pixels [B, 3, S, S] to the trunk's embedding [B, D] and its tokens, row by row of `grid`, in one pass."""

    def __init__(self, trunk: Trunk, which: str = LAST, setting: str = "--distil.into trunk") -> None:
        if not trunk.has_class_token:
            raise UserError(f"{setting} needs an image tower that is open_clip's plain ViT with a class token")
        super().__init__(trunk, which)
        visual = trunk.towers.visual
        self.width = visual.ln_post.normalized_shape[0]
        self.grid: tuple[int, int] = tuple(visual.grid_size)

    def __call__(self, pixels: Tensor) -> tuple[Tensor, StudentFeatures]:
        summary, tokens = self._trunk.image_tokens(pixels) if self._which == PENULTIMATE else self._last(pixels)
        return self._trunk.projected_image(summary), StudentFeatures(summary, tokens[:, 1:])

    def _last(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        visual = self._trunk.towers.visual
        tokens = visual._embeds(pixels)
        runs = Runs(((tokens.shape[0], tokens.shape[1]),))
        tokens = every_token(visual.transformer.resblocks, tokens.flatten(0, 1), runs, causal=False)
        tokens = visual.ln_post(tokens).unflatten(0, runs.shapes[0])
        return tokens[:, 0], tokens


class OwnTextTokens(OwnTokens):
    """Maps token ids [B, L] to the trunk's embedding [B, D] and the tokens behind it, at the places of the ids.

    The tower is causal: a token depends on earlier tokens. End-of-text is the class token.
    """

    def __init__(self, trunk: Trunk, which: str = LAST, setting: str = "--distil.into trunk") -> None:
        if not trunk.has_causal_blocks:
            advice = f"--{setting.split('.')[0].strip('-')}.branches image"
            raise UserError(f"{setting} with captions needs CLIP's own text tower: {advice}")
        super().__init__(trunk, which)
        self.width = trunk.towers.ln_final.normalized_shape[0]

    def __call__(self, texts: Tensor) -> tuple[Tensor, StudentFeatures]:
        summary, tokens = self._trunk.text_tokens(texts) if self._which == PENULTIMATE else self._last(texts)
        mask = up_to(self._trunk.end_of_text(texts), texts.shape[1])
        return self._trunk.projected_text(summary), StudentFeatures(summary, tokens, mask)

    def _last(self, texts: Tensor) -> tuple[Tensor, Tensor]:
        towers, length = self._trunk.towers, texts.shape[1]
        dtype = towers.transformer.get_cast_dtype()
        tokens = towers.token_embedding(texts).to(dtype) + towers.positional_embedding[:length].to(dtype)
        runs = Runs(((texts.shape[0], length),))
        tokens = every_token(towers.transformer.resblocks, tokens.flatten(0, 1), runs, causal=True)
        tokens = towers.ln_final(tokens).unflatten(0, runs.shapes[0])
        ends = self._trunk.end_of_text(texts)
        return tokens[torch.arange(len(texts), device=texts.device), ends], tokens


KINDS: dict[str, type[OwnImageTokens] | type[OwnTextTokens]] = {"image": OwnImageTokens, "text": OwnTextTokens}
