"""Saves and loads model folders: `model.json` (the design) and `model.safetensors` (the weights), without pickle.

The folder of an aligned model (format 2) names its frozen towers, or holds them in `towers/`.

A checkpoint of a run is such a folder with the training state beside it. An exported folder has a card, the
preprocessing and the vocabulary beside it, and in `model.json` the hash of its weights.

A folder is loaded whole or not at all: hashes, names, shapes and types are compared before the first weight is copied.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from open_clip.tokenizer import default_bpe
from torch import Tensor

from dinorankclip import run_files
from dinorankclip.checked_files import file_text, read_json
from dinorankclip.checksums import CHECKSUMS, COPY_AGAIN, check_folder
from dinorankclip.data.own_vocabulary import Vocabulary, opened
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.models.aligned import AlignedDesign, AlignedModel
from dinorankclip.models.joint import FusionDesign, JointModel, Students
from dinorankclip.models.towers import ImageTower, TextTower, TowerDesign, check_tower
from dinorankclip.models.trunk_gate import (
    ALIGNED,
    FUSION,
    PLACES,
    STUDENTS,
    check_described,
    check_size,
    check_trunk,
)
from dinorankclip.models.trunk_gate import VOCABULARY as OWN_VOCABULARY
from dinorankclip.models.weights_file import read_weights, skip_init, weights_hash, write_weights
from dinorankclip.teachers.portable import local_spec
from dinorankclip.types import TextSpec, UserError

FORMAT, ALIGNED_FORMAT = 1, 2
CONFIG = "model.json"
WEIGHTS = "model.safetensors"
VOCABULARY = "vocabulary.json"  # of an export: which vocabulary, in words
PIECES = "tokenizer.json"  # a vocabulary of the model's own, a file of the library tokenizers
OPEN_CLIP_CONFIG = "open_clip_config.json"
TOWERS = "towers"
# Files that are no part of the model: a card is for people, who may write in it.
_BESIDE = ("README.md", run_files.TENSORS, run_files.NUMBERS)
_KEYS = {
    FORMAT: {"format", "trunk", "students", "fusion", "vocabulary", "weights_hash"},
    ALIGNED_FORMAT: {"format", "aligned", TOWERS, "weights_hash"},
}
OWN_KIND = "a file of the library tokenizers"
_MOST_NAMED = 3  # most names in an error text

AnyModel = JointModel | AlignedModel


def design_of(model: AnyModel) -> dict[str, Any]:
    """Return the design of a model as plain data. Students and fusion are left out where the model has none."""
    if isinstance(model, AlignedModel):
        described = dataclasses.asdict(model.design)
        return {"aligned": described | {"fusion": _without_later(described["fusion"], "source", "branches")}}
    design: dict[str, Any] = {"trunk": model.trunk.config}
    if model.vocabulary is not None:
        design["vocabulary"] = model.vocabulary.described()
    if model.students != Students():
        design["students"] = dataclasses.asdict(model.students)
    if model.fusion != FusionDesign():
        later = "start", "gate_bias", "source", "branches"
        design["fusion"] = _without_later(dataclasses.asdict(model.fusion), *later)
    return design


def _without_later(described: dict[str, Any], *later: str) -> dict[str, Any]:
    """Return a described fusion without entries that came later and have their default, so that older versions read
    the folder, and the identity of older models stays."""
    usual = dataclasses.asdict(FusionDesign())
    return {name: value for name, value in described.items() if name not in later or value != usual[name]}


def save_model(model: AnyModel, folder: Path, *, seal: bool = False) -> None:
    """Write into an existing folder; `seal` adds the hash of the weights, which loading then verifies.

    The caller makes the write atomic: checkpoints and exports rename a finished folder into place.
    """
    weights = model.own_state()
    config = {"format": ALIGNED_FORMAT if isinstance(model, AlignedModel) else FORMAT, **design_of(model)}
    if isinstance(model, AlignedModel) and not seal:
        # A checkpoint stays on this machine and says where its towers are; an export must not.
        config[TOWERS] = {"image": model.image_tower.spec, "text": model.text_tower.spec}
    if seal:
        config["weights_hash"] = weights_hash(weights)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    write_weights(weights, folder / WEIGHTS)
    if isinstance(model, JointModel) and model.vocabulary is not None:
        (folder / PIECES).write_bytes(model.vocabulary.text.encode("utf-8"))


def find_model(where: str | Path) -> Path:
    """Return the model folder meant by a run (its last checkpoint), a checkpoint or a model folder."""
    where = Path(where)
    for candidate in (where, where / run_files.CHECKPOINTS / run_files.LAST, where / run_files.LAST):
        if (candidate / CONFIG).is_file():
            return candidate.resolve()
    raise UserError(_why_no_model(where))


def _names_beside(where: Path) -> list[str]:
    """Return the folders beside a place; beside a plain name also "starter", which is no folder."""
    beside = sorted(place.name for place in where.parent.iterdir() if place.is_dir()) if where.parent.is_dir() else []
    return ["starter", *beside] if where.parent == Path(".") else beside


def _why_no_model(where: Path) -> str:
    """Return an error text for a place without a model: its content, and advice."""
    expected = f"expected a run folder, a checkpoint or a folder with {CONFIG} and {WEIGHTS}"
    if not where.exists():
        near = difflib.get_close_matches(where.name, _names_beside(where), 1)
        meant = f"; did you mean {where.parent / near[0]}?" if near else ""
        return f"{where} holds no model: there is no such folder{meant} ({expected})"
    if where.is_file():
        return f"{where} is a file: {expected}; a file of open_clip weights is open_clip:NAME:{where}"
    if (where / OPEN_CLIP_CONFIG).is_file():
        return f"{where} is an open_clip folder: use open_clip:{where}"
    if run_files.is_run(where) or any((where / name).exists() for name in (run_files.METRICS, run_files.CHECKPOINTS)):
        return (
            f"{where} holds no model: it is a run that has no checkpoint yet; let it train on (give its train command "
            "again), a checkpoint comes every --record.save-every steps and at the end of an epoch"
        )
    if _is_of_transformers(where / "config.json"):
        return (
            f"{where} holds no model of ours: it is a Hugging Face transformers folder; {expected}. CLIP and SigLIP "
            f"load as transformers:{where}"
        )
    if (where / WEIGHTS).is_file():
        return f"{where} holds no model: it has {WEIGHTS} but no {CONFIG}; copy the whole folder again"
    return f"{where} holds no model: {expected}"


def _is_of_transformers(path: Path) -> bool:
    try:
        return not {"model_type", "architectures"}.isdisjoint(run_files.read_object(path))
    except (UserError, OSError):
        return False


def load_folder(where: str | Path) -> AnyModel:
    """Build the model that a folder describes and load its weights, all of which must fit."""
    folder = find_model(where)
    config = _read_config(folder)
    check_folder(folder, skip=_BESIDE, advice=_way_on(folder))
    if config["format"] == ALIGNED_FORMAT:
        aligned = _aligned_model(config["aligned"], folder, config.get(TOWERS))
        load_weights(aligned, folder, config.get("weights_hash"))
        return aligned
    students, fusion = Students(**config.get("students", {})), FusionDesign(**config.get("fusion", {}))
    if (folder / WEIGHTS).is_file():
        check_size(config["trunk"], folder / WEIGHTS, str(folder / CONFIG))
    vocabulary = _read_vocabulary(folder, config.get("vocabulary"))
    try:
        with skip_init():
            model = JointModel(config["trunk"], students=students, fusion=fusion, vocabulary=vocabulary)
    except (TypeError, KeyError, ValueError, AttributeError, AssertionError, RuntimeError) as error:
        # open_clip does not check its configs: any error of its constructors comes out here.
        raise UserError(f"{folder / CONFIG} describes no model that can be built: {error}") from error
    load_weights(model, folder, config.get("weights_hash"))
    return model


def _read_vocabulary(folder: Path, described: dict[str, Any] | None) -> Vocabulary | None:
    """Return the vocabulary that lies in the folder of a model; None for CLIP's own."""
    if described is None:
        return None
    path = folder / PIECES
    if not path.is_file():
        raise UserError(f"{folder} has a vocabulary of its own but no {PIECES}: {COPY_AGAIN}")
    values = {name: value for name, value in described.items() if name != "sha256"}
    vocabulary = Vocabulary(file_text(path), **values)
    if vocabulary.sha256 != described["sha256"]:
        raise UserError(f"{path} is not the vocabulary of this model: {COPY_AGAIN}")
    opened(vocabulary.text, str(path))
    return vocabulary


