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

from dinorankclip.models.map_tower import MAP, SMALLEST, MapTower
from dinorankclip.models.open_clip_blocks import Runs, has_plain_blocks, is_plain, pooled_and_dense
from dinorankclip.models.trunk_gate import check_trunk
from dinorankclip.models.weights_file import demand_readable
from dinorankclip.seeds import drawing_from
from dinorankclip.types import ImageSpec, TextSpec, UserError

BUILT_IN = Path(__file__).parent / "trunks"
open_clip.add_model_config(BUILT_IN)

# Where the sigmoid loss starts (Zhai et al. 2023): logits are 10·cos - 10, so that most of the many pairs that do not
# match are answered right from the beginning. The names are open_clip's, and stand in the config of such a trunk.
SIGMOID_START = {"init_logit_scale": math.log(10.0), "init_logit_bias": -10.0}
WHY = 300  # characters of a reason for which weights do not fit
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
        check_trunk(config)
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
        return ImageSpec(
            usual.size,
            tuple(chosen.get("mean", usual.mean)),
            tuple(chosen.get("std", usual.std)),
            chosen.get("resize_mode") or usual.resize,
            chosen.get("interpolation") or usual.interpolation,
        )

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
            lines = [line.strip() for line in (str(error) or type(error).__name__).splitlines()]
            # torch gives its reasons below a heading: missing and unexpected names, then sizes that differ.
            why = lines[-1] if lines[0].endswith(":") else lines[0]
            raise UserError(f"{path} does not hold weights of this trunk; is its name right? {why[:WHY]}") from error

    def encode_image(self, images: Tensor) -> Tensor:
        """Map normalised float images [B, 3, S, S] to [B, D]."""
        if not self.pools_class_token:
            return self.towers.encode_image(images)
        return self.projected_image(self.image_tokens(images)[0])

    def image_tokens(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Map images as in `encode_image` to class tokens after the final norm [B, W], and to the tokens that enter
        the last block, the class token first [B, 1 + h·w, W]. The tower is a plain ViT (`has_class_token`)."""
        visual = self.towers.visual
        tokens = visual._embeds(images)
        if not is_plain(visual.transformer):  # an export records a graph
            *blocks, last = visual.transformer.resblocks
            for block in blocks:
                tokens = block(tokens)
            return visual.ln_post(last(tokens)[:, 0]), tokens
        runs = Runs(((tokens.shape[0], tokens.shape[1]),))
        first = torch.zeros(len(tokens), dtype=torch.int64, device=images.device)
        rows, dense = pooled_and_dense(visual.transformer, tokens.flatten(0, 1), runs, first, causal=False)
        return visual.ln_post(rows), dense.unflatten(0, runs.shapes[0])

    def encode_text(self, texts: Tensor) -> Tensor:
        """Map token ids [B, L], L up to the context length, padded with 0, to [B, D]."""
        if not self.reads_causally:
            return self.towers.encode_text(F.pad(texts, (0, self.towers.context_length - texts.shape[1])))
        rows, _, order, _ = self._read_runs(texts)
        return self.projected_text(rows[order.argsort()])

    def text_tokens(self, texts: Tensor) -> tuple[Tensor, Tensor]:
        """Map ids as in `encode_text` to end-of-text tokens after the final norm [B, W], and to the tokens that enter
        the last block, at the places of the ids [B, L, W]. The tower is plain and causal (`has_causal_blocks`).

        After the end of a caption tokens have no meaning.
        """
        towers, length = self.towers, texts.shape[1]
        if not is_plain(towers.transformer):  # an export records a graph
            tokens = towers.token_embedding(texts) + towers.positional_embedding[:length]
            *blocks, last = towers.transformer.resblocks
            for block in blocks:
                tokens = block(tokens, attn_mask=towers.attn_mask[:length, :length])
            ends = self.end_of_text(texts)[:, None, None].expand(-1, 1, tokens.shape[-1])
            rows = last(tokens, attn_mask=towers.attn_mask[:length, :length]).gather(1, ends)
            return towers.ln_final(rows.squeeze(1)), tokens
        rows, dense, order, runs = self._read_runs(texts)
        padded = [F.pad(part, (0, 0, 0, length - part.shape[1])) for part in runs.split(dense)]
        back = order.argsort()
        return rows[back], torch.cat(padded)[back]

    def _read_runs(self, texts: Tensor) -> tuple[Tensor, Tensor, Tensor, Runs]:
        """Read captions [B, L] in runs of like length: end-of-text tokens after the final norm [B, W] and the tokens
        that enter the last block [T, W], captions in the returned order [B], and the runs that T is divided into."""
        towers = self.towers
        ends = self.end_of_text(texts)
        order, runs = caption_runs(ends + 1, texts.shape[1])
        pieces = order.split([count for count, _ in runs.shapes])
        ids = [texts[piece, :longest].flatten() for piece, (_, longest) in zip(pieces, runs.shapes)]
        places = [torch.arange(longest, device=texts.device).repeat(count) for count, longest in runs.shapes]
        dtype = towers.transformer.get_cast_dtype()
        tokens = towers.token_embedding(torch.cat(ids)).to(dtype)
        tokens = tokens + F.embedding(torch.cat(places), towers.positional_embedding).to(dtype)
        rows, dense = pooled_and_dense(towers.transformer, tokens, runs, ends[order], causal=True)
        return towers.ln_final(rows), dense, order, runs

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
    def has_class_token(self) -> bool:
        """Return True for an image tower that is a plain ViT and pools its class token."""
        visual = self.towers.visual
        return (
            type(visual) is VisionTransformer
            and visual.attn_pool is None
            and visual.pool_type == "tok"
            and not visual.output_tokens
            and has_plain_blocks(visual.transformer)
        )

    @property
    def pools_class_token(self) -> bool:
        """Return True where `encode_image` may run the blocks of a plain ViT its own way: not while an export records
        a graph."""
        return self.has_class_token and is_plain(self.towers.visual.transformer)

    @property
    def has_causal_blocks(self) -> bool:
        """Return True for CLIP's own text tower with plain blocks."""
        return self.cuts_captions and has_plain_blocks(self.towers.transformer)

    @property
    def reads_causally(self) -> bool:
        """Return True where `encode_text` may run these blocks its own way: not while an export records a graph."""
        return self.has_causal_blocks and is_plain(self.towers.transformer)

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
    custom = config.pop("custom_text", False)
    config.pop("multimodal_cfg", None)
    config["vision_cfg"]["timm_model_pretrained"] = False  # weights are never fetched
    preprocessing = config.pop("preprocess_cfg", None)  # how images are shown, if it is not CLIP's own way
    vision = config["vision_cfg"]
    if vision.get("pool_type") == MAP:
        config["vision_cfg"] = SMALLEST
    towers = (open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**config)
    if vision.get("pool_type") == MAP:
        towers.visual = MapTower(vision, config.get("quick_gelu", False))
    if preprocessing is not None:
        towers.visual.preprocess_cfg = preprocessing
    return towers.to(torch.float32)
