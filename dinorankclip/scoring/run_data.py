"""What a run was trained on, read from its folder: the data, and how its pairs were found and divided."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dinorankclip.config import FindingSettings
from dinorankclip.data.benchmark_sets import Place
from dinorankclip.data.opening import PAIRS, SCENES, located, splits_of
from dinorankclip.run_files import is_run, read_settings

DIVIDING = ("val_fraction", "val_most", "group_column", "epoch_samples")  # what decides which images are set aside
NONE_HELD_OUT = "the model was trained on these pairs"
OTHERS_HELD_OUT = "divided in another way than for the model's training: it was trained on some of these pairs"


@dataclass(frozen=True)
class RunData:
    where: str
    reading: FindingSettings

    def is_same(self, where: str) -> bool:
        """Whether a user who types `where` means this data."""
        return where == self.where or _path(where) == _path(self.where)

    def reading_for(self, asked: FindingSettings) -> FindingSettings:
        """The run's own reading, but for what was asked for."""
        usual = FindingSettings()
        names = [each.name for each in dataclasses.fields(usual)]
        changed = {name: getattr(asked, name) for name in names if getattr(asked, name) != getattr(usual, name)}
        return dataclasses.replace(self.reading, **changed)

    def caution(self, place: Place, split: str | None) -> str:
        """What must be said of scores of this run on a part of `place`; "" if it has not seen that part."""
        if not self.is_same(place.where):
            return ""
        if split in ("train", "all"):
            return NONE_HELD_OUT
        own = splits_of(place.where, place.reading)
        if own != ("all",) and (split is None or split in own):
            return ""  # a part of its own, which no setting divides
        same = all(getattr(place.reading, name) == getattr(self.reading, name) for name in DIVIDING)
        return "" if same else OTHERS_HELD_OUT


def _path(where: str) -> Path:
    """Where pairs lie; built-in ones are not made for the sake of this question."""
    return (SCENES / PAIRS if where == "scenes" else Path(located(where))).resolve()


def run_data(model: str | Path) -> RunData | None:
    """Of a run, or of the run that a checkpoint belongs to; None of other models."""
    path = Path(model)
    for folder in (path, *path.absolute().parents[:2]) if path.is_dir() else ():  # RUN/checkpoints/last
        if is_run(folder):
            settings = read_settings(folder)
            return RunData(str(settings["data"]), stored_reading(settings["reading"]))
    return None


def stored_reading(stored: dict[str, Any]) -> FindingSettings:
    """Settings that this version does not know are left out."""
    known = {each.name for each in dataclasses.fields(FindingSettings)}
    return FindingSettings(**{name: value for name, value in stored.items() if name in known})
