"""What an open_clip model expects of those who feed it: how captions become numbers, and how images are shown."""

from __future__ import annotations

from typing import Any

from dinorankclip.torchvision_ops import declare_missing
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


def views_of_weights(name: str) -> str:
    """Check that a weights file of the model `name` may be shown images as they are here, and return a caution.

    A file does not say how images were shown to it; the weights that open_clip publishes for the name do. If none of
    them was shown images our way, the file is refused; if some were not, the caution names them ("" otherwise).
    """
    usual = ImageSpec(0)
    others = []
    tags = open_clip.list_pretrained_tags_by_model(name)
    for tag in tags:
        told = open_clip.get_pretrained_cfg(name, tag)
        mean, std = (tuple(told.get(key) or getattr(usual, key)) for key in ("mean", "std"))
        resizing = {key: told.get(key) or ours for key, ours in RESIZING.items()}
        if (mean, std, resizing) != (usual.mean, usual.std, RESIZING):
            others.append(tag)
    if not others:
        return ""
    if len(others) == len(tags):
        raise UserError(
            f"all weights of {name} that open_clip publishes were shown images in another way "
            f"({_differing(name, tags[0])}), which a bare file does not say. A folder in open_clip's format says it "
            "(open_clip:FOLDER); of these, other means and standard deviations are supported, other resizing is not"
        )
    return (
        f"images are shown with CLIP's mean and standard deviation, bicubic; the published weights {', '.join(others)} "
        f"of {name} want another way: if yours are these, give a folder in open_clip's format instead"
    )


def _differing(name: str, tag: str) -> str:
    told = open_clip.get_pretrained_cfg(name, tag)
    return ", ".join(f"{key} {told[key]}" for key in ("mean", "std", *RESIZING) if told.get(key))
