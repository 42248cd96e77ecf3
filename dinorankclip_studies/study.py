"""Defines a study: cells, seeds, evaluation sets, and the tables made of them.

A cell is a named change of settings. A run is a cell with a seed; its key hashes the settings that its result depends
on. An experiment is a table: rows are cells, columns are scores, and one row is the reference of the others.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from dinorankclip.config import TrainSettings, as_dict, changed_at, with_changes
from dinorankclip.presets import for_method
from dinorankclip.stored_settings import (
    flatten,
    free_on_resume,
    idle_settings,
    is_among,
    meaning_of_absent,
)
from dinorankclip_studies.papers.paper_data import PaperValue

TUNING_SEED = 1000  # differs from all reported seeds


@dataclass(frozen=True)
class Numbers:
    """Holds numbers that stand in place of a study's own; None keeps the study's.

    epochs            of every cell; cells that train longer keep their ratio
    pairs             the most training pairs of any cell; epochs are then as short as the data
    sweep_epochs      of the sweeps over orders and amounts of data, in a study at the paper's scale
    ablation_epochs   of the ablations there, and ablation_pairs their training pairs
    """

    epochs: int | None = None
    pairs: int | None = None
    sweep_epochs: int | None = None
    ablation_epochs: int | None = None
    ablation_pairs: int | None = None


@dataclass(frozen=True)
class Cell:
    """Names a change of settings: `changes` are dotted names, {"loss.order": 2}, on top of the method's settings."""

    name: str
    method: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, base: TrainSettings, seed: int) -> TrainSettings:
        return dataclasses.replace(with_changes(for_method(base, self.method), self.changes), seed=seed)


@dataclass(frozen=True)
class Column:
    """Describes a column of scores in a table.

    `score` is a name in `RunRecord.scores`; with `percent` it is a share that is shown times 100. `over` is the share
    that the score was divided by: where that share is at chance, the quotient is meaningless and not shown.
    """

    score: str
    heading: str
    percent: bool = True
    better: Literal["higher", "lower"] | None = "higher"
    over: str | None = None


@dataclass(frozen=True)
class Row:
    """Describes the row of a cell in a table; `paper` maps column headings to the paper's values."""

    label: str
    cell: str
    paper: Mapping[str, PaperValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """Describes a table. Other rows are compared with the cell `reference`.

    `unmatched` lists the settings in which a cell differs from the reference on purpose; `note` says why.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    reference: str
    note: str = ""
    unmatched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Scenes:
    """Describes built-in scenes that are made before the first run; `others` are counts besides the usual ones."""

    folder: str
    train: int
    val: int
    test: int
    others: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """Holds a cell with a seed. `score`: if the evaluation sets are scored; tuning needs validation scores only."""

    cell: str
    seed: int
    settings: TrainSettings
    score: bool = True

    @cached_property
    def key(self) -> str:
        return key_of(self.settings)


@dataclass(frozen=True)
class Study:
    """Holds cells with seeds, the sets that every run is scored on, and the tables.

    seeds         cell → number of seeds (0, 1, …)
    grid          learning rates that are tried with every method; without a grid the base's rate holds
    rate_note     how the base's rate was chosen, where it was tuned elsewhere
    tuned_on      method → the cell that the grid is tried with; else the cell named as the method, or its first cell
    paper         the setting of the paper that the study stands for
    pairs         training pairs of an epoch; with `pair_seconds` of CLIP on one thread it gives first estimates
    gpus          GPUs of a run on a cluster
    file          the file that defines the study; empty for a study that has none
    """

    name: str
    title: str
    base: TrainSettings
    cells: tuple[Cell, ...]
    seeds: Mapping[str, int]
    sets: tuple[str, ...]
    experiments: tuple[Experiment, ...] = ()
    grid: tuple[float, ...] = ()
    rate_note: str = ""
    tuned_on: Mapping[str, str] = field(default_factory=dict)
    paper: str = ""
    pairs: int = 0
    pair_seconds: float = 0.0026
    scenes: Scenes | None = None
    gpus: int = 0
    file: str = ""

    @property
    def argument(self) -> str:
        """Return the argument by which `dinorankclip study` finds this study: its file, or its name."""
        return self.file or self.name

    def cell(self, name: str) -> Cell:
        return {cell.name: cell for cell in self.cells}[name]

    def with_seeds(self, seeds: int | None) -> Study:
        """Return the study with this many seeds of every cell; None keeps its own numbers."""
        return self if seeds is None else dataclasses.replace(self, seeds=dict.fromkeys(self.seeds, seeds))

    def on_at_most(self, pairs: int | None) -> Study:
        """Return the study with at most this many training pairs in any cell; epochs are then as short as the data."""
        if pairs is None or pairs >= self.pairs:
            return self
        few = {"reading.train_items": pairs, "reading.short_epochs": True}
        cells = tuple(
            dataclasses.replace(cell, changes={**cell.changes, **few})
            if (cell.settings(self.base, 0).reading.train_items or self.pairs) > pairs
            else cell
            for cell in self.cells
        )
        return dataclasses.replace(self, cells=cells)

    def pairs_of(self, settings: TrainSettings) -> int:
        """Return the pairs of an epoch of a run with these settings."""
        return settings.reading.train_items or self.pairs if settings.reading.short_epochs else self.pairs

    def tuned_methods(self) -> list[str]:
        """Return the methods whose learning rate must be tuned."""
        return list(dict.fromkeys(cell.method for cell in self.cells)) if self.grid else []

    def tuning(self) -> list[Run]:
        """Return one run for each method and learning rate."""
        runs = []
        for method in self.tuned_methods():
            candidates = [cell for cell in self.cells if cell.method == method]
            cell = next((cell for cell in candidates if cell.name == self.tuned_on.get(method, method)), candidates[0])
            for rate in self.grid:
                settings = changed_at(cell.settings(self.base, TUNING_SEED), "optim.lr", rate)
                runs.append(Run(cell.name, TUNING_SEED, settings, score=False))
        return runs

    def runs(self, rates: Mapping[str, float] | None = None) -> list[Run]:
        """Return all runs in the order in which they are made; `rates` maps methods to tuned learning rates.

        The order is seed by seed, cells with most seeds first. Cells are compared by paired seeds, so an interrupted
        study is balanced.
        """
        bases = {method: changed_at(self.base, "optim.lr", rate) for method, rate in (rates or {}).items()}
        most_seeds_first = sorted(self.cells, key=lambda cell: -self.seeds[cell.name])  # stable: the given order
        return [
            Run(cell.name, seed, cell.settings(bases.get(cell.method, self.base), seed))
            for seed in range(max(self.seeds.values(), default=0))
            for cell in most_seeds_first
            if seed < self.seeds[cell.name]
        ]


def distinct(runs: Iterable[Run]) -> list[Run]:
    """Keep the first run of each key: tables share cells, and different cells can have equal settings."""
    first: dict[str, Run] = {}
    for run in runs:
        first.setdefault(run.key, run)
    return list(first.values())


def key_of(settings: TrainSettings) -> str:
    """Return 12 hexadecimal digits that are equal for settings with the same result.

    Settings with the value that a run without the setting has are left out, so a setting that is added later does not
    change the key of finished runs. `preset` only says where values came from.
    """
    flat, absent = flatten(as_dict(settings)), meaning_of_absent()
    idle = tuple(idle_settings(flat))

    def is_free(name: str) -> bool:
        return name == "preset" or free_on_resume(name)

    relevant = {
        name: value
        for name, value in sorted(flat.items())
        if value != absent[name] and not is_among(name, idle) and not is_free(name)
    }
    return hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest()[:12]
