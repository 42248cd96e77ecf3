"""What an open_clip model expects of those who use it: how captions become numbers, how images are shown, and how
its published weights were trained.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from dinorankclip.device import declare_missing
from dinorankclip.models.folder import OPEN_CLIP_CONFIG
from dinorankclip.models.joint import JointModel
from dinorankclip.models.trunk import trunk_config
from dinorankclip.models.weights_file import Undrawn
from dinorankclip.types import ImageSpec, UserError

declare_missing()
import open_clip  # noqa: E402

VOCABULARY = 49408  # of CLIP's byte-pair encoding, the only one we read captions with
RESIZING = {"resize_mode": "shortest", "interpolation": "bicubic"}  # how images are shown here


def refuse_foreign_captions(config: dict[str, Any], name: str) -> None:
    """Captions are read with CLIP's vocabulary, and nothing may be fetched while a model is built."""
    text = config.get("text_cfg", {})
    for key in ("hf_model_name", "hf_tokenizer_name"):
        if text.get(key):
            raise UserError(
                f"{name} reads captions with a tokenizer of its own ({text[key]}); only models with CLIP's vocabulary "
                "can be used here"
            )
    if text.get("tokenizer_kwargs"):
        raise UserError(f"{name} cleans captions in a way of its own ({text['tokenizer_kwargs']}), unknown here")
    if text.get("vocab_size", VOCABULARY) != VOCABULARY:
        raise UserError(f"{name} has a vocabulary of {text['vocab_size']}; only CLIP's, of {VOCABULARY}, is known here")
    if config.get("vision_cfg", {}).get("timm_model_pretrained"):
        config["vision_cfg"]["timm_model_pretrained"] = False  # timm would go and fetch


def refuse_other_resizing(preprocessing: dict[str, Any], where: object) -> None:
    for key, ours in RESIZING.items():
        theirs = preprocessing.get(key) or ours
        if theirs != ours:
            raise UserError(f"{where}: {key} '{theirs}' is not supported, images are shown by '{ours}' here")


def caution_about_weights(name: str) -> str:
    """What a file with weights of the model `name` may want otherwise than we do it ("" if nothing is known).

    A file says neither how images were shown to it nor which activation it was trained with; the weights that
    open_clip publishes for the name do.
    """
    tags = {tag: open_clip.get_pretrained_cfg(name, tag) for tag in open_clip.list_pretrained_tags_by_model(name)}
    return "; ".join(filter(None, (_about_views(name, tags), _about_activation(name, tags))))


def _about_views(name: str, tags: dict[str, dict[str, Any]]) -> str:
    """Those that were not shown images our way; if that is all of them, a file is refused."""
    usual = ImageSpec(0)
    others = []
    for tag, told in tags.items():
        mean, std = (tuple(told.get(key) or getattr(usual, key)) for key in ("mean", "std"))
        resizing = {key: told.get(key) or ours for key, ours in RESIZING.items()}
        if (mean, std, resizing) != (usual.mean, usual.std, RESIZING):
            others.append(tag)
    if not others:
        return ""
    if len(others) == len(tags):
        raise UserError(
            f"all weights of {name} that open_clip publishes were shown images in another way "
            f"({_differing(tags[others[0]])}), which a bare file does not say. A folder in open_clip's format says it "
            "(open_clip:FOLDER); of these, other means and standard deviations are supported, other resizing is not"
        )
    return (
        f"images are shown with CLIP's mean and standard deviation, bicubic; the published weights {', '.join(others)} "
        f"of {name} want another way: if yours are these, give a folder in open_clip's format instead"
    )


def _about_activation(name: str, tags: dict[str, dict[str, Any]]) -> str:
    """QuickGELU has no weights, so that a file of the other activation fits, and gives embeddings that are wrong."""
    others = [tag for tag, told in tags.items() if told.get("quick_gelu")]
    if not others or open_clip.get_model_config(name).get("quick_gelu"):
        return ""
    return (
        f"{name} computes with GELU; the published weights {', '.join(others)} were trained with QuickGELU and are "
        f"wrong without it: if yours are these, take {name}-quickgelu as the name"
    )


def _differing(told: dict[str, Any]) -> str:
    return ", ".join(f"{key} {told[key]}" for key in ("mean", "std", *RESIZING) if told.get(key))


# -------- open_clip_source
# `open_clip:…` as a model: a name with a local weights file, or a folder in open_clip's format.
#
#     open_clip:ViT-B-32:laion.safetensors  a local file; .pt and .bin are read without unpickling code
#     open_clip:exported/trunk              a folder with open_clip_config.json and its weights
#     open_clip:ViT-B-32:random             its shape with random weights from seed 0, for trials
#
# Nothing is ever downloaded.

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
