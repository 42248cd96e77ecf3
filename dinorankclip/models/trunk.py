"""Builds the contrastive trunk: any open_clip model, or a small built-in model, which is an open_clip config too.

Three things differ from open_clip. Captions may be shorter than the context (open_clip's own `CLIP.encode_text`
demands all 77 positions): a causal tower gives the same features on the cut sequence, for a fraction of the time.
open_clip_blocks.py runs plain blocks. Initial weights come from a named seed.

Shapes: B images or captions, S image side, L tokens, W width of the tower, D embedding width.
"""

from __future__ import annotations

import copy
import difflib
import math
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import open_clip
import torch
import torch.nn.functional as F
from open_clip.transformer import VisionTransformer
from safetensors import SafetensorError
from torch import Tensor, nn

from dinorankclip.models.open_clip_blocks import Runs, every_token, is_plain, pooled
from dinorankclip.models.students import StudentFeatures, up_to
from dinorankclip.models.weights_file import demand_readable
from dinorankclip.seeds import drawing_from
from dinorankclip.types import ImageSpec, TextSpec, UserError

BUILT_IN = Path(__file__).parent / "trunks"
open_clip.add_model_config(BUILT_IN)

# Where the sigmoid loss starts (Zhai et al. 2023): logits are 10·cos - 10, so that most of the many pairs that do not
# match are answered right from the beginning. The names are open_clip's, and stand in the config of such a trunk.
SIGMOID_START = {"init_logit_scale": math.log(10.0), "init_logit_bias": -10.0}
LENGTH_STEP = 4  # captions are padded to a multiple of this
# Errors that a damaged or foreign weights file may raise.
_UNREADABLE = (SafetensorError, UnpicklingError, EOFError, StopIteration, AttributeError, TypeError)


