"""Writes what every format of an export has in common: card, preprocessing, vocabulary, provenance, frozen towers.

`Export` holds what a user decided about an export; a writer of a format gets it with the model and an empty folder.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from dinorankclip.data.decode import decode
from dinorankclip.models.aligned import AlignedModel
from dinorankclip.models.card import RECORD, CardHead, card
from dinorankclip.models.folder import TOWERS, save_model, write_own_vocabulary, write_vocabulary
from dinorankclip.models.loaded import LoadedModel, trial_pairs
from dinorankclip.teachers.portable import write_copy
from dinorankclip.types import UserError

PREPROCESSING = "preprocess.json"
CARD = "README.md"
PIECES = "tokenizer.json"
TRIALS = 16  # scenes and captions on which an export is compared with the model
LEAST_COSINE = 0.9999  # between rows of an export and of the model
LOADING_OURS = """\
from dinorankclip import load_model
model = load_model("{name}")
model.encode_image(model.preprocess("photo.jpg")[None]) @ model.encode_text(["a red mug"]).T"""


@dataclass(frozen=True)
class Export:
    """Holds provenance, the name that the folder will have, and the choices of the user."""

    known: dict[str, Any]
    name: str
    licence: str = ""
    towers: str = "inside"  # of aligned models: "inside" the folder, or "named" in it
    precision: str = "fp32"  # of ONNX graphs
    runtime: Path | None = None  # onnxruntime-web, for a page
    images: Path | None = None  # photos that a page shows
    head: CardHead = field(default_factory=CardHead)


def write_model_folder(model: LoadedModel, folder: Path, export: Export) -> list[str]:
    """Write everything needed to use the model into an empty folder."""
    save_model(model.parts, folder, seal=True)
    if isinstance(model.parts, AlignedModel) and export.towers == "inside":
        write_towers(model.parts, folder)
    write_side_files(model, folder, export, LOADING_OURS.format(name=export.name))
    return []


def write_side_files(
    model: LoadedModel, folder: Path, export: Export, loading: str, warning: str = "", head: CardHead | None = None
) -> None:
    """Write preprocessing, vocabulary, provenance and card."""
    text = card(model, export.known, loading, warning, export.licence, head or export.head)
    (folder / CARD).write_text(text, encoding="utf-8")
    if isinstance(model.parts, AlignedModel):
        write_tower_vocabulary(model.parts, folder)
    elif model.parts.vocabulary is not None:
        write_own_vocabulary(folder, model.parts.vocabulary, model.text_spec)
    else:
        write_vocabulary(folder, model.text_spec)
    write_json(folder / RECORD, export.known)
    spec = model.image_spec
    resizing = {
        "resize": f"the shorter side to {spec.size}, the longer one in proportion, rounded down",
        "crop": f"the centre, {spec.size} by {spec.size}, after resizing",
    }
    if spec.resize == "squash":
        resizing = {"resize": f"both sides to {spec.size}", "crop": "none"}
    preprocessing = {  # in words and numbers that another program can follow
        "upright": "EXIF orientation applied; transparency laid on white; RGB",
        **resizing,
        "interpolation": f"{spec.interpolation}, antialiased",
        "mean": list(spec.mean),
        "std": list(spec.std),
        "normalise": "(pixel/255 - mean)/std",
    }
    write_json(folder / PREPROCESSING, preprocessing)


def write_towers(model: AlignedModel, folder: Path) -> None:
    """Copy both frozen towers into the folder of an aligned model, which then needs no other package."""
    for side, tower in (("image", model.image_tower), ("text", model.text_tower)):
        place = folder / TOWERS / side
        place.mkdir(parents=True)
        write_copy(tower.design.spec, tower.teacher, place)


def tower_pieces(model: AlignedModel) -> Path | None:
    """Return the word pieces of a sentence encoder; None for a tower that reads CLIP's byte pairs."""
    source = model.text_tower.teacher.source
    return source / PIECES if source is not None and (source / PIECES).is_file() else None


def write_tower_vocabulary(model: AlignedModel, folder: Path) -> None:
    """Copy the word pieces of a sentence encoder, for programs that make ids for text.onnx."""
    pieces = tower_pieces(model)
    if pieces is not None and not (folder / TOWERS).exists():
        shutil.copyfile(pieces, folder / PIECES)


def write_json(path: Path, value: dict[str, Any] | list[Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def trial_photos(count: int = TRIALS) -> tuple[list[Image.Image], list[str]]:
    """Return drawn scenes as Pillow images, and captions that are neither empty nor cut."""
    pictures, captions = trial_pairs(count + 2)
    return [Image.fromarray(decode(picture)) for picture in pictures[2:]], captions[2:]


def least_cosine(model: LoadedModel, images: Any, texts: Any, photos: Sequence[Any], captions: Sequence[str]) -> float:
    """Return the smallest cosine between rows of an export and the model's own rows of the same photos and captions."""
    ours = torch.stack([model.preprocess(photo) for photo in photos])
    pairs = ((images, model.encode_image(ours)), (texts, model.encode_text(list(captions))))
    least = [
        float(F.cosine_similarity(torch.as_tensor(np.asarray(theirs)).float(), expected.cpu(), dim=-1).min())
        for theirs, expected in pairs
    ]
    return min(least)


def demand_agreement(least: float, what: str) -> str:
    """Return the agreement in words; refuse an export whose rows are not the model's."""
    if not least >= LEAST_COSINE:
        raise UserError(
            f"{what} gives other embeddings than the model (smallest cosine {least:.6f}, at least {LEAST_COSINE} is "
            "demanded): nothing was written. Please report it with the trunk's name"
        )
    return f"{what}: smallest cosine to this program's embeddings {least:.7f}, over {TRIALS} scenes and captions"
