"""The paper's evaluation sets: where each is published or which command packs it, and what it must look like.

A folder is taken for a set of the catalogue by its name (`food101`, or `wds_food101` as published). Then its counts
must agree: a set that lacks a shard would give a number that looks like the real one. Other sets are taken as they are.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from dinorankclip.data.benchmark_sets import BenchmarkSet, Place
from dinorankclip.evaluate.zero_shot import Shift
from dinorankclip.types import UserError

FILE = Path(__file__).with_name("catalogue.json")


@dataclass(frozen=True)
class Listed:
    """One set of the catalogue; `sizes` are the accepted counts of images of each part."""

    name: str
    title: str
    tasks: tuple[str, ...]
    classes: int | None = None
    sizes: dict[str, list[int]] = field(default_factory=dict)
    counts_from: str = ""  # where `sizes` were seen
    published: str | None = None
    packed_by: str | None = None
    note: str = ""

    @property
    def folder_names(self) -> tuple[str, ...]:
        """Names under which its folder is known."""
        published = self.published.rpartition("/")[2] if self.published else ""
        return tuple(dict.fromkeys(name for name in (self.name, published, published.removeprefix("wds_")) if name))

    @property
    def source(self) -> str:
        """How to get it, as a command."""
        if self.packed_by:
            return self.packed_by
        return f"hf download {self.published} --repo-type dataset --local-dir SETS/{self.name}"


@dataclass(frozen=True)
class Catalogue:
    sets: dict[str, Listed]
    shifts: tuple[Shift, ...]
    fine_grained: tuple[str, ...]  # names of other sets that count as fine-grained

    def find(self, name: str) -> Listed | None:
        """The set a folder of this name holds."""
        return next((listed for listed in self.sets.values() if name in listed.folder_names), None)

    def name_of(self, folder: str) -> str:
        """What a set is called here, whatever its folder is called where it was published."""
        listed = self.find(folder)
        return folder if listed is None else listed.name

    def is_fine_grained(self, name: str) -> bool:
        """Whether a set's probe counts into the Fine-grained Probe."""
        listed = self.find(name)
        return name in self.fine_grained or (listed is not None and "fine-grained" in listed.tasks)

    def locate(self, name: str, root: Path) -> Place:
        """The folder of a set of the catalogue below `root`."""
        listed = self.find(name)
        if listed is None:
            raise UserError(f"the catalogue has no '{name}': {', '.join(self.sets)}")
        for folder in (root / known for known in listed.folder_names):
            if folder.is_dir():
                return Place(listed.name, str(folder))
        raise UserError(f"{listed.title} is not in {root}. To get it:\n  {listed.source.replace('SETS', str(root))}")

    def check(self, benchmark: BenchmarkSet, split: str, images: int) -> None:
        """Refuse a set that has the name of a known one and not its size."""
        listed = self.find(benchmark.name)
        if listed is None:
            return
        aside = f"If {benchmark.where} is another set, rename its folder; else get it anew:\n  {listed.source}"
        if listed.classes is not None and benchmark.kind == "classification":
            names = len(benchmark.class_names)
            if names != listed.classes:
                raise UserError(f"{benchmark.where} has {names} classes; {listed.title} has {listed.classes}. {aside}")
        wanted = listed.sizes.get(split)
        if wanted is not None and images not in wanted:
            counts = " or ".join(map(str, wanted))
            raise UserError(f"{benchmark.where} has {images} {split} images; {listed.title} has {counts}. {aside}")


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """The catalogue that comes with the package."""
    known = json.loads(FILE.read_text())
    sets = {name: Listed(name, tasks=tuple(one.pop("tasks")), **one) for name, one in known["sets"].items()}
    shifts = tuple(Shift(one["base"], tuple(one["renditions"])) for one in known["shifts"])
    return Catalogue(sets, shifts, tuple(known["fine_grained"]))


def catalogue_table() -> str:
    """All sets, with where to get them."""
    lines = []
    for listed in catalogue().sets.values():
        sizes = ", ".join(f"{part} {' or '.join(map(str, counts))}" for part, counts in listed.sizes.items())
        classes = f", {listed.classes} classes" if listed.classes else ""
        lines.append(f"{listed.name:<26}{listed.title}: {sizes}{classes}; scored by {', '.join(listed.tasks)}")
        lines.append(f"{'':<26}  {listed.source}")
        if listed.note:
            lines.append(f"{'':<26}  ({listed.note})")
    return "\n".join(lines)
