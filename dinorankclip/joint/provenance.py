"""How a model came about, gathered from what its run left behind: for the card of an exported model.

Nothing here is needed to use a model, so whatever is missing is left out; nothing here fails. Paths are cut to their
last name: a folder that is given away says nothing about the machine it was made on.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, TypeVar

from dinorankclip import __version__, run_files
from dinorankclip.dino.layout import MANIFEST, PLAN
from dinorankclip.encoders.trunk import trunk_config, trunk_name
from dinorankclip.joint.acting_orders import inert_orders
from dinorankclip.joint.folder import CONFIG

RECORD = "provenance.json"  # in exported folders, so that an export of an export still knows
Text = TypeVar("Text", str, None)
_PATHS = ("data", "init")  # settings that may be paths
_PATHS_INSIDE = (("model", "weights"), ("distil", "cache"), ("distil", "teacher"), ("distil", "text_teacher"))
_DROPPED = ("run", "record")  # settings that did not touch the model
_UNNAMED = "without a name (see model.json)"
_MACHINE = ("python", "packages", "system", "gpus", "processes", "revision")  # of environment.json


def provenance(folder: Path | None, name: str, data_note: str = "") -> dict[str, Any]:
    """What is known about the model in `folder` (None: an open_clip model), typed by the user as `name`."""
    found: dict[str, Any] = {"name": _last_name(name), "dinorankclip": __version__}
    if folder is not None:
        found |= _read(folder / RECORD) or _of_run(folder)
    if data_note:
        found["data_note"] = data_note
    return found


def with_own_trunk(settings: dict[str, Any], checkpoint: Path) -> dict[str, Any]:
    """Settings of a run; if it began with another model (`init`), with that model's trunk, not the preset's."""
    trunk = _read(checkpoint / CONFIG).get("trunk")
    if not settings.get("init") or not trunk:
        return settings
    name = trunk_name(trunk)
    size = None if name and trunk_config(name) == trunk else trunk["vision_cfg"]["image_size"]
    return settings | {"model": settings["model"] | {"trunk": name or _UNNAMED, "image_size": size}}


def _of_run(checkpoint: Path) -> dict[str, Any]:
    """A checkpoint lies in RUN/checkpoints; a model folder that is no checkpoint has none of these files."""
    run = checkpoint.parent.parent
    state = _read(checkpoint / run_files.NUMBERS)
    if not state:
        return {}
    settings = with_own_trunk(_read(run / run_files.CONFIG), checkpoint)
    environment = _read(run / run_files.ENVIRONMENT)
    scores = _read(run / run_files.SCORES)
    found: dict[str, Any] = {"step": state.get("step"), "data_fingerprint": state.get("data")}
    if inert := inert_orders(run):
        found["inert_orders"] = inert
    if settings:
        found |= {"settings": _without_paths(settings), "teachers": _teachers(settings), "images": _images(settings)}
    if environment:
        found["environment"] = {name: environment[name] for name in _MACHINE if name in environment}
    if scores.get("scores"):
        found["scores"] = {"step": scores.get("step"), "values": scores["scores"]}
    if scores.get("sets"):
        sets = {name: _numbers(scored) for name, scored in scores["sets"].items()}
        found["set_scores"] = {"identity": scores.get("sets_model", {}).get("identity"), "sets": sets}
    return found


def _numbers(scored: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Of one evaluation set: value, interval and unit of each score."""
    kept = ("value", "low", "high", "unit")
    return {
        metric: {name: score[name] for name in kept if name in score}
        for metric, score in scored.get("scores", {}).items()
        if "value" in score
    }


def _without_paths(settings: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in copy.deepcopy(settings).items() if name not in _DROPPED}
    for name in _PATHS:
        kept[name] = _last_name(kept.get(name))
    for group, name in _PATHS_INSIDE:
        if isinstance(kept.get(group), dict):
            kept[group][name] = _last_name(kept[group].get(name))
    return kept


def _teachers(settings: dict[str, Any]) -> list[dict[str, str]]:
    """Name, licence and note of each teacher, as the cache says; its names as they were typed if the cache is gone."""
    distil = settings.get("distil", {})
    if not distil.get("cache"):
        return []
    cache = Path(distil["cache"])
    plan, licences = _read(cache / PLAN), _read(cache / MANIFEST).get("licences", {})
    both = distil.get("branches") == "image+text"
    if not plan:
        typed = [("image", distil.get("teacher"))] + ([("text", distil.get("text_teacher"))] if both else [])
        return [{"side": side, "name": _last_name(name)} for side, name in typed if name]
    cards = [("image", plan)] + ([("text", plan["text"])] if both and plan.get("text") else [])
    return [
        {
            "side": side,
            "name": _last_name(str(card.get("teacher"))),
            "licence": licences.get(side, ""),
            "note": card.get("note", ""),
        }
        for side, card in cards
    ]


def _images(settings: dict[str, Any]) -> dict[str, int]:
    """Images by part of the data, where a teacher cache has counted them."""
    cache = settings.get("distil", {}).get("cache")
    plan = _read(Path(cache) / PLAN) if cache else {}
    return {part: about["images"] for part, about in plan.get("data", {}).items() if "images" in about}


def _last_name(text: Text) -> Text:
    """`/home/me/photos.csv` → `photos.csv`, `timm:NAME:/home/me/file` → `timm:NAME:file`. Commands may hold secrets."""
    if text is not None and text.startswith("pipe:"):
        return "pipe: shards"
    if text is not None and "::" in text:
        return "::".join(_last_name(part) for part in text.split("::"))
    if text is None or "/" not in text:
        return text
    head, colon, tail = text.rpartition(":")
    return f"{head}{colon}{Path(tail.rstrip('/')).name or tail}"


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
