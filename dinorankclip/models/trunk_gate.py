"""Checks the configuration of a model before anything is built from it: the one gate for every way in.

A run, an export, `--init` and an open_clip folder may come from somebody else, and open_clip follows its configuration
wherever it leads: `hf_model_name` loads and may run foreign code, `hf-hub:` names and pretrained towers reach for the
network. Here a configuration may hold known entries alone, each with a plain value in its range. Names of networks must
be those of an installed timm. Weights come from the folder itself, never from elsewhere.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from dinorankclip.json_shape import (
    ANY,
    FLAG,
    NONE,
    TEXT,
    Shape,
    either,
    entries,
    fault,
    kind,
    listed,
    number,
    whole,
    word,
)
from dinorankclip.models.weights_file import tensor_shapes
from dinorankclip.types import UserError

_SIZE = whole(1, 16384)  # widths, image sides
_LAYERS = whole(1, 512)
_RATIO = number(0.001, 64)
_NUMBER = number(-1e6, 1e6)
_PLAIN_NAME = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)?")  # no scheme such as hf-hub:, no path


def _is_timm_name(name: Any) -> bool:
    if not isinstance(name, str) or not _PLAIN_NAME.fullmatch(name):
        return False
    import timm

    return bool(timm.is_model(name))


_BLOCKS = {
    "mlp_ratio": _RATIO,
    "ls_init_value": either(_NUMBER, NONE),
    "final_ln_after_pool": FLAG,
    "output_tokens": FLAG,
    "act_kwargs": either(entries({"approximate": word("none", "tanh")}, closed=True), NONE),
    "norm_kwargs": either(entries({"eps": number(0, 1)}, closed=True), NONE),
    "block_type": either(word("default", "custom"), NONE),
    **dict.fromkeys(
        ("qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner", "scale_attn", "scale_fc"), FLAG
    ),
}
_VISION = entries(
    {
        **_BLOCKS,
        "layers": either(_LAYERS, listed(_LAYERS, 4, 4)),
        "width": _SIZE,
        "head_width": _SIZE,
        "patch_size": either(_SIZE, NONE),
        "image_size": either(_SIZE, listed(_SIZE, 2, 2)),
        "patch_dropout": number(0, 0.999),
        "attentional_pool": either(FLAG, word("parallel", "cascade")),
        "attn_pooler_queries": _SIZE,
        "attn_pooler_heads": _SIZE,
        "no_ln_pre": FLAG,
        "pos_embed_type": word("learnable", "sin_cos_2d"),
        "pool_type": word("tok", "avg", "none", "map"),  # map: map_tower.py
        "timm_model_name": either(kind("the name of a network of the installed timm", _is_timm_name), NONE),
        "timm_model_pretrained": FLAG,  # never followed: `_build_towers` sets it to false
        "timm_pool": TEXT,
        "timm_proj": either(word("linear", "mlp", "none", ""), NONE),
        "timm_proj_bias": FLAG,
        "timm_drop": number(0, 1),
        "timm_drop_path": either(number(0, 1), NONE),
    },
    closed=True,
)
_TEXT = entries(
    {
        **_BLOCKS,
        "context_length": _SIZE,
        "vocab_size": whole(1, 1 << 21),
        "width": _SIZE,
        "heads": _SIZE,
        "layers": _LAYERS,
        "embed_cls": FLAG,
        "pad_id": whole(0, 1 << 21),
        "eos_id": whole(0, 1 << 21),
        "no_causal_mask": FLAG,
        "pool_type": word("first", "last", "argmax", "eos", "none"),
        "proj_bias": FLAG,
        "proj_type": either(word("linear", "none"), NONE),
    },
    closed=True,
)
PIXELS, STD = listed(_NUMBER, 3, 3), listed(number(1e-6, 1e6), 3, 3)
TRUNK = entries(
    {
        "embed_dim": _SIZE,
        "vision_cfg": _VISION,
        "text_cfg": _TEXT,
        "quick_gelu": FLAG,
        "custom_text": FLAG,
        "init_logit_scale": _NUMBER,
        "init_logit_bias": either(_NUMBER, NONE),
        "nonscalar_logit_scale": FLAG,
        "multimodal_cfg": ANY,  # a captioning head, which is never built here
        "preprocess_cfg": entries(
            {
                "mean": PIXELS,
                "std": STD,
                "resize_mode": word("shortest", "squash"),
                "interpolation": word("bicubic", "bilinear"),
            },
            closed=True,
        ),
    },
    required=("embed_dim", "vision_cfg", "text_cfg"),
    closed=True,
)
VOCABULARY = entries(
    {"sha256": TEXT, "end": whole(0, 1 << 21), "padding": whole(0, 1 << 21), "full": FLAG},
    required=("sha256", "end", "padding"),
    closed=True,
)
STUDENTS = entries({"image": either(TEXT, NONE), "text": either(TEXT, NONE)}, closed=True)
FUSION = entries(
    {
        "variant": TEXT,
        "gate": FLAG,
        "start": TEXT,
        "gate_bias": either(_NUMBER, NONE),
        "source": word("student", "trunk"),
        "branches": TEXT,
    },
    closed=True,
)
_TOWER = entries(
    {"spec": TEXT, "weights_hash": TEXT, "size": either(_SIZE, NONE)}, required=("spec", "weights_hash"), closed=True
)
_WIDTH = whole(0, 65536)
ALIGNED = entries(
    {
        "image": _TOWER,
        "text": _TOWER,
        "head_dim": _WIDTH,
        "hidden": _WIDTH,
        "start": word("random", "names"),
        "head_weight": _NUMBER,
        "fusion": FUSION,
        "fused": TEXT,
        "token_width": _WIDTH,
        "text_places": _WIDTH,
        "biased": FLAG,
    },
    required=("image", "text"),
    closed=True,
)
PLACES = entries({"image": TEXT, "text": TEXT}, required=("image", "text"), closed=True)


def check_described(value: Any, shape: Shape, where: str) -> None:
    """Refuse a description of a model, or of a part of it, that differs from its shape; `where` begins the message."""
    if text := fault(value, shape):
        raise UserError(f"{where} describes no model that can be built: {text}")


def check_trunk(config: Any, where: str = "the trunk's configuration") -> None:
    """Refuse a trunk's configuration with entries or values that are not known here."""
    text_config = config.get("text_cfg") if isinstance(config, dict) else None
    if isinstance(text_config, dict) and text_config.get("hf_model_name"):
        raise UserError(
            f"{where} names a text tower outside of this folder (hf_model_name): foreign models and their code are "
            "never loaded. Only models with CLIP's own text tower can be used here"
        )
    check_described(config, TRUNK, where)


