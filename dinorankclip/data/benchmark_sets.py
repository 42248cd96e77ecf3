"""Which evaluation sets a user means, and one such set: `find_sets` looks, `open_set` reads its small files.

    DIR with test/0.tar …        a set in the clip-benchmark layout, captioned or classified
    DIR of such folders          all of them
    scenes                       the built-in sets, made on first use
    anything --data takes        captioned pairs of one's own: a retrieval set
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tarfile import BLOCKSIZE
from typing import Literal

from dinorankclip.config import FindingSettings
from dinorankclip.data.contents import source_digest
from dinorankclip.data.damage import CAUSES, NAMED, printable
from dinorankclip.data.labelled import CLASS_NAMES, LabelledSource, read_class_names, read_templates
from dinorankclip.data.opening import PART_NAMES, built_in_scenes, open_stored, splits_of
from dinorankclip.data.scenes.make import MANIFEST
from dinorankclip.data.shards import SHOWN_TARS, ShardSource, shards_of_folder
from dinorankclip.types import Source, UserError

KIND_FILE = "dataset_type.txt"
FAMILIES = "families.json"  # of fine-grained sets: family name → names of its classes

Kind = Literal["classification", "retrieval"]


@dataclass(frozen=True)
class Place:
    """A set that was found but not read yet. `reading`: how pairs of one's own are found and divided; `note`: what must
    be said beside its scores."""

    name: str
    where: str
    reading: FindingSettings = field(default_factory=FindingSettings)
    note: str = ""


@dataclass(frozen=True)
class BenchmarkSet:
    """One set: what kind it is, its parts, and for classification its classes and prompts."""

    name: str
    where: str
    kind: Kind
    splits: tuple[str, ...]
    class_names: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    families: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    reading: FindingSettings = field(default_factory=FindingSettings)

    def open(self, split: str) -> Source:
        """The samples of a part; of a classification set a `LabelledSource`. Its fingerprint covers every byte."""
        if self.kind == "classification":
            shards = self._shards(split)
            _refuse_cut(shards)
            return LabelledSource(shards, len(self.class_names))
        source = open_stored(self.where, self.reading, split)
        if isinstance(source, ShardSource):
            _refuse_cut(source.shards)
        source.fingerprint = source_digest(source)
        return source

    @property
    def usual_split(self) -> str | None:
        """The part that is scored unless another is asked for: test, else val; None if there is neither."""
        if self.splits == ("all",):
            return "val"  # carved
        return next((split for split in ("test", "val") if split in self.splits), None)

    def scored_split(self, asked: str | None = None) -> str:
        """The part to score: the one asked for, else the usual one."""
        if asked is None:
            if self.usual_split is None:
                there = ", ".join(self.splits)
                raise UserError(f"{self.where} has no test or val part, only {there}; name it by --split")
            return self.usual_split
        if asked not in self.splits and self.splits != ("all",):
            raise UserError(f"{self.where} has no {asked} part, only {', '.join(self.splits)}")
        return asked

    def _shards(self, split: str) -> list[Path]:
        folder = _part_folder(Path(self.where), split)
        shards = shards_of_folder(folder) if folder else []
        if not shards:
            raise UserError(f"the {split} part of {self.where} is empty")
        return shards


def find_sets(where: str, reading: FindingSettings | None = None) -> list[Place]:
    """The sets behind what a user typed; `UserError` if there is none."""
    reading = reading or FindingSettings()
    path = built_in_scenes() if where == "scenes" else Path(where)
    if os.path.isdir(path):
        if _looks_like_a_set(path):
            return [Place(_name(path.resolve()), str(path), reading)]
        inside = [child for child in sorted(path.iterdir()) if child.is_dir() and _looks_like_a_set(child)]
        if inside:
            return [Place(_name(child.resolve()), str(child), reading) for child in inside]
    splits_of(where, reading)  # raises, with advice, for what is no data at all
    there = os.path.exists(path)
    return [Place(_name(Path(os.path.abspath(path)).with_suffix("")) if there else path.stem, where, reading)]


def open_set(place: Place) -> BenchmarkSet:
    """Read what lies beside the shards."""
    reading = place.reading
    notes: tuple[str, ...] = (place.note,) if place.note else ()
    folder = Path(place.where)
    if not os.path.isdir(folder) or not _looks_like_a_set(folder):
        splits = splits_of(place.where, reading)
        return BenchmarkSet(place.name, place.where, "retrieval", splits, notes=notes, reading=reading)
    folders = {part: found for part in PART_NAMES if (found := _part_folder(folder, part))}
    splits = tuple(folders)
    if not splits:
        raise UserError(f"{folder} has none of the parts {', '.join(PART_NAMES)}")
    if _kind(folder, folders[splits[-1]]) == "retrieval":
        return BenchmarkSet(place.name, place.where, "retrieval", splits, notes=notes, reading=reading)
    names = read_class_names(folder)
    templates, note = read_templates(folder)
    notes += (note,) if note else ()
    families = _families(folder, names)
    return BenchmarkSet(place.name, place.where, "classification", splits, names, templates, families, notes, reading)


def refuse_damage(name: str, damaged: Sequence[tuple[str, str]], total: int, most: float = 0.0) -> None:
    """A score over fewer items is another score: damaged samples are an error unless a share of them was allowed."""
    if len(damaged) <= most * total:
        return
    causes: dict[str, list[str]] = {}
    for key, cause in damaged:
        causes.setdefault(cause, []).append(key)
    lines = []
    for cause, keys in causes.items():
        names = ", ".join(map(printable, keys[:NAMED])) + ", …" * (len(keys) > NAMED)
        lines.append(f"{len(keys)} {cause} ({CAUSES[cause]}): {names}")
    raise UserError(
        f"{len(damaged)} of {total} samples of {name} are damaged:\n  " + "\n  ".join(lines) +
        "\nFetch or pack the set again; --max-damaged 0.01 would score the others."
    )  # fmt: skip


def _refuse_cut(shards: Sequence[Path]) -> None:
    """A tar ends in two blocks of zeros. One that was cut between two samples looks whole otherwise."""
    for shard in shards:
        with open(shard, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 2 * BLOCKSIZE))
            if size < 2 * BLOCKSIZE or any(file.read()):
                raise UserError(f"{shard} was cut off: it has no end. Fetch or pack it again.")


def _name(folder: Path) -> str:
    """The folder's name; built-in sets are called scenes-pairs, scenes-kinds and so on. One that is named like a part
    takes its parent's name along: "val" alone is what training scored."""
    if (folder.parent / MANIFEST).is_file():
        return f"scenes-{folder.name}"
    parts = {name for names in PART_NAMES.values() for name in names}
    return f"{folder.parent.name}-{folder.name}" if folder.name in parts else folder.name


