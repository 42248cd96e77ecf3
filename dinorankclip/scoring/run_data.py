"""What a run was trained on, read from its folder: the data, and how its pairs were found and divided."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dinorankclip.config import ReadingSettings

CONFIG = "config.json"


@dataclass(frozen=True)
class RunData:
    where: str
    reading: ReadingSettings

    def is_same(self, where: str) -> bool:
        """Whether a user who types `where` means this data."""
        return where == self.where or Path(where).resolve() == Path(self.where).resolve()


def run_data(model: str | Path) -> RunData | None:
    """Of a run, or of the run that a checkpoint belongs to; None of other models."""
    path = Path(model)
    for folder in (path, *path.parents[:2]):  # RUN/checkpoints/last
        if (folder / CONFIG).is_file():
            settings = json.loads((folder / CONFIG).read_text())
            if "reading" in settings and "data" in settings:
                return RunData(settings["data"], stored_reading(settings["reading"]))
    return None


def stored_reading(stored: dict[str, Any]) -> ReadingSettings:
    return ReadingSettings(**{name: tuple(v) if isinstance(v, list) else v for name, v in stored.items()})
