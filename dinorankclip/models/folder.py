"""The text side of an exported folder: the vocabulary itself, and how captions become ids.

Captions are read with the vocabulary that open_clip brings; an exported folder carries a copy for other programs,
and its hash proves that both are the same.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from dinorankclip import run_files
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.models.joint import FusionDesign, JointModel, Students
from dinorankclip.models.weights_file import Undrawn, read_weights, weights_hash, write_weights
from dinorankclip.types import TextSpec, UserError

DESCRIPTION = "vocabulary.json"


def write_vocabulary(folder: Path, spec: TextSpec) -> None:
    """Copy the byte pairs and describe how they are used."""
    source, tokenizer = _bundled(), Tokenizer(spec)
    shutil.copyfile(source, folder / source.name)
    start, end = tokenizer.encode("")
    described = {
        "kind": "CLIP byte-pair encoding",
        "file": source.name,
        "sha256": _hash(source),
        "cleaning": "ftfy, HTML entities resolved twice, white space joined, lower case",
        "context_length": spec.context_length,
        "ids": {"start": start, "end": end, "padding": 0, "vocabulary": tokenizer.vocabulary},
        "layout": "start, ids of the caption, end, padding; a longer caption loses its last ids",
    }
    (folder / DESCRIPTION).write_text(json.dumps(described, indent=2) + "\n")


def check_vocabulary(folder: Path) -> None:
    """An exported folder must have been made with the vocabulary that is installed; other folders say nothing of it."""
    path = folder / DESCRIPTION
    if not path.is_file():
        return
    try:
        described: Any = json.loads(path.read_text())
        wanted = described["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: {error!r}") from error
    if wanted != _hash(_bundled()):
        raise UserError(
            f"{folder} was made with another vocabulary than the installed open_clip_torch has: captions would be "
            "misread; install the version that made it (provenance.json)"
        )


def _bundled() -> Path:
    from dinorankclip import device

    device.declare_missing()
    from open_clip.tokenizer import default_bpe

    return Path(default_bpe())


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# -------- folder
# The model-folder format: `model.json` (how to build it) and `model.safetensors` (its weights). Nothing is unpickled.
#
# A checkpoint of a run is such a folder with the training state beside it; an exported folder has a card, the
# preprocessing and the vocabulary beside it, and in `model.json` the hash of its weights.
#
# A folder is loaded whole or not at all: every name, shape and type is compared before the first weight is copied.

FORMAT = 1
CONFIG = "model.json"
WEIGHTS = "model.safetensors"
OPEN_CLIP_CONFIG = "open_clip_config.json"
_KEYS = {"format", "trunk", "students", "fusion", "weights_hash"}
_SHOWN = 3  # names in an error text; the first tell the story

Design = TypeVar("Design", Students, FusionDesign)


def design_of(model: JointModel) -> dict[str, Any]:
    """How to build a model, as plain data. Parts it does not have are left out."""
    design: dict[str, Any] = {"trunk": model.trunk.config}
    if model.students != Students():
        design["students"] = dataclasses.asdict(model.students)
    if model.fusion != FusionDesign():
        design["fusion"] = dataclasses.asdict(model.fusion)
    return design


def save_model(model: JointModel, folder: Path, *, seal: bool = False) -> None:
    """Write into an existing folder; `seal` adds the hash of the weights, which loading then verifies.

    Atomicity is the caller's: checkpoints and exports rename a finished folder into place.
    """
    weights = model.state_dict()
    config = {"format": FORMAT, **design_of(model)}
    if seal:
        config["weights_hash"] = weights_hash(weights)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    write_weights(weights, folder / WEIGHTS)


def find_model(where: str | Path) -> Path:
    """The model folder meant by a run (its last checkpoint), a checkpoint or a model folder."""
    where = Path(where)
    for candidate in (where, where / run_files.CHECKPOINTS / run_files.LAST, where / run_files.LAST):
        if (candidate / CONFIG).is_file():
            return candidate.resolve()
    raise UserError(_why_no_model(where))


def load_folder(where: str | Path) -> JointModel:
    """Build the model a folder describes and load its weights; all of them fit or it is an error."""
    folder = find_model(where)
    config = read_config(folder)
    students = _design(Students, config.get("students", {}), folder)
    fusion = _design(FusionDesign, config.get("fusion", {}), folder)
    try:
        with Undrawn():
            model = JointModel(config["trunk"], students=students, fusion=fusion)
    except (TypeError, KeyError, ValueError, AttributeError, AssertionError, RuntimeError) as error:
        # open_clip has no check of its configs of its own: whatever its constructors trip over comes out here.
        raise UserError(f"{folder / CONFIG} describes no model that can be built: {error}") from error
    load_weights(model, folder, config.get("weights_hash"))
    return model


def read_config(folder: Path) -> dict[str, Any]:
    """The content of model.json, of a format and with entries that this version knows."""
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    found = config.get("format") if isinstance(config, dict) else None
    if not isinstance(found, int) or not isinstance(config.get("trunk"), dict):
        raise UserError(f"{path} is no description of a DinoRankCLIP model: it lacks 'format' or 'trunk'")
    if found > FORMAT:
        raise UserError(f"{path} has format {found}, this version reads {FORMAT}: install a newer dinorankclip")
    if found != FORMAT:
        raise UserError(f"{path} has format {found}; this version reads format {FORMAT}")
    unknown = sorted(config.keys() - _KEYS)
    if unknown:
        raise UserError(f"{path} has entries that this version does not know: {', '.join(unknown)}")
    return config


def load_weights(model: JointModel, folder: Path, expected_hash: str | None = None) -> None:
    """Copy a folder's weights into a model, after all of them were found to fit."""
    path = folder / WEIGHTS
    if not path.is_file():
        raise UserError(f"{folder} has {CONFIG} but no {WEIGHTS}: copy the whole folder again")
    weights = read_weights(path)
    misfit = _misfit(model.state_dict(), weights)
    if misfit:
        raise UserError(f"{path} does not fit {CONFIG}: {misfit}")
    if expected_hash is not None and weights_hash(weights) != expected_hash:
        raise UserError(f"{path} is damaged: its weights are not those that were exported; copy the folder again")
    broken = [name for name, tensor in weights.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise UserError(
            f"{path} holds values that are not finite ({_some(broken)}): the model is damaged, or its training "
            "diverged; use another checkpoint"
        )
    model.load_state_dict(weights, strict=True)


def _misfit(wanted: dict[str, Tensor], found: dict[str, Tensor]) -> str:
    """In words what keeps `found` from filling `wanted`; empty if nothing does."""
    missing, extra = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    faults = [f"{_some(missing)} missing"] if missing else []
    faults += [f"{_some(extra)} not of this model"] if extra else []
    for name in sorted(wanted.keys() & found.keys()):
        ours, theirs = wanted[name], found[name]
        if ours.shape != theirs.shape:
            faults.append(f"{name} has shape {list(theirs.shape)} instead of {list(ours.shape)}")
        elif ours.is_floating_point() != theirs.is_floating_point():
            faults.append(f"{name} has type {theirs.dtype} instead of {ours.dtype}")
    rest = f"; and {len(faults) - _SHOWN} more faults" if len(faults) > _SHOWN else ""
    return "; ".join(faults[:_SHOWN]) + rest


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _design(kind: type[Design], values: Any, folder: Path) -> Design:
    known = {field.name for field in dataclasses.fields(kind)}
    if not isinstance(values, dict) or values.keys() - known:
        raise UserError(f"{folder / CONFIG}: '{values}' is not {kind.__name__} with {', '.join(sorted(known))}")
    return kind(**values)


def _why_no_model(where: Path) -> str:
    """What is there instead of a model, and what to do."""
    expected = f"expected a run folder, a checkpoint or a folder with {CONFIG} and {WEIGHTS}"
    if not where.exists():
        return f"{where} holds no model: there is no such folder ({expected})"
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
            f"{where} holds no model of ours: it is a Hugging Face transformers folder; {expected}. Models that also "
            f"come in open_clip's format (with {OPEN_CLIP_CONFIG}) load as open_clip:FOLDER"
        )
    if (where / WEIGHTS).is_file():
        return f"{where} holds no model: it has {WEIGHTS} but no {CONFIG}; copy the whole folder again"
    return f"{where} holds no model: {expected}"


def _is_of_transformers(path: Path) -> bool:
    try:
        return not {"model_type", "architectures"}.isdisjoint(run_files.read_object(path))
    except (UserError, OSError):
        return False
