"""The trunk alone in open_clip's folder format: `open_clip.create_model_and_transforms("local-dir:FOLDER")`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from dinorankclip.encoders.weights_file import write_weights
from dinorankclip.joint.card import card
from dinorankclip.joint.export_folder import CARD, write_companions
from dinorankclip.joint.folder import OPEN_CLIP_CONFIG
from dinorankclip.joint.loaded import LoadedModel
from dinorankclip.joint.model import JointModel
from dinorankclip.joint.trial_pairs import trial_pairs
from dinorankclip.joint.undrawn import Undrawn

WEIGHTS = "open_clip_model.safetensors"  # the name that open_clip prefers
TRIALS = 32
LOADING = """\
import open_clip
model, _, preprocess = open_clip.create_model_and_transforms("local-dir:{name}")
tokenizer = open_clip.get_tokenizer("local-dir:{name}")"""
# Not for open_clip's constructors: preprocess_cfg has a place of its own, a captioning head is never built here.
_NOT_OF_THE_TOWERS = ("preprocess_cfg", "multimodal_cfg")


def write_open_clip_folder(
    model: LoadedModel, folder: Path, known: dict[str, Any], name: str, licence: str = ""
) -> str:
    """Into an empty folder that will be called `name`. Returns what the trunk alone leaves out ("" if nothing)."""
    warning = what_is_left_out(model)
    if warning:
        known = known | {"scores": None, "set_scores": None}  # they are of the whole model
    model = _trunk_alone(model)
    trunk, spec = model.parts.trunk, model.image_spec
    config = {
        "model_cfg": {key: value for key, value in trunk.config.items() if key not in _NOT_OF_THE_TOWERS},
        "preprocess_cfg": {
            "mean": list(spec.mean),
            "std": list(spec.std),
            "interpolation": "bicubic",
            "resize_mode": "shortest",
        },
    }
    (folder / OPEN_CLIP_CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    write_weights(trunk.towers.state_dict(), folder / WEIGHTS)
    write_companions(model, folder, known)
    (folder / CARD).write_text(card(model, known, LOADING.format(name=name), warning, licence))
    return warning


def what_is_left_out(model: LoadedModel) -> str:
    """For a fused model: how far its embeddings are from the trunk's own, in words."""
    parts = model.parts
    if parts.image_fusion is None and parts.text_fusion is None:
        return ""
    pictures, captions = trial_pairs(TRIALS)
    seen = model.look(torch.stack([model.preprocess(picture) for picture in pictures]))
    read = model.read(captions)
    turns = [
        f"{side} embeddings by {float(angle.mean()):.1f}° on average ({float(angle.max()):.1f}° at most)"
        for side, angle in (("image", seen.angle), ("text", read.angle))
        if angle is not None
    ]
    return (
        f"This is the trunk alone, not the whole model: students and fusion, which are left out, turn "
        f"{' and '.join(turns)}, measured on {TRIALS} built-in scenes. Scores of the whole model do not hold for it."
    )


def _trunk_alone(model: LoadedModel) -> LoadedModel:
    with Undrawn():
        parts = JointModel(model.parts.trunk.config)
    parts.trunk = model.parts.trunk
    return LoadedModel(parts, model.name, model.placement)
