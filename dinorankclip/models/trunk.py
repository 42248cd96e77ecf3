"""The contrastive trunk: any open_clip model, and the small built-in ones, which are open_clip configs too.

Three things are ours. Captions may be shorter than the context (open_clip's own `CLIP.encode_text` insists on all 77
positions): a causal tower gives the same features on the cut sequence, for a fraction of the time. Blocks are walked
without what nobody reads (`blocks`). And initial weights come from a named seed.
"""

from __future__ import annotations

import copy
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor, nn

from dinorankclip.device import declare_missing
from dinorankclip.models.open_clip_blocks import Runs, every_token
from dinorankclip.models.students import StudentFeatures, up_to
from dinorankclip.seeds import drawing_from
from dinorankclip.types import ImageSpec, TextSpec, UserError

declare_missing()
import open_clip  # noqa: E402
from open_clip.transformer import VisionTransformer  # noqa: E402

from dinorankclip.models.open_clip_blocks import is_plain, pooled  # noqa: E402
from dinorankclip.models.weights_file import demand_readable  # noqa: E402

BUILT_IN = Path(__file__).parent / "trunks"
open_clip.add_model_config(BUILT_IN)

# What reading a damaged or foreign weights file may raise.
_UNREADABLE = (SafetensorError, UnpicklingError, EOFError, StopIteration, AttributeError, TypeError)

LENGTH_STEP = 4  # captions are padded to a multiple of this
# Pooling rules that read one position at or before the end-of-text token, so that what follows it cannot matter.
_POOLS_AT_END_OF_TEXT = ("argmax", "eos")


