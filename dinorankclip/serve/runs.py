"""Lists runs and their curves as they grow. A run is named by a digest of its place, never by a path."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from dinorankclip.io import digest
from dinorankclip.methods import title_of_stored
from dinorankclip.run_files import ENDED, METRICS, SCORES, is_run, read_metrics, read_object, read_settings
from dinorankclip.serve.answers import Refused, shown
from dinorankclip.types import UserError

DEPTH = 3  # folders below that are searched: a study has its runs two levels down
MOST_RUNS = 500
MOST_POINTS = 1500  # of a curve
FRESH = 180.0  # seconds since the last line of a log in which a run counts as running
LAST = ("loss", "val/mean R@1", "val/t2i R@1", "logit_scale", "epoch")


class Runs:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._summaries: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def all(self) -> list[dict[str, Any]]:
        """Return a summary of every run, the one that was logged to last first."""
        found = sorted(self._places(), key=lambda run: -_changed(run))[:MOST_RUNS]
        return [self._summary(run) for run in found]

    def curves(self, id: str) -> dict[str, Any]:
        """Return all numbers of a run's log by name, thinned to a bounded number of points."""
        run = next((place for place in self._places() if self._id(place) == id), None)
        if run is None:
            raise Refused(404, f"there is no run {id}")
        series: dict[str, list[list[float]]] = {}
        for line in read_metrics(run):
            if not isinstance(line.get("step"), int):
                continue
            for name, value in line.items():
                if name not in ("step", "time") and isinstance(value, int | float) and math.isfinite(value):
                    series.setdefault(name, []).append([line["step"], float(value)])
        return {"series": {name: _thinned(points) for name, points in series.items()}}

    def changed(self, known: dict[str, tuple[float, str]]) -> list[dict[str, Any]]:
        """Return summaries of runs that differ from `known`, which is brought up to date."""
        found = []
        for run in self._places():
            id, now = self._id(run), (_changed(run), _state(run))
            if known.get(id) != now:
                known[id] = now
                found.append(self._summary(run))
        return found

    def _places(self) -> list[Path]:
        found: list[Path] = []

        def look(folder: Path, depth: int) -> None:
            try:
                below = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink())
            except OSError:
                return
            for entry in below:
                if is_run(entry):
                    found.append(entry)
                elif depth > 1 and not entry.name.startswith("."):
                    look(entry, depth - 1)

        look(self._folder, DEPTH)
        return found

    def _id(self, run: Path) -> str:
        return digest(run.relative_to(self._folder))[:12]

    def _summary(self, run: Path) -> dict[str, Any]:
        id, seen = self._id(run), (_changed(run), _state(run))
        if self._summaries.get(id, (None,))[0] != seen:
            self._summaries[id] = seen, self._read(id, run)
        return self._summaries[id][1]

    def _read(self, id: str, run: Path) -> dict[str, Any]:
        lines = [line for line in read_metrics(run) if isinstance(line.get("step"), int)]
        try:
            settings = read_settings(run)
        except (UserError, OSError):
            settings = {}
        last: dict[str, float] = {}
        for line in lines:
            last |= {name: line[name] for name in LAST if isinstance(line.get(name), int | float)}
        return {
            "id": id,
            "name": shown(run.relative_to(self._folder).as_posix()),
            "state": _state(run),
            "step": lines[-1]["step"] if lines else 0,
            "steps": _steps(settings, lines),
            "method": title_of_stored(settings) if settings else "unknown",
            "last": last,
        }


def _changed(run: Path) -> float:
    try:
        return (run / METRICS).stat().st_mtime
    except OSError:
        return 0.0


def _state(run: Path) -> str:
    """Return finished, stopped, failed, diverged, running, or silent: neither ended nor logged to for a while."""
    try:
        if (run / ENDED).is_file():
            return str(read_object(run / ENDED).get("how", "stopped"))
        if (run / SCORES).is_file() and "step" in read_object(run / SCORES):
            return "finished"
    except (UserError, OSError):
        return "unknown"
    return "running" if time.time() - _changed(run) < FRESH else "silent"


def _steps(settings: dict[str, Any], lines: list[dict[str, Any]]) -> int | None:
    """Return the steps of the whole run: as set, or inferred from a logged step and epoch."""
    budget = settings.get("budget", {})
    if budget.get("steps"):
        return int(budget["steps"])
    for line in reversed(lines):
        if line.get("epoch", 0) > 0 and line["step"] > 1 and budget.get("epochs"):
            return round((line["step"] - 1) / line["epoch"] * budget["epochs"])
    return None


def _thinned(points: list[list[float]]) -> list[list[float]]:
    """Return at most `MOST_POINTS` points, evenly spaced, the last one among them."""
    stride = -(-len(points) // MOST_POINTS)
    return points[::-1][::stride][::-1]
