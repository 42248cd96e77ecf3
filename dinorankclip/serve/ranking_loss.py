"""Loads the ranking loss that a run was trained with: its settings, transition heads and gates.

The functions that training calls are in losses/; nothing of the likelihood is written a second time for the pages.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from dinorankclip import run_files
from dinorankclip.config import LossSettings
from dinorankclip.losses.objective import OF_OTHERS
from dinorankclip.losses.ranking import RankingLoss
from dinorankclip.methods import traits_of_stored
from dinorankclip.models.folder import find_model
from dinorankclip.models.weights_file import read_weights
from dinorankclip.types import UserError

_PREFIX = "objective/ranking."


def run_of(model: str) -> Path | None:
    """Return the run folder behind a model's name: the run itself, or that of a checkpoint."""
    path = Path(model)
    for folder in (path, *path.absolute().parents[:2]) if path.is_dir() else ():
        if run_files.is_run(folder):
            return folder
    return None


def settings_of(model: str) -> dict[str, Any]:
    """Return the stored settings behind a model's name: of its run, or of the run it was exported from; or {}."""
    try:
        if (run := run_of(model)) is not None:
            return run_files.read_settings(run)
        record = Path(model) / run_files.PROVENANCE
        return run_files.read_object(record).get("settings", {}) if record.is_file() else {}
    except (UserError, OSError):
        return {}


def order_of(settings: dict[str, Any]) -> int:
    """Return the order that a run was trained with; 0 for a model without lists, and for a model of unknown origin."""
    if not settings:
        return 0
    traits = traits_of_stored(settings["method"])
    if traits.fixed_order is not None:
        return traits.fixed_order
    return int(settings.get("loss", {}).get("order", 0))


def load_ranking_loss(model: str, dim: int, settings: dict[str, Any]) -> RankingLoss | None:
    """Return the ranking loss of a model that learnt lists, in the state of its checkpoint.

    None if the model learnt no lists. A loss of order 2 or above whose heads were not kept is of order 1.
    """
    if order_of(settings) < 1:
        return None
    known = {field.name for field in fields(LossSettings)}
    stored = {name: value for name, value in settings["loss"].items() if name in known}
    options = asdict(LossSettings(**stored)) | {"order": order_of(settings)}
    options = {name: value for name, value in options.items() if name not in OF_OTHERS}
    tensors = _stored_tensors(model)
    if options["order"] >= 2 and not tensors:
        options |= {"order": 1, "transitions": "learnt", "gate_start": None, "gate_l1": None}
    loss = RankingLoss(dim, **options)
    if tensors:
        loss.load_state_dict(tensors)
    return loss.eval().requires_grad_(False)


def _stored_tensors(model: str) -> dict[str, Any]:
    path = find_model(model) / run_files.TENSORS
    if not path.is_file():
        return {}
    tensors = read_weights(path)
    return {name.removeprefix(_PREFIX): value for name, value in tensors.items() if name.startswith(_PREFIX)}