def _looks_like_a_set(folder: Path) -> bool:
    if (folder / KIND_FILE).is_file() or (folder / CLASS_NAMES).is_file():
        return True
    parts = [_part_folder(folder, part) for part in PART_NAMES]
    return any(part and ((part / "nshards.txt").is_file() or any(part.glob(SHOWN_TARS))) for part in parts)


def _part_folder(folder: Path, part: str) -> Path | None:
    return next((folder / name for name in PART_NAMES[part] if (folder / name).is_dir()), None)


def _kind(folder: Path, part: Path) -> Kind:
    file = folder / KIND_FILE
    if file.is_file():
        said = file.read_text().strip().lower()
        if said == "classification":
            return "classification"
        if said == "retrieval":
            return "retrieval"
        raise UserError(f"{file} says '{said}'; classification and retrieval sets can be scored")
    if (folder / CLASS_NAMES).is_file():
        return "classification"
    # Neither file is there: captions beside the images decide.
    shards = shards_of_folder(part)
    if not shards:
        raise UserError(
            f"{part} holds no .tar shards, so nothing says what kind of set {folder} is: remove that folder if it is "
            f"not needed, or write classification or retrieval into {file}"
        )
    try:
        ShardSource(shards[:1])
    except UserError:
        return "classification"
    return "retrieval"


def _families(folder: Path, names: Sequence[str]) -> dict[str, list[str]]:
    file = folder / FAMILIES
    if not file.is_file():
        return {}
    try:
        families = json.loads(file.read_text())
        strangers = [name for family in families.values() for name in family if name not in names]
    except (ValueError, AttributeError, TypeError):
        raise UserError(f"{file} should be a JSON object: family name → list of class names") from None
    if strangers:
        raise UserError(f"{file} names classes that {CLASS_NAMES} does not have: {', '.join(strangers[:5])}")
    return families
