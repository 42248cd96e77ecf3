"""What an open_clip model expects of those who use it: how captions become numbers, how images are shown, and how
its published weights were trained."""

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
