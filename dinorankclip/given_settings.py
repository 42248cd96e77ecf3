"""Reads settings that a user gives in Python or in a file (`train --config FILE`), and names every mistake in them.

Values are nested, {"budget": {"epochs": 2}}, or under dotted names, {"budget.epochs": 2}. A file is JSON or TOML. It
changes the defaults of its preset, method and recipe; config.json of a run holds all settings, so it repeats the run.
Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import types
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dinorankclip.checked_files import JSON_BYTES, file_bytes, parsed_json
from dinorankclip.config import TrainSettings, as_dict, with_changes
from dinorankclip.finetuning import NONE, START
from dinorankclip.presets import PRESETS, default_settings
from dinorankclip.run_files import CONFIG, is_run, read_settings, refuse_command
from dinorankclip.stored_settings import flatten, settings_from_json
from dinorankclip.types import UserError

DECIDING = ("preset", "method", "recipe")  # settings that decide the defaults of all others
TIMES = ("budget.minutes", "budget.core_seconds")  # budgets that become a number of steps when a run begins


def settings_from(given: TrainSettings | Mapping[str, Any] | str | Path | None, **changes: Any) -> TrainSettings:
    """Return settings from a `TrainSettings`, a mapping, a file or nothing, with changes on top.

    Raises `UserError` for a setting that does not exist and for a value that it cannot have.
    """
    if isinstance(given, TrainSettings):
        further = checked(changes)
        return with_changes(given, _length(as_dict(given), {"run": given.run} | further) | further)
    if isinstance(given, str | Path):
        return from_file(Path(given), changes)
    return _on_defaults(checked(given or {}) | checked(changes))


def from_file(path: Path, changes: Mapping[str, Any] | None = None) -> TrainSettings:
    """Return the settings of a file with changes on top. The settings of a run are complete, and older versions' runs
    keep the meaning that they had; any other file changes the defaults."""
    further = checked(changes or {})
    if path.name == CONFIG and is_run(path.parent):
        stored = read_settings(path.parent)
        if "data" not in further:
            refuse_command(stored["data"], path.parent)
        for name in ("general", "replay"):
            if (where := stored.get("tune", {}).get(name)) is not None and f"tune.{name}" not in further:
                refuse_command(where, path.parent)
        _refuse_unknown(flatten(stored), str(path))
        return with_changes(settings_from_json(stored), _length(stored, further) | further)
    return _on_defaults(checked(read_file(path), str(path)) | further)


def _length(stored: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """Return what changes in the length of a stored run, whose steps were measured for its own time. Another time
    measures anew; another run takes the same steps, and no time is promised."""
    if "budget.steps" not in further and any(further.get(name) is not None for name in TIMES):
        return dict.fromkeys(("budget.steps", *TIMES))
    another = further.get("run") not in (None, stored.get("run"))
    return dict.fromkeys(TIMES) if another and stored.get("budget", {}).get("steps") is not None else {}


def read_file(path: Path) -> dict[str, Any]:
    """Return the values of a JSON or TOML file."""
    if not path.is_file():
        raise UserError(f"--config {path}: there is no such file")
    text = file_bytes(path, JSON_BYTES).decode("utf-8", "replace")
    try:
        values = tomllib.loads(text) if path.suffix.lower() == ".toml" else parsed_json(text)
    except ValueError as error:
        raise UserError(
            f"{path} cannot be read as {'TOML' if path.suffix.lower() == '.toml' else 'JSON'}: {error}"
        ) from None
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold settings by name, not {type(values).__name__}")
    return values


def _on_defaults(values: Mapping[str, Any]) -> TrainSettings:
    """Return the defaults of preset, method and recipe among the values, with the other values on top."""
    preset = values.get("preset", "scenes")
    if preset not in PRESETS:
        raise UserError(f"preset {preset!r}: there are {', '.join(PRESETS)}")
    start = values.get("init"), values.get("model.weights"), values.get("tune.lora_rank") is not None
    without = values.get("model.frozen_image_tower") or values.get("distil.cache") not in (None, NONE)
    without = without or values.get("loss.two_captions")
    replay = values.get("tune.replay", None if without else START)
    base = default_settings(preset, values.get("method"), values.get("recipe"), *start, replay, values.get("data"))
    return with_changes(base, {name: value for name, value in values.items() if name not in DECIDING})


def checked(values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return values by dotted name as settings hold them: lists as tuples, paths as texts."""
    flat = {name.replace("-", "_"): value for name, value in _flat(values).items()}
    _refuse_unknown(flat, where)
    prefix = f"{where}: " if where else ""
    found = {}
    for name, value in flat.items():
        fits, held = _held(known_settings()[name], value)
        if not fits:
            raise UserError(f"{prefix}{name} = {value!r}: it must be {_words(known_settings()[name])}")
        found[name] = held
    return found


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


def _refuse_unknown(flat: Mapping[str, Any], where: str) -> None:
    for name in flat:
        if name not in known_settings():
            near = difflib.get_close_matches(name, known_settings(), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UserError(f"{f'{where}: ' if where else ''}there is no setting {name!r}{hint}")


@cache
def known_settings() -> dict[str, Any]:
    """Return the type of every setting by its dotted name."""

    def inside(kind: Any, prefix: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, hint in get_type_hints(kind).items():
            found |= inside(hint, f"{prefix}{name}.") if dataclasses.is_dataclass(hint) else {prefix + name: hint}
        return found

    return inside(TrainSettings, "")


def _held(kind: Any, value: Any) -> tuple[bool, Any]:
    """Return whether a value fits a type, and the value as settings hold it."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return next((found for part in parts if (found := _held(part, value))[0]), (False, value))
    if origin is Literal:
        return any(value == each and type(value) is type(each) for each in parts), value
    if origin is tuple:
        if not isinstance(value, list | tuple) or (parts[-1] is not Ellipsis and len(value) != len(parts)):
            return False, value
        items = [_held(parts[0], item) for item in value]
        return all(fits for fits, _ in items), tuple(item for _, item in items)
    if kind is type(None):
        return value is None, value
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool), value
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool), value
    if kind is str and isinstance(value, Path):
        return True, str(value)
    return isinstance(value, kind), value


def _words(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_words, parts))
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin is tuple:
        many = "a list" if parts[-1] is Ellipsis else f"{len(parts)}"
        return f"{many} of {_words(parts[0])}"
    return {str: "a text", bool: "true or false", int: "a whole number", float: "a number", type(None): "None"}[kind]
