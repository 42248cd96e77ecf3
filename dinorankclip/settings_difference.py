"""What differs between the settings of two runs, and matters to their results."""

from __future__ import annotations

from typing import Any

from dinorankclip.config import TrainSettings, as_dict

# Settings that may change between a run and its resumption, because the result does not depend on them (chunks and
# threads: up to rounding; workers: unless they share `pipe:` shards, which pretrain/changes.py looks at).
FREE_ON_RESUME = (
    "run", "reading.workers", "reading.patience", "reading.max_damaged", "budget.threads", "budget.chunk", "record.",
)  # fmt: skip


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{'a': {'b': 1}} → {'a.b': 1}"""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = list(value) if isinstance(value, tuple) else value
    return flat


def difference(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Lines `name: old → new` for every setting that matters to the result and differs."""
    # A run of a version that lacked a setting was made with its default.
    defaults = flatten(as_dict(TrainSettings()))
    old, new = defaults | flatten(old), defaults | flatten(new)
    lines = []
    idle = idle_groups(old) & idle_groups(new)
    for name in sorted(old.keys() | new.keys()):
        if name.split(".")[0] in idle:
            continue
        if any(name == free or (free.endswith(".") and name.startswith(free)) for free in FREE_ON_RESUME):
            continue
        if old.get(name) != new.get(name):
            lines.append(f"{name}: {old.get(name)} → {new.get(name)}")
    return lines


def idle_groups(flat: dict[str, Any]) -> set[str]:
    """Groups of settings that do not matter: of students and fusion, when there are none."""
    fused = flat.get("fusion.variant", "none") != "none"
    return (set() if fused else {"fusion"}) | (set() if fused or flat.get("distil.cache") else {"distil"})
