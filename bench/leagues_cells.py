"""Reads leagues_cells.toml: worlds, budgets, and groups of cells (changes of settings) that are compared."""

from __future__ import annotations

import hashlib
import json
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dinorankclip.config import TrainSettings, with_changes
from dinorankclip.methods import AUTO
from dinorankclip.presets import default_settings
from dinorankclip.types import UserError
from dinorankclip.validate import validated

CELLS = Path(__file__).parent / "leagues_cells.toml"
ABOUT, SHARED = "about", "shared"
COST_OF = "cost_of"
OWN = ("method", "recipe", "locked", COST_OF)  # entries of a cell that are no dotted settings
# Every run of a league: one core, no reading processes, no files that nobody reads.
PLAIN = {"reading.workers": 0, "budget.threads": 1, "budget.device": "cpu", "record.tensorboard": False}
PLAIN |= {"record.log_every": 100, "record.save_every": 1_000_000, "record.keep": 1}


@dataclass(frozen=True)
class Cell:
    """Names changes of settings on top of preset, method and recipe."""

    name: str
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Return the identity of the changes: cells of equal changes share their runs, whatever their names."""
        own = {name: value for name, value in self.changes.items() if (name, value) != ("method", "clip")}
        own.pop(COST_OF, None)
        return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:10]

    @property
    def cost_digest(self) -> str:
        """Return the identity of the cell whose measured cost holds for this one, too."""
        return self.of_cost.digest

    @property
    def of_cost(self) -> Cell:
        """Return the cell whose steps are measured for this one."""
        same = self.changes.get(COST_OF)
        return self if same is None else Cell(f"{self.name} ({COST_OF})", same)

    @property
    def locked(self) -> bool:
        """Return whether the teacher is the frozen image tower (locked.py)."""
        return bool(self.changes.get("locked", False))

    def settings(self, world: World, data: str, seed: int = 0, steps: int | None = None) -> TrainSettings:
        """Return the settings of a run; `distil.cache` may still be `auto`."""
        recipe = self.changes.get("recipe")
        method = self.changes.get("method", None if recipe else "clip")
        own = {name: value for name, value in (world.changes | self.changes).items() if name not in OWN}
        own = {name: None if value == "absent" else _frozen(value) for name, value in own.items()}
        base = default_settings(world.preset, method, recipe)
        return validated(with_changes(base, PLAIN | {"data": data, "seed": seed, "budget.steps": steps} | own))

    def uses_teacher(self, world: World) -> bool:
        return self.settings(world, "scenes").distil.cache == AUTO


@dataclass(frozen=True)
class World:
    """Describes data: the preset, the settings that hold for every cell, and budgets in core-seconds by name."""

    name: str
    preset: str
    changes: dict[str, Any]
    budgets: dict[str, float]

    def budget(self, name: str) -> float:
        """Return core-seconds of a budget: a name of the file, or a number."""
        try:
            return self.budgets[name] if name in self.budgets else float(name)
        except ValueError:
            raise UserError(
                f"--budget {name}: {self.name} has {', '.join(self.budgets)}, or give core-seconds as a number"
            ) from None


@dataclass(frozen=True)
class Group:
    """Holds the cells of a group, the cell that the others are compared with, and the champion with its rivals.

    champion  a cell that is also compared with every cell of the groups `rivals`
    """

    name: str
    title: str
    cells: dict[str, Cell]
    reference: str
    note: str = ""
    champion: str | None = None
    rivals: tuple[str, ...] = ()


@dataclass(frozen=True)
class Leagues:
    worlds: dict[str, World]
    groups: dict[str, Group]
    reference: Cell  # cost ratios are relative to this cell

    def group(self, name: str) -> Group:
        """Return the group called GROUP; for GROUP/CELL the group with that cell alone."""
        name, _, cell = name.partition("/")
        if name not in self.groups:
            raise UserError(f"there is no group {name} of cells; there are {', '.join(self.groups)}")
        group = self.groups[name]
        if not cell:
            return group
        if cell not in group.cells:
            raise UserError(f"group {name} has no cell {cell}; it has {', '.join(group.cells)}")
        return replace(group, cells={cell: group.cells[cell]})


def read_leagues(path: Path = CELLS) -> Leagues:
    """Read the file; tables other than `worlds` and `reference` are groups."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    worlds = {
        name: World(name, entry["preset"], entry.get("settings", {}), entry.get("budgets", {}))
        for name, entry in table.pop("worlds").items()
    }
    reference = Cell("reference", table.pop("reference"))
    return Leagues(worlds, {name: _group(name, entry) for name, entry in table.items()}, reference)


def _group(name: str, table: dict[str, Any]) -> Group:
    about, shared = table.pop(ABOUT), table.pop(SHARED, {})
    cells = {cell: Cell(cell, shared | changes) for cell, changes in table.items()}
    champion, rivals = about.get("champion"), tuple(about.get("rivals", ()))
    return Group(name, about["title"], cells, about["reference"], about.get("note", ""), champion, rivals)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
