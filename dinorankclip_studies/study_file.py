"""Reads a study from one TOML file: cells, seeds, sets, tables, and claims whose power is planned before the runs.

    name = "margin"
    title = "A margin beside CLIP"
    seeds = 8                       # of every cell; a cell may have its own
    reference = "clip"              # the cell that the others are compared with
    sets = []                       # evaluation sets besides the held-out parts of the data
    preset = "scenes"               # also: recipe, data

    [scenes]                        # built-in scenes of a size of its own, in place of data
    train = 2000
    val = 500
    test = 500

    [settings]                      # of all cells, as in `train --config`
    budget.epochs = 8

    [cells.clip]
    method = "clip"

    [cells.margin]
    method = "margin"
    changes = { "optim.lr" = 1e-3 }

    [[claims]]
    id = "margin-helps"
    says = "The margin raises R@1 by two points."
    of = "margin"
    over = "clip"                   # or several cells: the claim holds if all comparisons do
    score = "val/mean R@1"
    effect = 2.0                    # the size that is claimed, in points
    spread = 1.5                    # expected standard deviation of the difference between seeds, in points

Without `[[tables]]` (name, title, rows, columns, reference, note, unmatched) there is one table of all cells. A claim
may also have: unit ("points", "degrees", "number"), less = true (a negative difference is claimed), rule = "all
equivalent" with margin. `dinorankclip study plan FILE` tells what the seeds can show.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from dinorankclip.checked_files import TABLE_BYTES, file_bytes
from dinorankclip.config import TrainSettings, with_changes
from dinorankclip.given_settings import checked, settings_from
from dinorankclip.io import home
from dinorankclip.types import UserError
from dinorankclip_studies.claim import AllEquivalent, AllHold, Claim, Contrast, in_unit
from dinorankclip_studies.quantities import gain
from dinorankclip_studies.study import Cell, Column, Experiment, Numbers, Row, Scenes, Study
from dinorankclip_studies.verdicts import ALPHA, FEWEST_SEEDS, POWER, Unit, detectable

MOST_SEEDS = 200  # more are not proposed
# A study has many small runs: one thread each, and a checkpoint at each epoch's end. `[settings]` may change this.
SMALL_RUNS = {"budget.threads": 1, "record.save_every": 1_000_000, "record.keep": 1, "record.tensorboard": False}
NO_CLASSES = dict.fromkeys(("kinds_train", "kinds_test", "fine_train", "fine_test"), 0)
_KEYS = {
    "": {"name", "title", "seeds", "reference", "sets", "preset", "recipe", "data", "pairs", "columns", "scenes",
         "settings", "cells", "tables", "claims"},
    "scenes": {"train", "val", "test", "classes"},
    "cells": {"method", "changes", "seeds", "label"},
    "tables": {"name", "title", "rows", "columns", "reference", "note", "unmatched"},
    "claims": {"id", "says", "of", "over", "score", "effect", "spread", "unit", "less", "rule", "margin"},
}  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_POINTS = ("points", "points a step")


@dataclass(frozen=True)
class PlannedPower:
    """Holds what the seeds of a claim can show: `spread`, `effect` and the result in the unit's own size (a point is
    0.01)."""

    claim: str
    seeds: int
    spread: float
    effect: float | None
    unit: Unit
    family: int = 1

    @property
    def visible(self) -> float | None:
        """Return the smallest difference that the seeds show in 80 % of studies; None for too few seeds."""
        return self._visible(self.seeds)

    def _visible(self, seeds: int) -> float | None:
        return None if seeds < FEWEST_SEEDS else detectable(self.spread, seeds, level=1 - ALPHA / self.family)

    @property
    def needed(self) -> int | None:
        """Return the number of seeds that would show the claimed effect; None without one, or beyond MOST_SEEDS."""
        if self.effect is None:
            return None
        counts = range(FEWEST_SEEDS, MOST_SEEDS + 1)
        return next((n for n in counts if (self._visible(n) or 0.0) <= self.effect), None)

    def words(self) -> str:
        if self.visible is None:
            return f"{self.claim}: {self.seeds} seeds show nothing; at least {FEWEST_SEEDS} are needed"
        text = (
            f"{self.claim}: with {self.seeds} seeds you will see {in_unit(self.visible, self.unit)} "
            f"({100 * POWER:.0f} % power, spread between seeds {in_unit(self.spread, self.unit)}"
            + (f", {self.family} comparisons)" if self.family > 1 else ")")
        )
        if self.effect is None:
            return text
        claimed = f"; the claim says {in_unit(self.effect, self.unit)}"
        if self.visible <= self.effect:
            return f"{text}{claimed}: enough"
        more = f"{self.needed} seeds would show it" if self.needed else f"not even {MOST_SEEDS} seeds would show it"
        return f"{text}{claimed}: TOO FEW, {more}"


@dataclass(frozen=True)
class StudyFile:
    """Holds a study with its claims and their power, as a file defines them; `text` is the file."""

    study: Study
    claims: tuple[Claim, ...]
    power: tuple[PlannedPower, ...]
    text: str


def read_study_file(path: str | Path, numbers: Numbers = Numbers()) -> StudyFile:  # noqa: B008 (frozen)
    """Read a study; raise `UserError` that names the file and the entry that is wrong."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no study file {path}")
    text = file_bytes(path, TABLE_BYTES).decode("utf-8", "replace")
    try:
        return _Reader(path, tomllib.loads(text), numbers).read(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is no TOML: {error}") from None


class _Reader:
    def __init__(self, path: Path, entries: dict[str, Any], numbers: Numbers) -> None:
        self.path, self.entries, self.numbers = path, entries, numbers

    def read(self, text: str) -> StudyFile:
        self._check_keys("", self.entries)
        for group in ("scenes", "cells", "tables", "claims"):
            inside = self.entries.get(group, {})
            for entry in inside.values() if group == "cells" else [inside] if group == "scenes" else inside:
                self._check_keys(group, entry)
        name = self._text(self.entries, "name")
        if not _NAME.fullmatch(name):
            raise self._wrong(f"name {name!r} becomes a folder: letters, digits, - _ and . alone")
        study = self._study(name)
        claims, power = [], []
        for entry in self.entries.get("claims", []):
            claim, planned = self._claim(entry, study)
            claims.append(claim)
            power.append(planned)
        return StudyFile(study, tuple(claims), tuple(power), text)

    def _study(self, name: str) -> Study:
        cells, seeds = [], {}
        for cell, entry in self.entries.get("cells", {}).items():
            cells.append(
                Cell(cell, self._text(entry, "method", f"cells.{cell}"), self._settings(entry.get("changes", {})))
            )
            seeds[cell] = self._count(entry.get("seeds", self.entries.get("seeds", 3)), f"cells.{cell}: seeds")
        if not cells:
            raise self._wrong("it has no cells: [cells.NAME] with a method")
        scenes = self._scenes()
        study = Study(
            name,
            self._text(self.entries, "title"),
            self._base(scenes),
            tuple(cells),
            seeds,
            self._sets(scenes),
            pairs=scenes.train if scenes else self.entries.get("pairs", 0),
            scenes=scenes,
            file=str(self.path),
        )
        study = replace(study, experiments=self._tables(study))
        for each in cells:
            try:
                each.settings(study.base, 0)
            except UserError as error:
                raise self._wrong(f"cells.{each.name}: {error}") from None
        return study.on_at_most(self.numbers.pairs)

    def _base(self, scenes: Scenes | None) -> TrainSettings:
        given: dict[str, Any] = {key: self.entries[key] for key in ("preset", "recipe", "data") if key in self.entries}
        base = with_changes(settings_from(given), SMALL_RUNS | ({"data": f"{scenes.folder}/pairs"} if scenes else {}))
        base = with_changes(base, self._settings(self.entries.get("settings", {})))
        return base if self.numbers.epochs is None else with_changes(base, {"budget.epochs": self.numbers.epochs})

    def _settings(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return checked(values, str(self.path))

    def _scenes(self) -> Scenes | None:
        entry = self.entries.get("scenes")
        if entry is None:
            return None
        if "data" in self.entries:
            raise self._wrong("data and [scenes]: a study has one of the two")
        counts = {part: self._count(entry.get(part, 0), f"scenes: {part}") for part in ("train", "val", "test")}
        classes = entry.get("classes", True)
        folder = home() / f"scenes-{'-'.join(map(str, counts.values()))}{'' if classes else '-pairs'}"
        return Scenes(str(folder), **counts, others={} if classes else NO_CLASSES)

    def _sets(self, scenes: Scenes | None) -> tuple[str, ...]:
        if "sets" in self.entries:
            return tuple(self.entries["sets"])
        return () if scenes is None else (scenes.folder if not scenes.others else f"{scenes.folder}/pairs",)

    def _tables(self, study: Study) -> tuple[Experiment, ...]:
        names = [cell.name for cell in study.cells]
        reference = self.entries.get("reference", names[0])
        scores = list(dict.fromkeys(entry["score"] for entry in self.entries.get("claims", []) if "score" in entry))
        columns = self.entries.get("columns") or scores or ["val/mean R@1"]
        labels = {name: entry.get("label", name) for name, entry in self.entries["cells"].items()}
        whole = {"name": "main", "title": study.title, "rows": names}
        tables: list[Experiment] = []
        for entry in self.entries.get("tables") or [whole]:
            where = f"table {entry.get('name', len(tables) + 1)}"
            for cell in (*entry.get("rows", names), entry.get("reference", reference)):
                if cell not in names:
                    raise self._wrong(f"{where}: there is no cell {cell!r}, only {', '.join(names)}")
            tables.append(
                Experiment(
                    self._text(entry, "name", where),
                    self._text(entry, "title", where),
                    tuple(Row(labels[cell], cell) for cell in entry.get("rows", names)),
                    tuple(map(_column, entry.get("columns", columns))),
                    entry.get("reference", reference),
                    entry.get("note", ""),
                    {cell: tuple(settings) for cell, settings in entry.get("unmatched", {}).items()},
                )
            )
        return tuple(tables)

    def _claim(self, entry: Mapping[str, Any], study: Study) -> tuple[Claim, PlannedPower]:
        where = f"claim {entry.get('id', '?')}"
        of, score = self._text(entry, "of", where), self._text(entry, "score", where)
        overs = entry.get("over")
        overs = [overs] if isinstance(overs, str) else overs or []
        for cell in (of, *overs):
            if cell not in study.seeds:
                raise self._wrong(f"{where}: there is no cell {cell!r}, only {', '.join(study.seeds)}")
        if not overs:
            raise self._wrong(f"{where}: `over` must name the cell, or the cells, that it is compared with")
        unit: Unit = entry.get("unit", "points")
        if unit not in get_args(Unit):
            raise self._wrong(f"{where}: unit {unit!r}: there are {', '.join(get_args(Unit))}")
        factor = 0.01 if unit in _POINTS else 1.0
        if not isinstance(entry.get("spread"), int | float) or entry["spread"] <= 0:
            raise self._wrong(
                f"{where}: `spread`, the expected standard deviation of the difference between seeds, must be given: "
                "power is planned before the runs (a few runs of seeds that are not reported measure it)"
            )
        effect = factor * entry["effect"] if "effect" in entry else None
        direction: Literal[1, -1] = -1 if entry.get("less") else 1
        contrasts = tuple(
            Contrast(f"{of} - {over}, {score}", gain(of, over, score), direction, effect, unit) for over in overs
        )
        rule = entry.get("rule", "all hold")
        if rule not in ("all hold", "all equivalent"):
            raise self._wrong(f"{where}: rule {rule!r}: there are all hold, all equivalent")
        if rule == "all equivalent" and "margin" not in entry:
            raise self._wrong(f"{where}: an equivalence needs a margin, in {unit}")
        judge = AllHold(contrasts) if rule == "all hold" else AllEquivalent(contrasts, factor * entry["margin"])
        tables = tuple(t.name for t in study.experiments if {of, *overs} <= {row.cell for row in t.rows})
        place = f"planned in {self.path.name}"
        claim = Claim(self._text(entry, "id", where), self._text(entry, "says", where), place, tables, judge)
        seeds = min(study.seeds[cell] for cell in (of, *overs))
        return claim, PlannedPower(claim.id, seeds, factor * entry["spread"], effect, unit, len(contrasts))

    def _check_keys(self, group: str, entry: Any) -> None:
        if not isinstance(entry, Mapping):
            raise self._wrong(f"{group}: a table of entries is expected")
        if unknown := sorted(entry.keys() - _KEYS[group]):
            known = ", ".join(sorted(_KEYS[group]))
            raise self._wrong(f"{group + ': ' if group else ''}there is no {unknown[0]!r}; there are {known}")

    def _text(self, entry: Mapping[str, Any], key: str, where: str = "") -> str:
        if not isinstance(entry.get(key), str):
            raise self._wrong(f"{where + ': ' if where else ''}{key} must be a text")
        return entry[key]

    def _count(self, value: Any, what: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._wrong(f"{what} must be a whole number of at least 1, not {value!r}")
        return value

    def _wrong(self, text: str) -> UserError:
        return UserError(f"{self.path}: {text}")


def _column(entry: str | Mapping[str, Any]) -> Column:
    """Return a column from a score's name, or from score, heading, percent and better."""
    if isinstance(entry, str):
        return Column(entry, entry)
    return Column(
        entry["score"], entry.get("heading", entry["score"]), entry.get("percent", True), entry.get("better", "higher")
    )
