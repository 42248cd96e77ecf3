"""Maps weights and configurations between transformers' CLIP and SigLIP and the open_clip towers of a trunk.

Both libraries compute the same functions with other names: transformers keeps queries, keys and values apart and stores
projections transposed. `Rule` says how one tensor (or three) of theirs becomes one (or two) of ours; rules work both
ways. Values are copied, never computed, so a model that goes there and back has equal weights.

SigLIP's image tower is map_tower.py, its text tower is open_clip's with attention in both directions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dinorankclip.models.map_tower import MAP

CLIP, SIGLIP = "clip", "siglip"
# Entries of an open_clip configuration that transformers' CLIP can express.
_VISION_ENTRIES = {"image_size", "patch_size", "width", "layers", "head_width", "mlp_ratio", "norm_kwargs", "pool_type"}
_TEXT_ENTRIES = {
    "context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio", "norm_kwargs", "pool_type", "eos_id",
}  # fmt: skip
_ACTIVATIONS = {"gelu": None, "gelu_pytorch_tanh": {"approximate": "tanh"}}  # of transformers → act_kwargs
_LEGACY_END = 2  # transformers' mark of a model that is read off at the largest id


class Rule(NamedTuple):
    """Names tensors of ours and of theirs. `form` says how one becomes the other: "same", "transposed" (a projection),
    "rows" (ours has a leading dimension of one), "scalar" (theirs has), "joined" (three of theirs are one of ours) or
    "parted" (one of theirs is two of ours, queries and the rest)."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    form: str = "same"


def _same(ours: str, theirs: str, *ends: str) -> Iterator[Rule]:
    for end in ends or ("weight", "bias"):
        yield Rule((f"{ours}.{end}",), (f"{theirs}.{end}",))


def _blocks(ours: str, theirs: str, layers: int) -> Iterator[Rule]:
    """Yield the rules of open_clip's residual blocks."""
    for number in range(layers):
        our, their = f"{ours}.resblocks.{number}", f"{theirs}.encoder.layers.{number}"
        for end in ("weight", "bias"):
            parts = tuple(f"{their}.self_attn.{name}_proj.{end}" for name in "qkv")
            yield Rule((f"{our}.attn.in_proj_{end}",), parts, "joined")
        yield from _same(f"{our}.attn.out_proj", f"{their}.self_attn.out_proj")
        yield from _same(f"{our}.ln_1", f"{their}.layer_norm1")
        yield from _same(f"{our}.ln_2", f"{their}.layer_norm2")
        yield from _same(f"{our}.mlp.c_fc", f"{their}.mlp.fc1")
        yield from _same(f"{our}.mlp.c_proj", f"{their}.mlp.fc2")


def _clip_rules(config: Mapping[str, Any]) -> Iterator[Rule]:
    yield from _same("token_embedding", "text_model.embeddings.token_embedding", "weight")
    yield Rule(("positional_embedding",), ("text_model.embeddings.position_embedding.weight",))
    yield from _blocks("transformer", "text_model", config["text_cfg"]["layers"])
    yield from _same("ln_final", "text_model.final_layer_norm")
    yield Rule(("text_projection",), ("text_projection.weight",), "transposed")
    yield Rule(("visual.class_embedding",), ("vision_model.embeddings.class_embedding",))
    yield Rule(("visual.conv1.weight",), ("vision_model.embeddings.patch_embedding.weight",))
    yield Rule(("visual.positional_embedding",), ("vision_model.embeddings.position_embedding.weight",))
    yield from _same("visual.ln_pre", "vision_model.pre_layrnorm")
    yield from _blocks("visual.transformer", "vision_model", config["vision_cfg"]["layers"])
    yield from _same("visual.ln_post", "vision_model.post_layernorm")
    yield Rule(("visual.proj",), ("visual_projection.weight",), "transposed")
    yield Rule(("logit_scale",), ("logit_scale",))


