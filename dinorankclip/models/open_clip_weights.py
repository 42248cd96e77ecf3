"""Opens `open_clip:…` as a model, and checks that it reads captions and images as this package does.

    open_clip:ViT-B-32:laion.safetensors  a local file; .pt and .bin are read without unpickling code
    open_clip:ViT-B-32:openai             weights that open_clip publishes, by their tag, from the local hub cache
    open_clip:exported/trunk              a folder with open_clip_config.json and its weights
    open_clip:ViT-B-32:random             its shape with random weights from seed 0, for trials

Nothing is downloaded, except published weights after `dinorankclip --online`. open_clip's record of published weights
says how images were shown to them and whether they compute with QuickGELU; here the record decides, whatever the name.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import open_clip
from open_clip.constants import HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME

from dinorankclip import hub
from dinorankclip.checked_files import read_object
from dinorankclip.checksums import check_folder
from dinorankclip.json_shape import NONE, OBJECT, TEXT, either, entries
from dinorankclip.models.folder import OPEN_CLIP_CONFIG
from dinorankclip.models.joint import JointModel
from dinorankclip.models.trunk import trunk_config
from dinorankclip.models.trunk_gate import PIXELS, STD, check_size, check_trunk
from dinorankclip.models.weights_file import skip_init
from dinorankclip.types import ImageSpec, UserError

PREFIX = "open_clip:"
RANDOM = "random"  # takes the place of a file name
VOCABULARY = 49408  # size of CLIP's byte-pair vocabulary, the only supported vocabulary
RESIZING = {"interpolation": "bicubic", "resize_mode": "shortest"}  # how images are resized unless a model says more
SHOWN = {"interpolation": ("bicubic", "bilinear"), "resize_mode": ("shortest", "squash")}
_FOLDER_CONFIG = entries({
    "model_cfg": OBJECT,
    "preprocess_cfg": either(
        entries({
            "mean": PIXELS, "std": STD, "interpolation": either(TEXT, NONE), "resize_mode": either(TEXT, NONE),
        }),
        NONE,
    ),
})  # fmt: skip
# The names that open_clip itself looks for in a folder, in its order.
_WEIGHTS_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors", "open_clip_pytorch_model.bin")


def open_clip_model(where: str) -> tuple[JointModel, str]:
    """Return the trunk alone, and a remark about its weights ("" if there is nothing to say)."""
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
        if file and (record := open_clip.get_pretrained_cfg(name, file)):
            return _published(config, record, where), ""
        raise UserError(f"{where}: {_advice(name, file)}")
    return _load(config, file), weights_caution(name)


def _published(config: dict[str, Any], record: dict[str, Any], where: str) -> JointModel:
    """Load weights that open_clip publishes: from the local cache, or after `--online` from their place."""
    _, name, tag = where.split(":", 2)
    weights = _cached_weights(record)
    if weights is None:
        raise UserError(f"{where}: {_advice(name, tag)}")
    if record.get("quick_gelu"):
        config["quick_gelu"] = True
    _set_preprocessing(config, record, f"the weights {tag} of {name}")
    return _load(config, weights)


def _cached_weights(record: dict[str, Any]) -> Path | None:
    """Return the file of published weights; None if no local cache has it and the user did not ask for a download."""
    if place := record.get("hf_hub"):
        repository, _, file = place.rpartition("/")
        names = (Path(file).with_suffix(".safetensors").name, file) if file else (HF_SAFE_WEIGHTS_NAME, HF_WEIGHTS_NAME)
        return hub.cached_file(repository, tuple(dict.fromkeys(names)))
    url = record.get("url", "")
    local = Path("~/.cache/clip").expanduser() / Path(url).name  # open_clip's own place
    if local.is_file():
        return local
    return Path(open_clip.pretrained.download_pretrained_from_url(url)) if hub.online() and url else None


def _set_preprocessing(config: dict[str, Any], shown: dict[str, Any], where: str) -> None:
    """Put the way images are shown into a trunk's configuration; CLIP's own is left out, so that a folder made of one
    of our models is that model again."""
    usual = ImageSpec(0)
    ours = {"mean": list(usual.mean), "std": list(usual.std), **RESIZING}
    values = {name: shown.get(name) or value for name, value in ours.items()}
    values |= {name: list(values[name]) for name in ("mean", "std")}
    for key, known in SHOWN.items():
        if values[key] not in known:
            raise UserError(f"{where}: {key} '{values[key]}' is not supported; there are {' and '.join(known)}")
    if values != ours:
        config["preprocess_cfg"] = {name: value for name, value in values.items() if value != RESIZING.get(name)}


def _from_folder(folder: Path) -> JointModel:
    path = folder / OPEN_CLIP_CONFIG
    described = read_object(path, _FOLDER_CONFIG)
    check_folder(folder, skip=("README.md",))
    if "model_cfg" not in described:
        raise UserError(f"{path} is no open_clip configuration: it has no model_cfg")
    config = copy.deepcopy(described["model_cfg"])
    refuse_foreign_captions(config, str(folder))
    check_trunk(config, str(path))
    _set_preprocessing(config, described.get("preprocess_cfg") or {}, str(path))
    for name in _WEIGHTS_FILES:
        if (folder / name).is_file():
            check_size(config, folder / name, str(path))
            return _load(config, folder / name)
    raise UserError(f"{folder} has {OPEN_CLIP_CONFIG} but none of {', '.join(_WEIGHTS_FILES)}")


def _load(config: dict[str, Any], weights: str | Path) -> JointModel:
    with skip_init():
        model = JointModel(config)
    model.trunk.load_weights(weights)
    return model


def _advice(name: str, file: str) -> str:
    """Give advice on a `file` that does not exist; its name may be a tag of weights that open_clip would download."""
    tags = open_clip.list_pretrained_tags_by_model(name)
    fetching = (
        "Fetch them once where there is a network: dinorankclip --online VERB … "
        f"open_clip:{name}:{file if file in tags else 'TAG'} keeps them in the hub cache. A local file: "
        f"open_clip:{name}:PATH"
    )
    if file in tags:
        return (
            f"'{file}' are published weights, which the local hub cache does not have; nothing is downloaded unless "
            f"you ask. {fetching}"
        )
    if file:
        return f"no weights file at {file}; give a local path"
    known = (
        f"nothing is downloaded unless you ask. {fetching}. " if tags else f"give a local file: open_clip:{name}:PATH. "
    )
    return f"no weights were named; {known}For random ones from seed 0: open_clip:{name}:{RANDOM}"


def refuse_foreign_captions(config: dict[str, Any], name: str) -> None:
    """Refuse a model that reads captions otherwise than by CLIP's vocabulary; keep timm from downloading weights."""
    text, vision = (part if isinstance(part := config.get(name), dict) else {} for name in ("text_cfg", "vision_cfg"))
    for key in ("hf_model_name", "hf_tokenizer_name"):
        if text.get(key):
            raise UserError(
                f"{name} reads captions with a tokenizer of its own ({text[key]}); only models with CLIP's vocabulary "
                "can be used here. CLIP and SigLIP models of transformers bring theirs: transformers:FOLDER"
            )
    if text.get("tokenizer_kwargs"):
        raise UserError(f"{name} cleans captions in a way of its own ({text['tokenizer_kwargs']}), unknown here")
    if text.get("vocab_size", VOCABULARY) != VOCABULARY:
        raise UserError(f"{name} has a vocabulary of {text['vocab_size']}; only CLIP's, of {VOCABULARY}, is known here")
    if vision.get("timm_model_pretrained"):
        vision["timm_model_pretrained"] = False


