"""What keeps a run from going on: settings that were others when it began, as they act on their machines and data."""

from __future__ import annotations

from typing import Any

from dinorankclip.config import ReadingSettings
from dinorankclip.settings_difference import difference


def changes(old: dict[str, Any], new: dict[str, Any], old_precision: str | None, precision: str) -> list[str]:
    """Lines `name: old → new`. Precisions are what `auto` came to when the run began (None: a version that did not
    write it down) and comes to here."""
    lines = difference(old, new)
    if old_precision is not None:
        lines = difference(_computing_in(old, old_precision), _computing_in(new, precision))
        if new["budget"]["precision"] == "auto":
            advice = f" (auto means {precision} here; add --budget.precision {old_precision})"
            lines = [line + advice if line.startswith("budget.precision:") else line for line in lines]
    before, now = _streams(old), _streams(new)
    if before != now and str(new["data"]).startswith("pipe:"):
        lines.append(f"reading.workers: {before} → {now} (they take turns at pipe: shards: others give other batches)")
    return lines


def _computing_in(settings: dict[str, Any], precision: str) -> dict[str, Any]:
    return settings | {"budget": settings["budget"] | {"precision": precision}}


def _streams(settings: dict[str, Any]) -> int:
    """How many streams of shards a process has: without a worker it reads the one itself."""
    return max(1, settings["reading"].get("workers", ReadingSettings.workers))
