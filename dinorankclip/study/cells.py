"""A cell of a study: a named change of settings. A run is a cell with a seed; its key is what its result depends on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dinorankclip.config import TrainSettings, as_dict, with_changes
from dinorankclip.presets import for_method
from dinorankclip.settings_difference import FREE_ON_RESUME, flatten, idle_groups


@dataclass(frozen=True)
class Cell:
    """`changes` are dotted names of settings, {"loss.order": 2}, on top of what the method brings."""

    name: str
    method: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, base: TrainSettings, seed: int) -> TrainSettings:
        return dataclasses.replace(with_changes(for_method(base, self.method), self.changes), seed=seed)


def telling(settings: TrainSettings) -> dict[str, Any]:
    """The settings that the result depends on and that are not the default, by dotted name.

    What equals the default is left out, so that a setting added later does not give finished runs another key.
    """
    flat, usual = flatten(as_dict(settings)), flatten(as_dict(TrainSettings()))
    idle = idle_groups(flat)
    return {
        name: value
        for name, value in sorted(flat.items())
        if value != usual[name] and name.split(".")[0] not in idle and not _is_free(name)
    }


def key_of(settings: TrainSettings) -> str:
    """12 hexadecimal digits: equal for settings that give the same result."""
    return hashlib.sha256(json.dumps(telling(settings), sort_keys=True).encode()).hexdigest()[:12]


def from_dict(stored: Mapping[str, Any]) -> TrainSettings:
    """Settings from `as_dict` that went through JSON; what an older file lacks has its default."""
    return _filled(TrainSettings(), stored)


def _filled(default: Any, stored: Mapping[str, Any]) -> Any:
    values: dict[str, Any] = {}
    for known in dataclasses.fields(default):
        if known.name in stored:
            usual, value = getattr(default, known.name), stored[known.name]
            if dataclasses.is_dataclass(usual):
                value = _filled(usual, value)
            values[known.name] = tuple(value) if isinstance(value, list) else value
    return dataclasses.replace(default, **values)


def _is_free(name: str) -> bool:
    # `preset` only says where the values came from.
    return name == "preset" or any(
        name == free or (free.endswith(".") and name.startswith(free)) for free in FREE_ON_RESUME
    )
