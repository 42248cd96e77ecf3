"""Lists the paper's evaluation sets: where each is published or which command packs it, and its expected size.

A set that the user names as in the catalogue (`food101`, or `wds_food101` as published) must have the catalogue's
counts: a set that lacks a shard would give a number that looks like the real one. A folder that the user names by its
path may hold any part of a set; if it has the name of a listed set, but not its size, scores get a note.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from dinorankclip.data.benchmark_sets import BenchmarkSet, SetLocation
from dinorankclip.evaluate.zero_shot import Shift
from dinorankclip.types import UserError

FILE = Path(__file__).with_name("catalogue.json")


@dataclass(frozen=True)
class Listed:
    """Describes one set of the catalogue; `sizes` are the accepted counts of images of each part."""

    name: str
    title: str
    tasks: tuple[str, ...]
    classes: int | None = None
    sizes: dict[str, list[int]] = field(default_factory=dict)
    counts_from: str = ""  # source of `sizes`
    published: str | None = None
    packed_by: str | None = None
    note: str = ""

    @property
    def folder_names(self) -> tuple[str, ...]:
        """Return the names that the folder of the set may have."""
        published = self.published.rpartition("/")[2] if self.published else ""
        return tuple(dict.fromkeys(name for name in (self.name, published, published.removeprefix("wds_")) if name))

    @property
    def source(self) -> str:
        """Return the command that gets or packs the set."""
        if self.packed_by:
            return self.packed_by
        return f"hf download {self.published} --repo-type dataset --local-dir SETS/{self.name}"


@dataclass(frozen=True)
class Average:
    """Names a mean of scores over sets, taken when all of them were scored; `score` ends the names of the scores."""

    title: str
    score: str
    sets: tuple[str, ...]


@dataclass(frozen=True)
class Catalogue:
    sets: dict[str, Listed]
    shifts: tuple[Shift, ...]
    fine_grained: tuple[str, ...]  # names of other sets that count as fine-grained
    averages: tuple[Average, ...] = ()

    def find(self, name: str) -> Listed | None:
        """Return the set that a folder of this name holds."""
        return next((listed for listed in self.sets.values() if name in listed.folder_names), None)

    def name_of(self, folder: str) -> str:
        """Return the name of a set in the catalogue, whatever its folder is called where it was published."""
        listed = self.find(folder)
        return folder if listed is None else listed.name

    def is_fine_grained(self, name: str) -> bool:
        """Return whether a set's probe counts towards the Fine-grained Probe."""
        listed = self.find(name)
        return name in self.fine_grained or (listed is not None and "fine-grained" in listed.tasks)

    def locate(self, name: str, root: Path) -> SetLocation:
        """Find the folder of a set of the catalogue below `root`."""
        listed = self.find(name)
        if listed is None:
            raise UserError(f"the catalogue has no '{name}': {', '.join(self.sets)}")
        for folder in (root / name for name in listed.folder_names):
            if folder.is_dir():
                return SetLocation(listed.name, str(folder), listed=True)
        raise UserError(f"{listed.title} is not in {root}. To get it:\n  {listed.source.replace('SETS', str(root))}")

    def check(self, benchmark: BenchmarkSet, split: str, images: int) -> str:
        """Compare a set that has the name of a listed set with that set's size. Return a note if they differ; raise
        `UserError` instead if the user named the set as in the catalogue."""
        listed, difference = self.find(benchmark.name), self._difference(benchmark, split, images)
        if listed is None or not difference:
            return ""
        if not benchmark.listed:
            return f"{difference}: scores are not those of the whole set"
        raise UserError(f"{difference}. Get it anew:\n  {listed.source}\nor name another set by its path")

    def _difference(self, benchmark: BenchmarkSet, split: str, images: int) -> str:
        listed = self.find(benchmark.name)
        if listed is None:
            return ""
        if listed.classes is not None and benchmark.kind == "classification":
            names = len(benchmark.class_names)
            if names != listed.classes:
                return f"{benchmark.where} has {names} classes; {listed.title} has {listed.classes}"
        sizes = listed.sizes.get(split)
        if sizes is not None and images not in sizes:
            counts = " or ".join(map(str, sizes))
            return f"{benchmark.where} has {images} {split} images; {listed.title} has {counts}"
        return ""


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """Read the catalogue that comes with the package."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    sets = {name: Listed(name, tasks=tuple(entry.pop("tasks")), **entry) for name, entry in content["sets"].items()}
    shifts = tuple(Shift(entry["base"], tuple(entry["renditions"])) for entry in content["shifts"])
    averages = tuple(
        Average(title, entry["score"], tuple(entry["sets"])) for title, entry in content["averages"].items()
    )
    return Catalogue(sets, shifts, tuple(content["fine_grained"]), averages)


def catalogue_table() -> str:
    """Format all sets, with the commands that get them."""
    lines = []
    for listed in catalogue().sets.values():
        sizes = ", ".join(f"{part} {' or '.join(map(str, counts))}" for part, counts in listed.sizes.items())
        classes = f", {listed.classes} classes" if listed.classes else ""
        lines.append(f"{listed.name:<26}{listed.title}: {sizes}{classes}; scored by {', '.join(listed.tasks)}")
        lines.append(f"{'':<26}  {listed.source}")
        if listed.note:
            lines.append(f"{'':<26}  ({listed.note})")
    return "\n".join(lines)
