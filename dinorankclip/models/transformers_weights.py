"""Opens `transformers:…` as a model: a CLIP or SigLIP folder of the library transformers, or a name of the hub.

    transformers:downloads/clip-vit-base-patch32     a folder with config.json, model.safetensors and tokenizer.json
    transformers:openai/clip-vit-base-patch32        the same from the local hub cache, or after --online from the hub

The library itself is not used, and no code of the folder is run: config.json passes a schema, weights are safetensors
and become those of open_clip towers (transformers_layout.py), the vocabulary is a file of the library tokenizers. What
comes out is a model like any other of this package. Its vocabulary stays with it unless it is CLIP's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from dinorankclip import hub
from dinorankclip.checked_files import file_text, read_object
from dinorankclip.data.own_vocabulary import Vocabulary, opened
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.json_shape import FLAG, NONE, NUMBER, OBJECT, TEXT, either, entries, fault, named, number, whole, word
from dinorankclip.models.joint import JointModel
from dinorankclip.models.transformers_layout import CLIP, SIGLIP, open_clip_config, to_ours
from dinorankclip.models.trunk_gate import PIXELS, STD, check_size, check_trunk
from dinorankclip.models.weights_file import read_weights, skip_init
from dinorankclip.types import ImageSpec, TextSpec, UserError

PREFIX = "transformers:"
CONFIG, WEIGHTS, INDEX, PIECES = "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"
_FETCHED = ("*.json", "*.safetensors", "merges.txt")  # never code, never pickles
_SIZE = whole(1, 16384)
_TOWER = {
    "hidden_size": _SIZE,
    "intermediate_size": whole(1, 1 << 20),
    "num_hidden_layers": whole(1, 512),
    "num_attention_heads": _SIZE,
    "hidden_act": word("quick_gelu", "gelu", "gelu_pytorch_tanh"),
    "layer_norm_eps": number(0, 1),
}
_IDS = either(whole(0, 1 << 21), NONE)
_TEXT_TOWER = {
    **_TOWER, "vocab_size": whole(1, 1 << 21), "max_position_embeddings": _SIZE, "projection_size": either(_SIZE, NONE),
    "eos_token_id": _IDS, "pad_token_id": _IDS,
}  # fmt: skip
_IMAGE_TOWER = {**_TOWER, "image_size": _SIZE, "patch_size": _SIZE, "num_channels": whole(3, 3)}
_CONFIG = entries({
    "model_type": TEXT, "projection_dim": _SIZE,
    **{f"{side}_config{end}": either(OBJECT, NONE) for side in ("text", "vision") for end in ("", "_dict")},
})  # fmt: skip
# What transformers means where a configuration says nothing.
_USUAL: dict[str, dict[str, dict[str, Any]]] = {
    CLIP: {
        "text": {
            "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8,
            "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "vocab_size": 49408, "max_position_embeddings": 77,
            "eos_token_id": 49407, "pad_token_id": 1,
        },
        "vision": {
            "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
            "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "image_size": 224, "patch_size": 32,
        },
    },
    SIGLIP: {
        "text": {
            "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
            "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "vocab_size": 32000,
            "max_position_embeddings": 64, "eos_token_id": 49407, "pad_token_id": 1,
        },
        "vision": {
            "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
            "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "image_size": 224, "patch_size": 16,
        },
    },
}  # fmt: skip
_SIDES = either(_SIZE, named(_SIZE))
_SHOWN = entries({
    "size": _SIDES, "crop_size": either(_SIDES, NONE), "image_mean": PIXELS, "image_std": STD, "resample": whole(0, 5),
    "do_center_crop": either(FLAG, NONE), "rescale_factor": NUMBER,
})  # fmt: skip
_FILTERS = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
_TOKENS = entries(dict.fromkeys(("eos_token", "pad_token"), either(TEXT, entries({"content": TEXT}), NONE)))
_CLIP_WORDS = 49406  # ids of CLIP's vocabulary below the ids of start and end


def transformers_model(where: str) -> JointModel:
    """Return the model that a user calls `transformers:…`, as towers of open_clip."""
    folder = _folder(where)
    described = read_object(folder / CONFIG, _CONFIG)
    kind = described.get("model_type")
    if kind not in _USUAL:
        raise UserError(f"{folder / CONFIG} is a model of the kind {kind!r}; only {CLIP} and {SIGLIP} are read here")
    if "auto_map" in described:
        raise UserError(f"{folder / CONFIG} names code of its own (auto_map), which is never run here")
    text, vision = (_tower(folder, described, kind, side) for side in ("text", "vision"))
    if (text["hidden_act"] == "quick_gelu") != (vision["hidden_act"] == "quick_gelu"):
        raise UserError(f"{folder / CONFIG}: QuickGELU in one tower alone is not supported")
    for tower in (text, vision):
        if tower["hidden_size"] % tower["num_attention_heads"]:
            raise UserError(f"{folder / CONFIG}: {tower['num_attention_heads']} heads do not divide the width")
    dim = described.get("projection_dim", 512) if kind == CLIP else vision["hidden_size"]
    if kind == SIGLIP and (text.get("projection_size") or text["hidden_size"]) != dim:
        raise UserError(f"{folder / CONFIG}: captions and images end in different widths")
    config = open_clip_config(kind, text, vision, dim)
    if shown := _preprocessing(folder, kind, vision["image_size"]):
        config["preprocess_cfg"] = shown
    check_trunk(config, str(folder / CONFIG))
    vocabulary = _vocabulary(folder, kind, text)
    tensors = _tensors(folder, config)
    with skip_init():
        model = JointModel(config, vocabulary=vocabulary)
    try:
        model.trunk.towers.load_state_dict(to_ours(kind, config, tensors))
    except (KeyError, RuntimeError) as error:
        missing = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error).splitlines()[-1].strip()
        raise UserError(f"{folder}: the weights do not fit {CONFIG}: {missing}") from error
    return model


def _folder(where: str) -> Path:
    name = where.removeprefix(PREFIX)
    folder = Path(name).expanduser()
    if name and folder.is_dir():
        if not (folder / CONFIG).is_file():
            raise UserError(f"{where}: {folder} has no {CONFIG} of transformers")
        return folder
    if not hub.is_repository(name):
        raise UserError(f"{where}: expected a folder with {CONFIG}, or a name of the hub such as owner/name")
    found = hub.cached_folder(name, _FETCHED)
    if found is None or not (found / CONFIG).is_file():
        raise UserError(
            f"{where}: no such folder, and the local hub cache has no model of that name; fetch it once with "
            f"'dinorankclip --online …', or 'hf download {name}' where there is a network"
        )
    return found


def _tower(folder: Path, described: dict[str, Any], kind: str, side: str) -> dict[str, Any]:
    """Return the checked entries of a tower: transformers' defaults, `…_config`, and the older `…_config_dict`."""
    given = {**(described.get(f"{side}_config") or {}), **(described.get(f"{side}_config_dict") or {})}
    if isinstance(ends := given.get("eos_token_id"), list) and ends:
        given["eos_token_id"] = ends[0]
    shape = _TEXT_TOWER if side == "text" else _IMAGE_TOWER
    if wrong := fault(given, entries(shape)):
        raise UserError(f"{folder / CONFIG}, {side}_config, describes no model that can be built: {wrong}")
    return _USUAL[kind][side] | {name: value for name, value in given.items() if name in shape and value is not None}


