"""An export that `load_model` reads: model folder, preprocessing, vocabulary, origin and card in one place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dinorankclip.joint.card import card
from dinorankclip.joint.folder import save_model
from dinorankclip.joint.loaded import LoadedModel
from dinorankclip.joint.provenance import RECORD
from dinorankclip.joint.vocabulary import write_vocabulary
from dinorankclip.types import ImageSpec

PREPROCESSING = "preprocess.json"
CARD = "README.md"
LOADING = """\
from dinorankclip import load_model
model = load_model("{name}")
model.encode_image(model.preprocess("photo.jpg")[None]) @ model.encode_text(["a red mug"]).T"""


def write_model_folder(model: LoadedModel, folder: Path, known: dict[str, Any], name: str, licence: str = "") -> None:
    """Everything that is needed to use the model, into an empty folder that will be called `name`."""
    save_model(model.parts, folder, seal=True)
    write_companions(model, folder, known)
    (folder / CARD).write_text(card(model, known, LOADING.format(name=name), licence=licence))


def write_companions(model: LoadedModel, folder: Path, known: dict[str, Any]) -> None:
    """What every format has beside its weights: preprocessing, vocabulary, origin."""
    (folder / PREPROCESSING).write_text(json.dumps(preprocessing(model.image_spec), indent=2) + "\n")
    write_vocabulary(folder, model.text_spec)
    write_record(folder, known)


def write_record(folder: Path, known: dict[str, Any]) -> None:
    (folder / RECORD).write_text(json.dumps(known, indent=2) + "\n")


def preprocessing(spec: ImageSpec) -> dict[str, Any]:
    """How an image becomes pixels, in words and numbers that another program can follow."""
    return {
        "upright": "EXIF orientation applied; transparency laid on white; RGB",
        "resize": f"the shorter side to {spec.size}, the longer one in proportion, rounded down",
        "crop": f"the centre, {spec.size} by {spec.size}, after resizing",
        "interpolation": "bicubic, antialiased",
        "mean": list(spec.mean),
        "std": list(spec.std),
        "normalise": "(pixel/255 - mean)/std",
    }
