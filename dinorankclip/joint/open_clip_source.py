"""`open_clip:…` as a model: a name with a local weights file, or a folder in open_clip's format.

    open_clip:ViT-B-32:laion.safetensors  a local file; .pt and .bin are read without unpickling code
    open_clip:exported/trunk              a folder with open_clip_config.json and its weights
    open_clip:ViT-B-32:random             its shape with random weights from seed 0, for trials

Nothing is ever downloaded.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from dinorankclip.encoders.published import caution_about_weights, refuse_foreign_captions, refuse_other_resizing
from dinorankclip.encoders.trunk import trunk_config
from dinorankclip.joint.folder import OPEN_CLIP_CONFIG
from dinorankclip.joint.model import JointModel
from dinorankclip.joint.undrawn import Undrawn
from dinorankclip.types import ImageSpec, UserError

PREFIX = "open_clip:"
RANDOM = "random"  # in the place of a file
# What open_clip itself looks for in a folder, in its order.
_WEIGHTS_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors", "open_clip_pytorch_model.bin")


def open_clip_model(where: str) -> tuple[JointModel, str]:
    """The trunk alone, and what to say about its weights ("" if they are what was asked for)."""
    name = where.removeprefix(PREFIX)
    if name and (Path(name) / OPEN_CLIP_CONFIG).is_file():
        return _from_folder(Path(name)), ""
    name, _, file = name.partition(":")
    if not name or Path(name).is_dir():
        raise UserError(f"{where}: expected open_clip:NAME:FILE, or a folder with {OPEN_CLIP_CONFIG}")
    config = trunk_config(name)
    refuse_foreign_captions(config, name)
    if file == RANDOM:
        return JointModel(config), "random weights from seed 0, as asked"
    if not Path(file).is_file():
        raise UserError(f"{where}: {_advice(name, file)}")
    return _filled(config, file), caution_about_weights(name)


def _from_folder(folder: Path) -> JointModel:
    path = folder / OPEN_CLIP_CONFIG
    try:
        described = json.loads(path.read_text())
        config = described["model_cfg"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no open_clip configuration: {error!r}") from error
    refuse_foreign_captions(config, str(folder))
    preprocessing = described.get("preprocess_cfg", {})
    refuse_other_resizing(preprocessing, path)
    config = copy.deepcopy(config)
    # CLIP's own mean and std are left out, so that a folder made of one of our models is that model again.
    usual = ImageSpec(0)
    values = {name: list(preprocessing.get(name, getattr(usual, name))) for name in ("mean", "std")}
    if (tuple(values["mean"]), tuple(values["std"])) != (usual.mean, usual.std):
        config["preprocess_cfg"] = values
    for name in _WEIGHTS_FILES:
        if (folder / name).is_file():
            return _filled(config, folder / name)
    raise UserError(f"{folder} has {OPEN_CLIP_CONFIG} but none of {', '.join(_WEIGHTS_FILES)}")


def _filled(config: dict[str, Any], weights: str | Path) -> JointModel:
    with Undrawn():
        model = JointModel(config)
    model.trunk.load_weights(weights)
    return model


def _advice(name: str, file: str) -> str:
    """`file` is no file: nothing was named, or perhaps pretrained weights that open_clip would download."""
    import open_clip

    tags = open_clip.list_pretrained_tags_by_model(name)
    fetching = (
        f"Fetch the file once where there is a network (python -c \"import open_clip; open_clip.create_model('{name}', "
        f"'{file if file in tags else 'TAG'}')\" keeps it in its cache) and give its path: open_clip:{name}:PATH"
    )
    if file in tags:
        return f"'{file}' are weights that open_clip downloads; nothing is downloaded here. {fetching}"
    if file:
        return f"no weights file at {file}; give a local path"
    known = f"nothing is downloaded here. {fetching}. " if tags else f"give a local file: open_clip:{name}:PATH. "
    return f"no weights were named; {known}For random ones from seed 0: open_clip:{name}:{RANDOM}"
