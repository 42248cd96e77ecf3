"""Models small enough to build in a hundredth of a second, and pictures to show them."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from dinorankclip.data.scenes.make import SampleSpec, SetSplit, make_sample
from dinorankclip.models.folder import save_model
from dinorankclip.models.joint import FusionDesign, JointModel, Students
from dinorankclip.models.trunk import trunk_config

CAPTIONS = ["a red mug", "two dogs run over a green field near the sea", "", "a boat"]


def small_config(**vision):
    config = trunk_config("drc-tiny")
    config["embed_dim"] = 32
    config["vision_cfg"] |= {"image_size": 32, "width": 32, "layers": 1, "head_width": 16} | vision
    config["text_cfg"] |= {"width": 32, "heads": 2, "layers": 1}
    return config


def small_model(variant: str | None = None, seed: int = 0) -> JointModel:
    """The trunk alone, or with both students fused by `variant`."""
    if variant is None:
        return JointModel(small_config(), seed)
    return JointModel(small_config(), seed, Students("vit-micro", "vit-micro"), FusionDesign(variant))


def saved(folder: Path, model: JointModel, seal: bool = False) -> Path:
    folder.mkdir(parents=True)
    save_model(model, folder, seal=seal)
    return folder


def photo(number: int = 0, width: int = 128, height: int = 96) -> Image.Image:
    """A drawn scene with photo-like noise, not square."""
    sample = make_sample(SampleSpec(SetSplit("pairs", "val", 1), number, 0, 128))
    scene = Image.open(io.BytesIO(sample["jpg"])).resize((width, height), Image.Resampling.BICUBIC)
    noise = np.random.default_rng(number).normal(0, 4, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(scene) + noise, 0, 255).astype(np.uint8))
