"""timm's ViTs as teachers: DINOv1, DINOv2 and DINOv3, with or without registers, and any other with a class token.

Weights come from timm's repositories on the hub, or from a local file in timm's layout or in the original authors'
(timm converts it). Tokens are taken after the final norm: timm's `forward_features` applies it, its
`get_intermediate_layers` would not.
"""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dinorankclip.torchvision_ops import declare_missing
from dinorankclip.types import UserError

from . import vits, weights
from .sources import Shape
from .teacher import Card, Interpolation, Preprocessing, Teacher

# Words in the file names of published weights that fix their preprocessing; timm calls them by the same tags.
_CORPORA = ("lvd1689m", "sat493m", "lvd142m")


class PatchTokens(nn.Module):
    vit: Any  # one of timm's, which share these attributes but no class

    def __init__(self, vit: nn.Module) -> None:
        super().__init__()
        self.vit = vit

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return vits.split(self.vit.forward_features(images), self.vit.num_prefix_tokens)


def timm_teacher(name: str, file: str | Path | None = None, input_size: int | None = None, **shape: Any) -> Teacher:
    """`name` is timm's, with or without tag; `shape` overrides its architecture (for tests with few layers)."""
    declare_missing()
    import timm

    source = f"timm:{name}"
    config = _config(name)
    if file is not None:
        path = weights.local_file(file, source)
        _demand_same_corpus(path, config, source)
    elif config.hf_hub_id:
        gated = config.license == "dinov3-license"
        path = weights.hub_file(config.hf_hub_id, "model.safetensors", source, f"{source}:FILE", gated)
    else:
        raise UserError(f"timm publishes no weights of {name}; give a file: {source}:FILE. {weights.INSTEAD}")
    tensors = weights.read_tensors(path)
    size = input_size or vits.USUAL_SIZE
    complaints = io.StringIO()
    try:
        # timm prints what it drops; `_demand_same_biases` judges it instead.
        with contextlib.redirect_stdout(complaints):
            vit: Any = timm.create_model(
                name,
                pretrained=True,
                pretrained_cfg_overlay={"file": str(path)},
                num_classes=0,
                img_size=size,
                **shape,
            )
    except (RuntimeError, KeyError, ValueError, AssertionError) as error:
        raise UserError(f"{path} does not hold the weights of {name}: {weights.complaint(error)}") from error
    except TypeError as error:
        raise UserError(f"{source} is no ViT (it takes no image size), so it has no patch tokens") from error
    _demand_tokens(vit, source)
    _demand_same_biases(vit, tensors, name, path)
    teacher = Teacher(
        Card(source, config.license or "see timm"),
        PatchTokens(vit),
        weights.hash_of(tensors),
        Preprocessing(size, tuple(config.mean), tuple(config.std), _interpolation(config.interpolation)),
        vits.grid_of(size, vit.patch_embed.patch_size[0], source),
    )
    vits.demand_final_norm(teacher, vit.norm)
    return teacher


def timm_shape(name: str) -> Shape:
    """What the ViT gives, from its architecture alone."""
    declare_missing()
    import timm

    source = f"timm:{name}"
    _config(name)
    with torch.device("meta"):  # weights take no memory there
        vit: Any = timm.create_model(name, num_classes=0)
    _demand_tokens(vit, source)
    return Shape(source, width=vit.embed_dim, summary=vit.embed_dim, patch=vit.patch_embed.patch_size[0])


def _config(name: str) -> Any:
    import difflib

    import timm

    try:
        config = timm.get_pretrained_cfg(name)
    except RuntimeError as error:  # an unknown tag
        raise UserError(f"timm:{name}: {error}") from error
    if config is None:
        known = timm.list_models("*dino*", pretrained=True)
        close = difflib.get_close_matches(name, known, 3, cutoff=0.4)
        raise UserError(f"timm knows no model '{name}'; did you mean {' or '.join(close or known[:3])}?")
    return config


def _demand_same_corpus(path: Path, config: Any, source: str) -> None:
    """Satellite weights with web images' mean and std (or the other way round) load without complaint."""
    tag = config.tag or ""
    for corpus in _CORPORA:
        if corpus in path.name and any(other in tag for other in _CORPORA if other != corpus):
            raise UserError(
                f"{path.name} was trained on {corpus}, but {source} normalises images for {tag}; use "
                f"timm:{config.architecture}.{corpus} if timm has it"
            )


def _demand_tokens(vit: nn.Module, source: str) -> None:
    if getattr(vit, "cls_token", None) is None or not getattr(vit, "num_prefix_tokens", 0):
        raise UserError(f"{source} has no class token")
    if not isinstance(getattr(vit, "norm", None), nn.LayerNorm):
        raise UserError(f"{source} normalises after pooling, not its tokens; it cannot be a dense teacher")


def _demand_same_biases(vit: Any, tensors: dict[str, Tensor], name: str, path: Path) -> None:
    """timm's DINOv3 without `_qkvb` has no query and value biases and drops those of the file: fine if they are 0."""
    attention = vit.blocks[0].attn
    if any(getattr(*place, None) is not None for place in ((attention, "q_bias"), (attention.qkv, "bias"))):
        return
    for key, bias in tensors.items():
        if key.endswith("attn.qkv.bias"):
            query, _, value = bias.chunk(3)
            if bool(torch.cat([query, value]).any()):
                architecture, dot, tag = name.partition(".")
                raise UserError(f"{path} holds query and value biases: use timm:{architecture}_qkvb{dot}{tag}:{path}")


def _interpolation(name: str) -> Interpolation:
    return "bilinear" if name == "bilinear" else "bicubic"