def trunk_config(name: str, image_size: int | None = None) -> dict[str, Any]:
    """Return a copy of the open_clip config behind a model name, to be stored with the weights."""
    config = open_clip.get_model_config(name)
    if config is None:
        close = difflib.get_close_matches(name, open_clip.list_models(), 3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        built_in = ", ".join(sorted(path.stem for path in BUILT_IN.glob("*.json")))
        raise UserError(f"no trunk is called '{name}'{hint} (built in: {built_in}, or open_clip's)")
    config = copy.deepcopy(config)
    if image_size is not None:
        config["vision_cfg"]["image_size"] = image_size
    return config


def trunk_name(config: dict[str, Any]) -> str | None:
    """Return the model name behind an open_clip config, perhaps of another image size; None if there is none."""

    def without_size(config: dict[str, Any]) -> dict[str, Any]:
        vision = {key: value for key, value in config["vision_cfg"].items() if key != "image_size"}
        return without_start(config) | {"vision_cfg": vision}

    target = without_size(config)
    alike = [name for name in open_clip.list_models() if without_size(trunk_config(name)) == target]
    equal = [name for name in alike if without_start(trunk_config(name)) == without_start(config)]
    return next(iter(equal or alike), None)


def without_start(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config without the start of logit scale and bias, which shapes no tower."""
    return {key: value for key, value in config.items() if key not in SIGMOID_START}


class Trunk(nn.Module):
    """Runs open_clip towers in `encode_image` and `encode_text`, both without normalisation."""

    towers: Any  # CLIP or CustomTextCLIP; `cuts_captions` and `pools_class_token` tell what a tower has

    def __init__(self, config: dict[str, Any], seed: int = 0):
        super().__init__()
        with drawing_from(seed, "trunk"):
            self.towers = _build_towers(config)
        self.config = config

    @property
    def dim(self) -> int:
        return self.config["embed_dim"]

    @property
    def image_spec(self) -> ImageSpec:
        size = self.towers.visual.image_size
        chosen = getattr(self.towers.visual, "preprocess_cfg", {})
        usual = ImageSpec(size[0] if isinstance(size, tuple | list) else size)
        return ImageSpec(usual.size, tuple(chosen.get("mean", usual.mean)), tuple(chosen.get("std", usual.std)))

    @property
    def text_spec(self) -> TextSpec:
        return TextSpec(context_length=self.towers.context_length)

    @property
    def logit_scale(self) -> nn.Parameter:
        return self.towers.logit_scale

    @property
    def logit_bias(self) -> nn.Parameter | None:
        """Return the bias of logits, a scalar; None where the loss has none (every loss but the sigmoid loss)."""
        return self.towers.logit_bias

    def start_sigmoid(self) -> None:
        """Add a logit bias and set the temperature, as the sigmoid loss starts; a trunk with a bias keeps both."""
        if self.logit_bias is not None:
            return
        with torch.no_grad():
            self.logit_scale.fill_(SIGMOID_START["init_logit_scale"])
        self.towers.logit_bias = nn.Parameter(torch.full_like(self.logit_scale, SIGMOID_START["init_logit_bias"]))
        self.config = self.config | SIGMOID_START

    def load_weights(self, path: str | Path) -> None:
        """Load weights in open_clip's format (safetensors, or a checkpoint that loads without unpickling code)."""
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
        """Map normalised float images [B, 3, S, S] to [B, D]."""
        visual = self.towers.visual
        if not self.pools_class_token:
            return self.towers.encode_image(images)
        tokens = visual._embeds(images)
        count, length, _ = tokens.shape
        first = torch.zeros(count, dtype=torch.int64, device=images.device)
        rows = pooled(visual.transformer, tokens.flatten(0, 1), Runs(((count, length),)), first, causal=False)
        return self.projected_image(visual.ln_post(rows))

    def encode_text(self, texts: Tensor) -> Tensor:
        """Map token ids [B, L], L up to the context length, padded with 0, to [B, D]."""
        towers, length = self.towers, texts.shape[1]
        if not self.reads_causally:
            return towers.encode_text(F.pad(texts, (0, towers.context_length - length)))
        ends = self.end_of_text(texts)
        order, runs = caption_runs(ends + 1, length)
        pieces = order.split([count for count, _ in runs.shapes])
        ids = [texts[piece, :longest].flatten() for piece, (_, longest) in zip(pieces, runs.shapes)]
        places = [torch.arange(longest, device=texts.device).repeat(count) for count, longest in runs.shapes]
        dtype = towers.transformer.get_cast_dtype()
        tokens = towers.token_embedding(torch.cat(ids)).to(dtype)
        tokens = tokens + F.embedding(torch.cat(places), towers.positional_embedding).to(dtype)
        rows = towers.ln_final(pooled(towers.transformer, tokens, runs, ends[order], causal=True))
        return self.projected_text(rows[order.argsort()])

    def end_of_text(self, texts: Tensor) -> Tensor:
        """Return the place [B] of the end-of-text token in captions [B, L]."""
        if self.towers.text_pool_type == "argmax":
            return texts.argmax(-1)
        return (texts == self.towers.text_eos_id).int().argmax(-1)

    def projected_image(self, rows: Tensor) -> Tensor:
        """Project class tokens after the final norm [B, W] to [B, D]."""
        projection = self.towers.visual.proj
        return rows if projection is None else rows @ projection

    def projected_text(self, rows: Tensor) -> Tensor:
        """Project end-of-text tokens after the final norm [B, W] to [B, D]."""
        projection = self.towers.text_projection
        if projection is None:
            return rows
        return projection(rows) if isinstance(projection, nn.Linear) else rows @ projection

    @property
    def pools_class_token(self) -> bool:
        """Return True for an image tower that is a plain ViT and pools its class token."""
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
        """Return True for CLIP's own text tower with plain blocks."""
        return self.cuts_captions and is_plain(self.towers.transformer)

    @property
    def cuts_captions(self) -> bool:
        """Return whether a shorter sequence gives equal features: causal attention, pooled at the end-of-text token."""
        towers = self.towers
        return (
            isinstance(towers, open_clip.CLIP)
            and towers.attn_mask is not None
            and towers.text_pool_type in ("argmax", "eos")
        )


def caption_runs(lengths: Tensor, longest: int) -> tuple[Tensor, Runs]:
    """Return an order of captions in which like lengths follow each other, and the runs that they form.

    On a GPU there is one run: counting would wait for the device.
    """
    count = len(lengths)
    if lengths.device.type != "cpu" or not count:
        return torch.arange(count, device=lengths.device), Runs(((count, longest),))
    padded = (-(-lengths // LENGTH_STEP) * LENGTH_STEP).clamp_max(longest)
    order = padded.argsort(stable=True)
    values, counts = padded[order].unique_consecutive(return_counts=True)
    return order, Runs(tuple(zip(counts.tolist(), values.tolist())))


def _build_towers(config: dict[str, Any]) -> nn.Module:
    """Build an open_clip model from its config, with weights drawn from torch's current generator."""
    config = copy.deepcopy(config)
    custom = config.pop("custom_text", False) or "hf_model_name" in config["text_cfg"]
    config.pop("multimodal_cfg", None)
    preprocessing = config.pop("preprocess_cfg", None)  # mean and std, if they are not CLIP's own
    towers = (open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**config)
    if preprocessing is not None:
        towers.visual.preprocess_cfg = preprocessing
    return towers.to(torch.float32)


class OwnImageTokens:
    """Maps pixels [B, 3, S, S] to the trunk's embedding [B, D] and its tokens, row by row of `grid`, in one pass.

    A teacher then teaches the trunk itself instead of students (a control of the study). Tokens and class token
    are those of the last block after the tower's final norm, before the projection.
    """

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
        return self._trunk.projected_image(tokens[:, 0]), StudentFeatures(tokens[:, 0], tokens[:, 1:])


class OwnTextTokens:
    """Maps token ids [B, L] to the trunk's embedding [B, D] and the tokens behind it, at the places of the ids.

    See `OwnImageTokens`. The tower is causal: a token depends on earlier tokens. End-of-text is the class token.
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
        summary = tokens[torch.arange(len(texts), device=texts.device), ends]
        return self._trunk.projected_text(summary), StudentFeatures(summary, tokens, up_to(ends, length))