def _siglip_rules(config: Mapping[str, Any]) -> Iterator[Rule]:
    yield from _same("text.token_embedding", "text_model.embeddings.token_embedding", "weight")
    yield Rule(("text.positional_embedding",), ("text_model.embeddings.position_embedding.weight",))
    yield from _blocks("text.transformer", "text_model", config["text_cfg"]["layers"])
    yield from _same("text.ln_final", "text_model.final_layer_norm")
    yield from _same("text.text_projection", "text_model.head")
    trunk = "visual.trunk"
    yield from _same(f"{trunk}.patch_embed.proj", "vision_model.embeddings.patch_embedding")
    yield Rule((f"{trunk}.pos_embed",), ("vision_model.embeddings.position_embedding.weight",), "rows")
    for number in range(config["vision_cfg"]["layers"]):
        our, their = f"{trunk}.blocks.{number}", f"vision_model.encoder.layers.{number}"
        for end in ("weight", "bias"):
            parts = tuple(f"{their}.self_attn.{name}_proj.{end}" for name in "qkv")
            yield Rule((f"{our}.attn.qkv.{end}",), parts, "joined")
        yield from _same(f"{our}.attn.proj", f"{their}.self_attn.out_proj")
        yield from _same(f"{our}.norm1", f"{their}.layer_norm1")
        yield from _same(f"{our}.norm2", f"{their}.layer_norm2")
        yield from _same(f"{our}.mlp.fc1", f"{their}.mlp.fc1")
        yield from _same(f"{our}.mlp.fc2", f"{their}.mlp.fc2")
    yield from _same(f"{trunk}.norm", "vision_model.post_layernorm")
    pool, head = f"{trunk}.attn_pool", "vision_model.head"
    yield Rule((f"{pool}.latent",), (f"{head}.probe",))
    for end in ("weight", "bias"):
        yield Rule((f"{pool}.q.{end}", f"{pool}.kv.{end}"), (f"{head}.attention.in_proj_{end}",), "parted")
    yield from _same(f"{pool}.proj", f"{head}.attention.out_proj")
    yield from _same(f"{pool}.norm", f"{head}.layernorm")
    yield from _same(f"{pool}.mlp.fc1", f"{head}.mlp.fc1")
    yield from _same(f"{pool}.mlp.fc2", f"{head}.mlp.fc2")
    yield Rule(("logit_scale",), ("logit_scale",), "scalar")
    yield Rule(("logit_bias",), ("logit_bias",), "scalar")


def rules(kind: str, config: Mapping[str, Any]) -> list[Rule]:
    """Return the rules for "clip" or "siglip" towers of an open_clip configuration."""
    return list(_clip_rules(config) if kind == CLIP else _siglip_rules(config))


