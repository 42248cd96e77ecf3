"""What a table of the study is made of: rows are cells, columns are scores, one row is what the others pair against."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from dinorankclip.config import FREE_ON_RESUME, TrainSettings, as_dict, changed_at, flatten, idle_groups, with_changes
from dinorankclip.presets import for_method
from dinorankclip_studies.papers.dinorankclip.paper_values import PaperValue


@dataclass(frozen=True)
class Column:
    """`score` is a name in `RunRecord.scores`. Percent: a share, shown times 100. `over`: the share that it is divided
    by; where that is at chance, the quotient says nothing and is not shown."""

    score: str
    heading: str
    percent: bool = True
    better: Literal["higher", "lower"] | None = "higher"
    over: str | None = None


@dataclass(frozen=True)
class Row:
    """`paper`: column heading → the paper's value, where it has one (shown under its label)."""

    label: str
    cell: str
    paper: Mapping[str, PaperValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """`reference` is the cell to pair against; `unmatched` cells knowingly differ from it in the settings named there,
    and `note` says why."""

    name: str
    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    reference: str
    note: str = ""
    unmatched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


# -------- cells
# A cell of a study: a named change of settings. A run is a cell with a seed; its key is what its result depends on.


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


# -------- outline
# What a study is: cells, seeds, the sets every run is scored on, and the tables made of it.
#
# Order of the runs: seed by seed, decisive cells first. A study that is interrupted is balanced all the same, since
# cells are compared by paired seeds.

TUNING_SEED = 1000  # apart from every seed that is reported
# The cell that stands for its method when learning rates are tried.
TUNED_ON = {"rank": "rank-3", "dinorankclip": "full"}


@dataclass(frozen=True)
class Scenes:
    """Built-in scenes of a study's own size, made before the first run; `others`: counts beside the usual ones."""

    folder: str
    train: int
    val: int
    test: int
    others: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """A cell with a seed, and all settings. `score`: whether the sets are scored too; tuning wants validation only."""

    cell: str
    seed: int
    settings: TrainSettings
    score: bool = True

    @cached_property
    def key(self) -> str:
        return key_of(self.settings)


@dataclass(frozen=True)
class Study:
    """`seeds`: cell → how many (0, 1, …). `grid`: learning rates tried with every method, by validation only;
    without one, the base's rate holds. `pairs` of an epoch and `pair_seconds` of CLIP on one thread are for first
    estimates; `gpus` are those of a run on a cluster; `paper`: what setting of it the study stands for."""

    name: str
    title: str
    base: TrainSettings
    cells: tuple[Cell, ...]
    seeds: Mapping[str, int]
    sets: tuple[str, ...]
    experiments: tuple[Experiment, ...] = ()
    grid: tuple[float, ...] = ()
    paper: str = ""
    pairs: int = 0
    pair_seconds: float = 0.0026
    scenes: Scenes | None = None
    gpus: int = 0

    def cell(self, name: str) -> Cell:
        return {cell.name: cell for cell in self.cells}[name]

    def untuned(self) -> list[str]:
        """Methods whose learning rate must be found first."""
        methods = dict.fromkeys(cell.method for cell in self.cells)
        return list(methods) if self.grid else []

    def tuning(self) -> list[Run]:
        """One run for each method and rate."""
        runs = []
        for method in self.untuned():
            of_method = [cell for cell in self.cells if cell.method == method]
            cell = next((one for one in of_method if one.name == TUNED_ON.get(method, method)), of_method[0])
            for rate in self.grid:
                settings = changed_at(cell.settings(self.base, TUNING_SEED), "optim.lr", rate)
                runs.append(Run(cell.name, TUNING_SEED, settings, score=False))
        return runs

    def runs(self, rates: Mapping[str, float] | None = None) -> list[Run]:
        """All runs, in the order in which they are made; `rates` are those that tuning found."""
        known = rates or {}
        return [
            Run(cell.name, seed, cell.settings(self._at(known.get(cell.method)), seed))
            for cell, seed in self._balanced()
        ]

    def _at(self, rate: float | None) -> TrainSettings:
        return self.base if rate is None else changed_at(self.base, "optim.lr", rate)

    def _balanced(self) -> Iterator[tuple[Cell, int]]:
        most_seeds_first = sorted(self.cells, key=lambda cell: -self.seeds[cell.name])  # stable: the given order
        for seed in range(max(self.seeds.values(), default=0)):
            yield from ((cell, seed) for cell in most_seeds_first if seed < self.seeds[cell.name])


def once(runs: Iterable[Run]) -> list[Run]:
    """Without the runs that another one is equal to: cells that several tables share, or that end up the same."""
    first: dict[str, Run] = {}
    for run in runs:
        first.setdefault(run.key, run)
    return list(first.values())