def check_size(config: dict[str, Any], weights: Path, where: str) -> None:
    """Refuse a checked configuration of more numbers than its weights file holds, before memory is taken for them."""
    if weights.suffix == ".safetensors":
        there = sum(math.prod(shape) for shape in tensor_shapes(weights).values())
    else:
        there = weights.stat().st_size  # a number takes at least a byte
    if (expected := least_numbers(config)) > there:
        raise UserError(
            f"{where} describes a model of at least {expected:,} numbers, but {weights} holds {there:,}: they do not "
            "belong together; copy the whole folder again"
        )


def least_numbers(config: dict[str, Any]) -> int:
    """Return a lower bound of a trunk's parameters: attention and MLP of each layer, and the token table.

    A layer of width W has 4·W² weights of attention and 2·r·W² of the MLP. Networks of timm and ResNets count nothing.
    """
    vision, text = config["vision_cfg"], config["text_cfg"]
    least = text.get("vocab_size", 49408) * text.get("width", 512)
    towers = [(text, 512)]
    if not vision.get("timm_model_name") and isinstance(vision.get("layers", 12), int):
        towers.append((vision, 768))
    for tower, usual in towers:
        layer = int((4 + 2 * tower.get("mlp_ratio", 4.0)) * tower.get("width", usual) ** 2)
        least += tower.get("layers", 12) * layer
    return least