def _way_on(folder: Path) -> str:
    """Return what to do about a damaged model: of a run, an older checkpoint may be whole."""
    if not (folder / run_files.NUMBERS).is_file():
        return COPY_AGAIN
    others = sorted(path.name for path in folder.parent.glob(f"{run_files.STEP}*") if path.name != folder.name)
    older = f"use another checkpoint ({', '.join(others)}), or " if others else ""
    return f"{older}give the run's train command again: it goes on from a whole checkpoint"


def _read_config(folder: Path) -> dict[str, Any]:
    """Read model.json; refuse a format, entries and values that this version does not know."""
    path = folder / CONFIG
    try:
        config = read_json(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
    version = config.get("format") if isinstance(config, dict) else None
    described = "aligned" if version == ALIGNED_FORMAT else "trunk"
    if not isinstance(version, int) or isinstance(version, bool) or not isinstance(config.get(described), dict):
        raise UserError(f"{path} is no description of a DinoRankCLIP model: it lacks 'format' or '{described}'")
    if version not in _KEYS:
        newer = ": install a newer dinorankclip" if version > max(_KEYS) else ""
        raise UserError(f"{path} has format {version}, this version reads {FORMAT} and {ALIGNED_FORMAT}{newer}")
    unknown = sorted(config.keys() - _KEYS[version])
    if unknown:
        raise UserError(f"{path} has entries that this version does not know: {', '.join(unknown)}")
    if version == FORMAT:
        check_trunk(config["trunk"], str(path))
        check_described(config.get("students", {}), STUDENTS, f"{path}, students,")
        check_described(config.get("fusion", {}), FUSION, f"{path}, fusion,")
        if config.get("vocabulary") is not None:
            check_described(config["vocabulary"], OWN_VOCABULARY, f"{path}, vocabulary,")
    else:
        check_described(config["aligned"], ALIGNED, str(path))
        if config.get(TOWERS) is not None:
            check_described(config[TOWERS], PLACES, f"{path}, {TOWERS},")
    return config


def _aligned_model(described: dict[str, Any], folder: Path, places: dict[str, str] | None) -> AlignedModel:
    """Build an aligned model with its towers: those in the folder, else those at `places`, else the installed ones."""
    values = described | {side: TowerDesign(**described[side]) for side in ("image", "text")}
    design = AlignedDesign(**values | {"fusion": FusionDesign(**described.get("fusion", {}))})
    inside = folder / TOWERS
    specs = places or {side: getattr(design, side).spec for side in ("image", "text")}
    if inside.is_dir():
        specs = {side: local_spec(spec, inside / side) for side, spec in specs.items()}
    for spec in specs.values():
        kind, _, place = spec.partition(":")
        if kind == "hf" and not Path(place).expanduser().is_dir():
            raise UserError(f"{folder / CONFIG} names a tower on the hub ({spec}), which no model folder may ask for")
    image, text = ImageTower(specs["image"], design.image.size), TextTower(specs["text"])
    check_tower(image, design.image)
    check_tower(text, design.text)
    try:
        with skip_init():
            return AlignedModel(design, image, text)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{folder / CONFIG} describes no model that can be built: {error}") from error


def load_weights(model: AnyModel, folder: Path, expected_hash: str | None = None) -> None:
    """Copy a folder's weights into a model, after a check that all of them fit."""
    path = folder / WEIGHTS
    if not path.is_file():
        raise UserError(f"{folder} has {CONFIG} but no {WEIGHTS}: copy the whole folder again")
    weights = read_weights(path)
    if faults := _faults(model.own_state(), weights):
        more = f"; and {len(faults) - _MOST_NAMED} more faults" if len(faults) > _MOST_NAMED else ""
        raise UserError(f"{path} does not fit {CONFIG}: {'; '.join(faults[:_MOST_NAMED])}{more}")
    sealed = (folder / CHECKSUMS).is_file()  # compared already
    if expected_hash is not None and not sealed and weights_hash(weights) != expected_hash:
        raise UserError(f"{path} is damaged: its weights are not those that were exported; copy the folder again")
    broken = [name for name, tensor in weights.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise UserError(
            f"{path} holds values that are not finite ({_first_names(broken)}): the model is damaged, or its training "
            "diverged; use another checkpoint"
        )
    model.load_state_dict(weights, strict=False)  # compared above; frozen towers are not among the weights


def _faults(expected: dict[str, Tensor], weights: dict[str, Tensor]) -> list[str]:
    """Return the differences in names, shapes and types that keep weights out of a model."""
    missing, extra = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    faults = [f"{_first_names(missing)} missing"] if missing else []
    faults += [f"{_first_names(extra)} not of this model"] if extra else []
    for name in sorted(expected.keys() & weights.keys()):
        ours, theirs = expected[name], weights[name]
        if ours.shape != theirs.shape:
            faults.append(f"{name} has shape {list(theirs.shape)} instead of {list(ours.shape)}")
        elif ours.is_floating_point() != theirs.is_floating_point():
            faults.append(f"{name} has type {theirs.dtype} instead of {ours.dtype}")
    return faults


def _first_names(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def write_vocabulary(folder: Path, spec: TextSpec) -> None:
    """Copy the byte pairs that open_clip brings into an export, and describe their use, for other programs."""
    source, tokenizer = Path(default_bpe()), Tokenizer(spec)
    shutil.copyfile(source, folder / source.name)
    start, end = tokenizer.encode("")
    described = {
        "kind": "CLIP byte-pair encoding",
        "file": source.name,
        "sha256": _file_hash(source),
        "cleaning": "ftfy, HTML entities resolved twice, white space joined, lower case",
        "context_length": spec.context_length,
        "ids": {"start": start, "end": end, "padding": 0, "vocabulary": tokenizer.vocabulary},
        "layout": "start, ids of the caption, end, padding; a longer caption loses its last ids",
    }
    (folder / VOCABULARY).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


def write_own_vocabulary(folder: Path, vocabulary: Vocabulary, spec: TextSpec) -> None:
    """Write the vocabulary that a model brings into an export, and describe its use."""
    (folder / PIECES).write_bytes(vocabulary.text.encode("utf-8"))
    described = {
        "kind": OWN_KIND,
        "file": PIECES,
        "sha256": vocabulary.sha256,
        "context_length": spec.context_length,
        "ids": {"end": vocabulary.end, "padding": vocabulary.padding},
        "layout": "ids as the file gives them, cut to the context length with the end last, then padding",
    }
    (folder / VOCABULARY).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


def check_vocabulary(folder: Path) -> None:
    """Refuse an exported folder whose vocabulary differs from the installed vocabulary."""
    path = folder / VOCABULARY
    if not path.is_file():
        return
    described = run_files.read_object(path)
    if "sha256" not in described:
        raise UserError(f"{path} is damaged: it lacks sha256")
    if described.get("kind") == OWN_KIND:
        return  # it lies in the folder, and model.json has its hash
    if described["sha256"] != _file_hash(Path(default_bpe())):
        raise UserError(
            f"{folder} was made with another vocabulary than the installed open_clip_torch has: captions would be "
            "misread; install the version that made it (provenance.json)"
        )


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
