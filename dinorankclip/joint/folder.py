"""The model-folder format: `model.json` (how to build it) and `model.safetensors` (its weights). Nothing is unpickled.

A checkpoint of a run is such a folder with the training state beside it.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from dinorankclip.joint.model import JointModel, Students
from dinorankclip.types import UserError

FORMAT = 1
CONFIG = "model.json"
WEIGHTS = "model.safetensors"


def save_model(model: JointModel, folder: Path) -> None:
    """Write into an existing folder. Atomicity is the caller's: checkpoints rename a finished folder into place."""
    config = {"format": FORMAT, "trunk": model.trunk.config}
    if model.students != Students():
        config["students"] = dataclasses.asdict(model.students)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    save_file({name: t.contiguous() for name, t in model.state_dict().items()}, folder / WEIGHTS)


def find_model(where: str | Path) -> Path:
    """The model folder meant by a run (its last checkpoint), a checkpoint or a model folder."""
    where = Path(where)
    for candidate in (where, where / "checkpoints" / "last", where / "last"):
        if (candidate / CONFIG).is_file():
            return candidate.resolve()
    raise UserError(
        f"{where} holds no model: expected a run folder, a checkpoint or a folder with {CONFIG} and {WEIGHTS}"
    )


def load_folder(where: str | Path) -> JointModel:
    """Build the model a folder describes and load its weights; all of them fit or it is an error."""
    folder = find_model(where)
    try:
        config = json.loads((folder / CONFIG).read_text())
    except ValueError as error:
        raise UserError(f"{folder / CONFIG} is damaged: {error}") from error
    if config.get("format") != FORMAT:
        raise UserError(f"{folder / CONFIG} has format {config.get('format')}; this version reads format {FORMAT}")
    model = JointModel(config["trunk"], students=Students(**config.get("students", {})))
    load_weights(model, folder)
    return model


def load_weights(model: JointModel, folder: Path) -> None:
    try:
        weights = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{folder / WEIGHTS} cannot be read: {error}") from error
    try:
        model.load_state_dict(weights, strict=True)
    except RuntimeError as error:
        raise UserError(f"{folder / WEIGHTS} does not fit this model: {str(error)[:500]}") from error