def to_ours(kind: str, config: Mapping[str, Any], theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of open_clip towers from a state of transformers. A missing name raises KeyError."""
    ours: dict[str, Tensor] = {}
    for rule in rules(kind, config):
        parts = [theirs[name].float() for name in rule.theirs]
        if rule.form == "parted":
            width = parts[0].shape[0] // 3
            ours |= zip(rule.ours, (parts[0][:width].clone(), parts[0][width:].clone()))
            continue
        value = torch.cat(parts) if rule.form == "joined" else parts[0]
        if rule.form == "transposed":
            value = value.T.contiguous()
        elif rule.form == "rows":
            value = value[None]
        elif rule.form == "scalar":
            value = value.reshape(())
        ours[rule.ours[0]] = value
    return ours


def to_theirs(kind: str, config: Mapping[str, Any], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of transformers from the state of open_clip towers."""
    theirs: dict[str, Tensor] = {}
    for rule in rules(kind, config):
        value = torch.cat([ours[name] for name in rule.ours]) if rule.form == "parted" else ours[rule.ours[0]]
        if rule.form == "joined":
            theirs |= {name: part.clone() for name, part in zip(rule.theirs, value.chunk(3))}
            continue
        if rule.form == "transposed":
            value = value.T.contiguous()
        elif rule.form == "rows":
            value = value[0]
        elif rule.form == "scalar":
            value = value.reshape(1)
        theirs[rule.theirs[0]] = value.clone()
    return theirs


def open_clip_config(kind: str, text: Mapping[str, Any], vision: Mapping[str, Any], dim: int) -> dict[str, Any]:
    """Return the open_clip configuration of towers that transformers describes; entries were checked."""
    text_cfg: dict[str, Any] = {
        "context_length": text["max_position_embeddings"],
        "vocab_size": text["vocab_size"],
        "width": text["hidden_size"],
        "heads": text["num_attention_heads"],
        "layers": text["num_hidden_layers"],
    }
    vision_cfg: dict[str, Any] = {
        "image_size": vision["image_size"],
        "patch_size": vision["patch_size"],
        "width": vision["hidden_size"],
        "layers": vision["num_hidden_layers"],
        "head_width": vision["hidden_size"] // vision["num_attention_heads"],
    }
    config: dict[str, Any] = {"embed_dim": dim, "vision_cfg": vision_cfg, "text_cfg": text_cfg}
    for theirs, ours in ((text, text_cfg), (vision, vision_cfg)):
        ratio = theirs["intermediate_size"] / theirs["hidden_size"]
        if ratio != 4:
            ours["mlp_ratio"] = ratio
        if theirs["layer_norm_eps"] != 1e-5 or (kind == SIGLIP and ours is vision_cfg):
            ours["norm_kwargs"] = {"eps": theirs["layer_norm_eps"]}
        if act_kwargs := _ACTIVATIONS.get(theirs["hidden_act"]):
            ours["act_kwargs"] = act_kwargs
    if text["hidden_act"] == "quick_gelu":
        config["quick_gelu"] = True
    if kind == SIGLIP:
        config |= {"custom_text": True, "init_logit_bias": -10}
        vision_cfg["pool_type"] = MAP
        text_cfg |= {"no_causal_mask": True, "proj_bias": True, "pool_type": "last"}
    elif text["eos_token_id"] not in (_LEGACY_END, text["vocab_size"] - 1):
        text_cfg |= {"pool_type": "eos", "eos_id": text["eos_token_id"]}
    return config


def transformers_config(kind: str, config: Mapping[str, Any], end: int, padding: int) -> dict[str, Any]:
    """Return transformers' config.json for the towers of an open_clip configuration (`kind_of` says which kind)."""
    text, vision, dim = config["text_cfg"], config["vision_cfg"], config["embed_dim"]
    quick = "quick_gelu" if config.get("quick_gelu") else "gelu"

    def tower(ours: Mapping[str, Any], heads: int, usual_eps: float) -> dict[str, Any]:
        tanh = (ours.get("act_kwargs") or {}).get("approximate") == "tanh"
        return {
            "hidden_size": ours["width"],
            "intermediate_size": int(ours["width"] * ours.get("mlp_ratio", 4.0)),
            "num_hidden_layers": ours["layers"],
            "num_attention_heads": heads,
            "hidden_act": "gelu_pytorch_tanh" if tanh else quick,
            "layer_norm_eps": (ours.get("norm_kwargs") or {}).get("eps", usual_eps),
        }

    text_config = tower(text, text["heads"], 1e-5) | {
        "vocab_size": text["vocab_size"],
        "max_position_embeddings": text["context_length"],
        "eos_token_id": end,
        "pad_token_id": padding,
        ("projection_dim" if kind == CLIP else "projection_size"): dim,
    }
    vision_config = tower(vision, vision["width"] // vision.get("head_width", 64), 1e-5) | {
        "image_size": vision["image_size"],
        "patch_size": vision["patch_size"],
    }
    described: dict[str, Any] = {"model_type": kind, "text_config": text_config, "vision_config": vision_config}
    if kind == CLIP:
        vision_config["projection_dim"] = described["projection_dim"] = dim
    return described | {"architectures": ["CLIPModel" if kind == CLIP else "SiglipModel"], "dtype": "float32"}


def kind_of(config: Mapping[str, Any], names: set[str]) -> str | None:
    """Return which model of transformers holds these towers, given the names of their tensors; None if there is none.

    A logit bias of CLIP towers, which the sigmoid loss adds, is no part of `CLIPModel` and does not count.
    """
    text, vision = config["text_cfg"], config["vision_cfg"]
    if not isinstance(vision.get("layers"), int) or not isinstance(vision.get("image_size"), int):
        return None
    kind = SIGLIP if vision.get("pool_type") == MAP else CLIP
    pooled = vision.get("pool_type", "tok") == "tok" and text.get("pool_type", "argmax") in ("argmax", "eos")
    unknown = config.get("custom_text") or vision.keys() - _VISION_ENTRIES or text.keys() - _TEXT_ENTRIES
    if kind == CLIP and (unknown or not pooled):
        return None
    if not {"width", "heads", "layers", "vocab_size", "context_length"} <= text.keys() or "width" not in vision:
        return None
    expected = {name for rule in rules(kind, config) for name in rule.ours}
    return kind if names - {"logit_bias"} == expected - {"logit_bias"} else None