def _preprocessing(folder: Path, kind: str, size: int) -> dict[str, Any]:
    """Return how images are shown, as `preprocess_cfg`; empty if that is CLIP's own way."""
    half = [0.5, 0.5, 0.5]
    shown: dict[str, Any] = {"size": {"height": size, "width": size}, "image_mean": half, "image_std": half}
    if kind == CLIP:
        usual = ImageSpec(size)
        shown = {"size": {"shortest_edge": size}, "image_mean": list(usual.mean), "image_std": list(usual.std)}
    for path, inner in (
        (folder / "preprocessor_config.json", ""),
        (folder / "processor_config.json", "image_processor"),
    ):
        if path.is_file():
            given = read_object(path)
            given = given.get(inner, {}) if inner else given
            if wrong := fault(given, _SHOWN):
                raise UserError(f"{path} is damaged: {wrong}")
            shown |= {name: value for name, value in given.items() if value is not None}
            break
    sides = shown["size"] if isinstance(shown["size"], dict) else {"shortest_edge": shown["size"]}
    crop = shown.get("crop_size") or size
    crops = {crop} if isinstance(crop, int) else set(crop.values())
    squash = sides.keys() == {"height", "width"}
    cut = not squash and shown.get("do_center_crop", True)
    if set(sides.values()) != {size} or (cut and crops != {size}) or not (squash or cut):
        raise UserError(
            f"{folder}: images are shown as size {shown['size']}, crop {crop}; supported are the short side or both "
            f"sides resized to {size}, the image size of the tower"
        )
    if shown.get("resample", 3) not in _FILTERS or abs(shown.get("rescale_factor", 1 / 255) - 1 / 255) > 1e-6:
        raise UserError(f"{folder}: only bicubic and bilinear resizing of pixels divided by 255 is supported")
    spec = {
        "mean": list(shown["image_mean"]),
        "std": list(shown["image_std"]),
        "resize_mode": "squash" if squash else "shortest",
        "interpolation": _FILTERS[shown.get("resample", 3)],
    }
    usual = ImageSpec(size)
    same = {"mean": list(usual.mean), "std": list(usual.std), "resize_mode": "shortest", "interpolation": "bicubic"}
    return {} if spec == same else spec


