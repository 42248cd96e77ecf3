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

import numpy as np

from dinorankclip import io
from dinorankclip.config import FindingSettings
from dinorankclip.data.damage import CAUSES, NAMED, printable
from dinorankclip.data.fingerprint import content_digest, source_digest
from dinorankclip.data.open_data import PART_NAMES, built_in_scenes, open_stored, splits_of
from dinorankclip.data.scenes.make import MANIFEST
from dinorankclip.data.splits import name_hash
from dinorankclip.data.tar_shards import SHOWN_TARS, ShardSource, shards_of_folder
from dinorankclip.io import digest
from dinorankclip.types import RawSample, Source, UserError

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


# -------- labelled
# Classification sets in the clip-benchmark layout: images with a class index, class names, prompt templates.
#
# SET/classnames.txt                          one name a line; line n is class n, counted from 0
# SET/zeroshot_classification_templates.txt   one template a line, {c} stands for the class name
# SET/SPLIT/<n>.tar                           KEY.jpg with KEY.cls, the class index in digits

CLASS_NAMES = "classnames.txt"
TEMPLATES = "zeroshot_classification_templates.txt"
DEFAULT_TEMPLATE = "a photo of a {c}."
VAL_FRACTION = 0.2  # of the training images, class by class, for sets without a validation part
UNKNOWN = -1  # the label of a sample that cannot be read


class LabelledSource(ShardSource):
    """Images of tar shards with their class indices, `labels` int64 [N]; samples have no captions."""

    beside = frozenset(("cls",))

    def __init__(self, shards: Sequence[Path], classes: int) -> None:
        super().__init__(shards)
        self.fingerprint = content_digest(self.shards)  # a class index that was corrected has the size of the old one
        self.labels = self._labels()
        outside = np.flatnonzero(self.labels >= classes)
        if len(outside):
            first = int(outside[0])
            raise UserError(
                f"{len(outside)} class indices are out of range, first {self.key(first)}.cls = {self.labels[first]} in "
                f"{self.shards[0].parent}: {CLASS_NAMES} names {classes} classes, 0 to {classes - 1}"
            )

    def captions(self, index: int) -> tuple[str, ...]:
        return ()

    def read(self, index: int) -> RawSample:
        return RawSample(self.key(index), self.image(index), ())

    def _check_texts(self) -> None:
        if not (self._image_at >= 0).any():
            raise UserError(f"no images in {self.shards[0].parent}: {len(self.shards)} shards, empty or damaged")
        without = np.flatnonzero((self._image_at >= 0) & (self._caption_at < 0))
        if len(without):
            raise UserError(
                f"{len(without)} of {len(self)} images in {self.shards[0].parent} have no class index: "
                f"{self.key(int(without[0]))}.cls is missing"
            )

    def _labels(self) -> np.ndarray:
        """Read once and kept: a million of them are a million small reads."""
        name = digest("labels", 1, self.fingerprint)
        known = io.load_table(name)
        if known is None:
            known = {"labels": np.array([self._label(index) for index in range(len(self))], dtype=np.int64)}
            io.save_table(name, known)
        return known["labels"]

    def _label(self, index: int) -> int:
        if self._cause[index] >= 0:
            return UNKNOWN
        text = self.text(index).decode("ascii", "replace").strip()
        if not text.isdigit():
            raise UserError(f"{self.key(index)}.cls in {self.shards[0].parent} holds {text[:40]!r}, not a class index")
        return int(text)


def read_class_names(folder: Path) -> tuple[str, ...]:
    """The names of `classnames.txt`, in the order of the class indices."""
    names = _lines(folder / CLASS_NAMES)
    if names is None:
        raise UserError(
            f"{folder} has no {CLASS_NAMES}: one class name a line, in the order of the class indices. (A set of "
            "captioned images says 'retrieval' in dataset_type.txt.)"
        )
    while names and not names[-1]:
        names.pop()
    blank = [number for number, name in enumerate(names) if not name]
    if blank or not names:
        what = f"class {blank[0]} (line {blank[0] + 1}) has no name" if blank else "it is empty"
        raise UserError(f"{folder / CLASS_NAMES}: {what}")
    return tuple(names)


def read_templates(folder: Path) -> tuple[tuple[str, ...], str]:
    """Prompt templates of a set, and a note if it has none and the default had to do."""
    templates = [line for line in _lines(folder / TEMPLATES) or [] if line]
    if not templates:
        return (DEFAULT_TEMPLATE,), f"no {TEMPLATES}: prompts are '{DEFAULT_TEMPLATE}'"
    without = [template for template in templates if "{c}" not in template]
    if without:
        raise UserError(f"{folder / TEMPLATES}: '{without[0]}' has no {{c}}, the place of the class name")
    return tuple(templates), ""


def _lines(path: Path) -> list[str] | None:
    try:
        return [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not in UTF-8; convert it") from None


def carve_validation(
    keys: Sequence[str], labels: np.ndarray, fraction: float = VAL_FRACTION
) -> tuple[np.ndarray, np.ndarray]:
    """Positions (train, val) of a training part: of every class the share with the smallest hashes of their keys.

    It depends on keys and labels alone. A class of one image keeps it for training; any other class gives at least
    one image and keeps at least one.
    """
    order = sorted(range(len(keys)), key=lambda at: name_hash(keys[at]))
    labels = np.asarray(labels)
    wanted = {
        int(label): min(count - 1, max(1, round(fraction * count)))
        for label, count in zip(*np.unique(labels, return_counts=True))
    }
    val = []
    for at in order:
        label = int(labels[at])
        if wanted[label] > 0:
            wanted[label] -= 1
            val.append(at)
    chosen = np.sort(np.array(val, dtype=np.int64))
    return np.setdiff1d(np.arange(len(keys)), chosen), chosen