def weights_caution(name: str) -> str:
    """Return a caution for a file with weights of the model `name`; "" if no difference to our way is known.

    A bare file tells neither how images were shown to it nor which activation it was trained with; open_clip's records
    of the weights that it publishes under the name do.
    """
    published = {tag: open_clip.get_pretrained_cfg(name, tag) for tag in open_clip.list_pretrained_tags_by_model(name)}
    cautions = (_image_caution(name, published), _activation_caution(name, published))
    return "; ".join(caution for caution in cautions if caution)


def _image_caution(name: str, published: dict[str, dict[str, Any]]) -> str:
    """Name published weights that were shown images another way; refuse the file if all were."""
    usual = ImageSpec(0)
    ours = {"mean": usual.mean, "std": usual.std, **RESIZING}

    def shown(record: dict[str, Any]) -> dict[str, Any]:
        values = {key: record.get(key) or value for key, value in ours.items()}
        return values | {key: tuple(values[key]) for key in ("mean", "std")}

    others = [tag for tag, record in published.items() if shown(record) != ours]
    if not others:
        return ""
    if len(others) == len(published):
        first = published[others[0]]
        differing = ", ".join(f"{key} {first[key]}" for key in ours if first.get(key))
        raise UserError(
            f"all weights of {name} that open_clip publishes were shown images in another way "
            f"({differing}), which a bare file does not say. A folder in open_clip's format says it "
            "(open_clip:FOLDER); of these, other means and standard deviations are supported, other resizing is not"
        )
    return (
        f"images are shown with CLIP's mean and standard deviation, bicubic; the published weights {', '.join(others)} "
        f"of {name} want another way: if yours are these, give a folder in open_clip's format instead"
    )


def _activation_caution(name: str, published: dict[str, dict[str, Any]]) -> str:
    """Return a caution on QuickGELU, which has no weights: files of the other activation load and give wrong rows."""
    others = [tag for tag, record in published.items() if record.get("quick_gelu")]
    if not others or open_clip.get_model_config(name).get("quick_gelu"):
        return ""
    return (
        f"{name} computes with GELU; the published weights {', '.join(others)} were trained with QuickGELU and are "
        f"wrong without it: if yours are these, take {name}-quickgelu as the name"
    )