def _vocabulary(folder: Path, kind: str, text: dict[str, Any]) -> Vocabulary | None:
    """Return the vocabulary of a folder; None if it is CLIP's own."""
    path = folder / PIECES
    if not path.is_file():
        if kind == CLIP and (folder / "vocab.json").is_file() and _is_clips(read_object(folder / "vocab.json")):
            return None
        raise UserError(
            f"{folder} has no {PIECES}: save its tokenizer with a current transformers (use_fast=True), which writes it"
        )
    content = file_text(path)
    pieces = opened(content, str(path))
    if kind == CLIP and text["vocab_size"] == _CLIP_WORDS + 2 and _is_clips(pieces.get_vocab()):
        return None
    if pieces.get_vocab_size() > text["vocab_size"]:
        raise UserError(f"{path} has {pieces.get_vocab_size()} ids, the text tower knows {text['vocab_size']}")
    named_tokens = {}
    if (folder / "tokenizer_config.json").is_file():
        named_tokens = read_object(folder / "tokenizer_config.json", _TOKENS)

    def number_of(name: str, other: int | None) -> int:
        token = named_tokens.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        found = pieces.token_to_id(token) if isinstance(token, str) else other
        if found is None or found >= text["vocab_size"]:
            raise UserError(f"{folder}: the id of {name} is unknown; tokenizer_config.json must name the token")
        return found

    end = number_of("eos_token", pieces.token_to_id("</s>") if kind == SIGLIP else text["eos_token_id"])
    return Vocabulary(content, end, number_of("pad_token", text["pad_token_id"]), full=kind == SIGLIP)


def _is_clips(ids: dict[str, Any]) -> bool:
    """Return whether a vocabulary is CLIP's own; start and end have other names there."""
    ours = Tokenizer(TextSpec()).load()._bpe.encoder
    return all(ids.get(token) == number for token, number in ours.items() if number < _CLIP_WORDS)


def _tensors(folder: Path, config: dict[str, Any]) -> dict[str, Tensor]:
    """Read the weights: one file, or the files that an index lists."""
    if (folder / WEIGHTS).is_file():
        check_size(config, folder / WEIGHTS, str(folder / CONFIG))
        return read_weights(folder / WEIGHTS)
    if not (folder / INDEX).is_file():
        raise UserError(
            f"{folder} has no {WEIGHTS}: other files may hold code and are not read; save it again with transformers"
        )
    files = sorted(
        set(read_object(folder / INDEX, entries({"weight_map": named(TEXT)})).get("weight_map", {}).values())
    )
    tensors: dict[str, Tensor] = {}
    for name in files:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise UserError(f"{folder / INDEX} names {name!r}, which is no file of the folder")
        tensors |= read_weights(folder / name)
    return tensors
