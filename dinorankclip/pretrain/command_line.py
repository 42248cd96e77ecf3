"""The `dinorankclip train` command that gives some settings, to be named in advice and pasted back."""

from __future__ import annotations

import shlex
from typing import Any

from dinorankclip.config import as_dict
from dinorankclip.presets import for_method, preset
from dinorankclip.settings_difference import flatten


def train_command(settings: dict[str, Any], *more: str) -> str:
    """`settings` as in a run's config.json; `more` are flags behind them. Only what differs from the preset is said."""
    base = preset(settings["preset"])
    usual = flatten(as_dict(for_method(base, settings["method"])))
    words = ["dinorankclip", "train", "--preset", settings["preset"]]
    words += ["--method", settings["method"]] if settings["method"] != base.method else []
    asked = flatten(settings)
    for name, value in usual.items():
        if name not in ("preset", "method") and asked.get(name, value) != value:
            words += _flag(name, asked[name])
    return shlex.join([*words, *more])


def _flag(name: str, value: Any) -> list[str]:
    """`("optim.lr", 0.1)` → `--optim.lr 0.1`; a switch is its name alone, with `no-` if it is off."""
    flag = f"--{name}".replace("_", "-")
    if isinstance(value, bool):
        group, dot, last = flag.removeprefix("--").rpartition(".")
        return [flag if value else f"--{group}{dot}no-{last}"]
    return [flag, *map(str, value)] if isinstance(value, list) else [flag, str(value)]