def trunk_config(name: str, image_size: int | None = None) -> dict[str, Any]:
    """The open_clip config behind a model name; a copy, so that it can be stored with the weights."""
    config = open_clip.get_model_config(name)
    if config is None:
        import difflib

        close = difflib.get_close_matches(name, open_clip.list_models(), 3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise UserError(f"no trunk is called '{name}'{hint} (built in: {', '.join(built_in_names())}, or open_clip's)")
    config = copy.deepcopy(config)
    if image_size is not None:
        config["vision_cfg"]["image_size"] = image_size
    return config


def trunk_name(config: dict[str, Any]) -> str | None:
    """The model name behind an open_clip config, if need be of another image size; None if none is built like that."""
    wanted = _without_size(config)
    alike = [name for name in open_clip.list_models() if _without_size(trunk_config(name)) == wanted]
    return next((name for name in alike if trunk_config(name) == config), alike[0] if alike else None)


def _without_size(config: dict[str, Any]) -> dict[str, Any]:
    return config | {"vision_cfg": {key: value for key, value in config["vision_cfg"].items() if key != "image_size"}}


def built_in_names() -> list[str]:
    return sorted(path.stem for path in BUILT_IN.glob("*.json"))


class Trunk(nn.Module):
    """open_clip towers behind `encode_image` and `encode_text`, both without normalisation."""

    towers: Any  # CLIP or CustomTextCLIP; `cuts_captions` and `pools_class_token` ask which parts it has

    def __init__(self, config: dict[str, Any], seed: int = 0):
        super().__init__()
        with drawing_from(seed, "trunk"):
            self.towers = build_towers(config)
        self.config = config

    @property
    def dim(self) -> int:
        return self.config["embed_dim"]

    @property
    def image_spec(self) -> ImageSpec:
        size = self.towers.visual.image_size
        chosen = getattr(self.towers.visual, "preprocess_cfg", {})
        defaults = ImageSpec(size[0] if isinstance(size, tuple | list) else size)
        return ImageSpec(
            defaults.size, tuple(chosen.get("mean", defaults.mean)), tuple(chosen.get("std", defaults.std))
        )

    @property
    def text_spec(self) -> TextSpec:
        return TextSpec(context_length=self.towers.context_length)

    @property
    def logit_scale(self) -> nn.Parameter:
        return self.towers.logit_scale

    def load_weights(self, path: str | Path) -> None:
        """Weights in open_clip's format (safetensors, or a checkpoint that loads without unpickling code)."""
        path = Path(path)
        if not path.is_file():
            raise UserError(f"no weights file at {path}")
        demand_readable(path)
        try:
            open_clip.load_checkpoint(self.towers, str(path), strict=True, weights_only=True)
        except (RuntimeError, KeyError, ValueError, AssertionError, OSError, *_UNREADABLE) as error:
            why = (str(error) or type(error).__name__).splitlines()[0]
            raise UserError(f"{path} does not hold weights of this trunk: {why}") from error

    def encode_image(self, images: Tensor) -> Tensor:
        """Normalised float images [B, 3, S, S] → [B, D]."""
        visual = self.towers.visual
        if not self.pools_class_token:
            return self.towers.encode_image(images)
        tokens = visual._embeds(images)
        count, length, _ = tokens.shape
        first = torch.zeros(count, dtype=torch.int64, device=images.device)
        rows = pooled(visual.transformer, tokens.flatten(0, 1), Runs(((count, length),)), first, causal=False)
        rows = visual.ln_post(rows)
        return rows if visual.proj is None else rows @ visual.proj

    def encode_text(self, texts: Tensor) -> Tensor:
        """Token ids [B, L], L up to the context length, padded with 0 → [B, D]."""
        towers, length = self.towers, texts.shape[1]
        if not self.reads_causally:
            return towers.encode_text(F.pad(texts, (0, towers.context_length - length)))
        ends = self.end_of_text(texts)
        order, runs = caption_runs(ends + 1, length)
        pieces = [
            texts[some, :longest] for some, (_, longest) in zip(order.split([n for n, _ in runs.shapes]), runs.shapes)
        ]
        places = [torch.arange(longest, device=texts.device).repeat(count) for count, longest in runs.shapes]
        dtype = towers.transformer.get_cast_dtype()
        tokens = towers.token_embedding(torch.cat([piece.flatten() for piece in pieces])).to(dtype)
        tokens = tokens + F.embedding(torch.cat(places), towers.positional_embedding).to(dtype)
        rows = towers.ln_final(pooled(towers.transformer, tokens, runs, ends[order], causal=True))
        return self.projected_text(rows[order.argsort()])

    def end_of_text(self, texts: Tensor) -> Tensor:
        """Where captions [B, L] are read: [B]."""
        if self.towers.text_pool_type == "argmax":
            return texts.argmax(-1)
        return (texts == self.towers.text_eos_id).int().argmax(-1)

    def projected_text(self, rows: Tensor) -> Tensor:
        """Final tokens [B, W] → [B, D]"""
        projection = self.towers.text_projection
        if projection is None:
            return rows
        return projection(rows) if isinstance(projection, nn.Linear) else rows @ projection

    @property
    def pools_class_token(self) -> bool:
        """Whether the image tower is a plain ViT that is read at its class token."""
        visual = self.towers.visual
        return (
            type(visual) is VisionTransformer
            and visual.attn_pool is None
            and visual.pool_type == "tok"
            and not visual.output_tokens
            and is_plain(visual.transformer)
        )

    @property
    def reads_causally(self) -> bool:
        """Whether the text tower is CLIP's own, with plain blocks."""
        return self.cuts_captions and is_plain(self.towers.transformer)

    @property
    def cuts_captions(self) -> bool:
        """Whether a shorter sequence gives the same features: causal attention, read at the end-of-text token."""
        towers = self.towers
        return (
            isinstance(towers, open_clip.CLIP)
            and towers.attn_mask is not None
            and towers.text_pool_type in _POOLS_AT_END_OF_TEXT
        )


def caption_runs(lengths: Tensor, longest: int) -> tuple[Tensor, Runs]:
    """An order of the captions in which those of like length follow each other, and the runs they form.

    On a GPU there is one run: counting would wait for the device.
    """
    count = len(lengths)
    if lengths.device.type != "cpu" or not count:
        return torch.arange(count, device=lengths.device), Runs(((count, longest),))
    padded = (-(-lengths // LENGTH_STEP) * LENGTH_STEP).clamp_max(longest)
    order = padded.argsort(stable=True)
    found, counts = padded[order].unique_consecutive(return_counts=True)
    return order, Runs(tuple(zip(counts.tolist(), found.tolist())))


def build_towers(config: dict[str, Any]) -> nn.Module:
    """An open_clip model from its config, weights drawn from torch's current generator."""
    config = copy.deepcopy(config)
    custom = config.pop("custom_text", False) or "hf_model_name" in config["text_cfg"]
    config.pop("multimodal_cfg", None)
    preprocessing = config.pop("preprocess_cfg", None)  # mean and std, if they are not CLIP's own
    towers = (open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**config)
    if preprocessing is not None:
        towers.visual.preprocess_cfg = preprocessing
    return towers.to(torch.float32)


# -------- trunk_tokens
# The trunk's own tokens, for a teacher that teaches the trunk itself instead of students (a control of the study).
#
# Tokens and class token are those of the last block after the tower's final norm, before the projection. A step wants
# the embedding too, and both come from one pass; it has the value that `Trunk` gives, up to rounding.
#
# Shapes: B images or captions, S image side, L tokens, W width of the tower, D embedding width.


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
