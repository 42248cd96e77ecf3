"""Compares the settings of two runs, and reads those that an older version stored.

Nothing here imports torch, so `--help` is fast.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dinorankclip.config import TrainSettings, as_dict, with_changes
from dinorankclip.finetuning import PRESET, START, Start, chosen, start_of
from dinorankclip.json_shape import FLAG, NONE, NUMBER, TEXT, WHOLE, Shape, either, entries, listed

# Settings that may change between a run and its resumption, because the result does not depend on them (chunks and
# threads: up to rounding; workers: unless they share `pipe:` shards, which train/run_folder.py checks).
FREE_ON_RESUME = (
    "run", "reading.workers", "reading.patience", "reading.max_damaged", "budget.threads", "budget.chunk", "record.",
)  # fmt: skip


def free_on_resume(name: str) -> bool:
    return is_among(name, FREE_ON_RESUME)


def is_among(name: str, entries: tuple[str, ...]) -> bool:
    """Return whether the entries hold a setting by its name or its group; groups end with a dot."""
    return any(name == entry or (entry.endswith(".") and name.startswith(entry)) for entry in entries)


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings: {'a': {'b': 1}} → {'a.b': 1}."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = list(value) if isinstance(value, tuple) else value
    return flat


# A run of an older version lacks settings that were added later. It did what their defaults do, except for these.
BEFORE_SETTING: dict[str, Any] = {
    "loss.gate_l1_size": "plain",
    "loss.several_positives": False,
    "optim.name": "adamw",
    "tune.floor": 0.005,
}


def meaning_of_absent() -> dict[str, Any]:
    """Return the value of every setting, flat, that describes a stored run which lacks the setting."""
    return flatten(as_dict(TrainSettings())) | BEFORE_SETTING


def settings_from_json(stored: Mapping[str, Any]) -> TrainSettings:
    """Return settings from `as_dict` that went through JSON; settings that an older file lacks mean what its
    runs did."""
    return _fill(with_changes(TrainSettings(), BEFORE_SETTING), stored)


def _fill(default: Any, stored: Mapping[str, Any]) -> Any:
    values: dict[str, Any] = {}
    for known in dataclasses.fields(default):
        if known.name in stored:
            nested, value = getattr(default, known.name), stored[known.name]
            if dataclasses.is_dataclass(nested):
                value = _fill(nested, value)
            values[known.name] = tuple(value) if isinstance(value, list) else value
    return dataclasses.replace(default, **values)


TUNE = "tune"  # a group of settings that runs of older versions lack


def as_begun(settings: TrainSettings, stored: dict[str, Any]) -> TrainSettings:
    """Return the settings with which a run goes on whose config.json is `stored`: what a run without a setting did is
    kept, where the user asks for the default, which is another. A stored setting is never changed: it was chosen."""
    given, defaults, begun = flatten(as_dict(settings)), flatten(as_dict(TrainSettings())), flatten(stored)
    kept = {n: v for n, v in BEFORE_SETTING.items() if n not in begun and given[n] == defaults[n]}
    start = start_of(settings.init, settings.model.weights) if settings.preset == PRESET else None
    if TUNE not in stored and start is not None and settings.recipe is None:
        # Fine-tuning did not look at its start, and had the defaults of training from scratch.
        kept |= _kept(settings, start, begun)
    elif start is not None and settings.recipe is None:
        # Replay and the rate of LoRA came later than the other defaults for trained weights.
        replays = settings.tune.replay == START and begun.get("tune.replay") is None
        decided = {"optim.lr"} if replays or settings.tune.lora_rank is not None else set()
        decided |= {"tune.replay"} if replays else set()
        decided |= {"tune.replay_share"} if settings.tune.replay is not None else set()
        kept |= {name: value for name, value in _kept(settings, start, begun).items() if name in decided}
    return with_changes(settings, kept)


def as_stored(settings: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
    """Return the settings as config.json of a run that goes on holds them: what its first version lacked, and what the
    run still does, stays absent. So the next resumption, too, sees that nobody chose it."""
    lacked = BEFORE_SETTING.keys() - flatten(stored).keys()
    kept = {name: dict(value) if isinstance(value, dict) else value for name, value in settings.items()}
    for name in lacked:
        group, _, field = name.partition(".")
        if kept[group][field] == BEFORE_SETTING[name]:
            del kept[group][field]
    if TUNE not in stored:
        del kept[TUNE]
    return kept


def _kept(settings: TrainSettings, start: Start, begun: dict[str, Any]) -> dict[str, Any]:
    """Return what a run has begun with in place of the defaults that its start decides now."""
    given, defaults = flatten(as_dict(settings)), flatten(as_dict(TrainSettings()))
    now = chosen(start, settings.tune.lora_rank is not None, settings.tune.replay)
    new = flatten({name: value for name, (value, _) in now.items()})
    kept = {name: begun.get(name, defaults[name]) for name, value in new.items() if given[name] == value}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}


def difference(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return a line `name: old → new` for every setting that differs and affects the result."""
    absent = meaning_of_absent()
    old, new = absent | flatten(old), absent | flatten(new)
    idle = (idle_settings(old) & idle_settings(new)) | (idle_rates(old) & idle_rates(new))
    return [
        f"{name}: {old.get(name)} → {new.get(name)}"
        for name in sorted(old.keys() | new.keys())
        if not is_among(name, tuple(idle)) and not free_on_resume(name) and old.get(name) != new.get(name)
    ]


def idle_rates(flat: dict[str, Any]) -> set[str]:
    """Return the rates of transition heads and gates that a run does not have."""
    heads, gates = flat["loss.order"] > 1, flat.get("fusion.variant", "none") != "none"
    acts = {"optim.heads_rate": heads, "optim.heads_eps": heads, "optim.gates_rate": heads or gates}
    return {name for name, act in acts.items() if not act}


def idle_settings(flat: dict[str, Any]) -> set[str]:
    """Return the settings and groups without effect, for `is_among`: fusion, students and anchor when a run has none,
    and a setting that differs from what older runs did when a run has no gates to apply it to. Keys of finished study
    runs depend on these names."""
    fused = flat.get("fusion.variant", "none") != "none"
    aligned = flat.get("recipe") == "aligned"
    idle = {
        "fusion.": fused,
        "distil.": not aligned and (fused or flat.get("distil.cache")),
        "model.": not aligned,
        "aligned.": aligned,
        "anchor.": flat["anchor.weight"] > 0,
        "distil.tokens": flat["distil.into"] == "trunk",
        "fusion.branches": flat["fusion.source"] == "trunk",
        "loss.gate_l1_size": flat["loss.order"] > 1,
        "tune.floor": flat.get("tune.blend"),
        **dict.fromkeys(
            ("optim.muon_rate", "optim.muon_momentum", "optim.muon_iterations"), flat["optim.name"] == "muon"
        ),
    }
    return {name for name, acts in idle.items() if not acts}


@cache
def settings_shape() -> Shape:
    """Return the shape of stored settings: each setting that this version knows has its type. Values are not judged,
    since a run of another version may have others."""
    return _shape_of(TrainSettings)


def _shape_of(annotation: Any) -> Shape:
    if dataclasses.is_dataclass(annotation):
        return entries({name: _shape_of(hint) for name, hint in get_type_hints(annotation).items()})
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return either(*(_shape_of(part) for part in parts))
    if origin is tuple:
        return listed(_shape_of(parts[0]))
    if origin is Literal:
        return either(*dict.fromkeys(_shape_of(type(value)) for value in parts))
    return {str: TEXT, bool: FLAG, int: WHOLE, float: NUMBER, type(None): NONE}[annotation]
