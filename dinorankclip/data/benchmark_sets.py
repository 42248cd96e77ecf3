"""Finds and opens the evaluation sets that a user names: `find_sets` looks, `open_set` reads the small files of a set.

DIR with test/0.tar …        a set in the clip-benchmark layout, captioned or classified
DIR of such folders          all of them
scenes                       the built-in sets, made on first use
anything --data takes        captioned pairs of your own: a retrieval set

The files of a classification set in the clip-benchmark layout:
classnames.txt                          one name a line; line n is class n, counted from 0
zeroshot_classification_templates.txt   one template a line, {c} stands for the class name
SPLIT/<n>.tar                           KEY.jpg with KEY.cls, the class index in digits
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tarfile import BLOCKSIZE
from typing import Literal, cast, get_args

import numpy as np
from tqdm import tqdm

from dinorankclip import io
from dinorankclip.checked_files import UnfitFile, file_text, read_object
from dinorankclip.config import FindingSettings
from dinorankclip.data.damage import Damage
from dinorankclip.data.open_data import PART_NAMES, built_in_scenes, open_stored, splits_of
from dinorankclip.data.remote import RemoteShard
from dinorankclip.data.scenes.make import MANIFEST
from dinorankclip.data.splits import SplitPart
from dinorankclip.data.tar_shards import SHOWN_TARS, ShardSource, file_stamp, open_shard, shard_size, shards_of_folder
from dinorankclip.io import digest
from dinorankclip.json_shape import TEXT, listed, named
from dinorankclip.types import Source, UserError

KIND_FILE = "dataset_type.txt"
CLASS_NAMES = "classnames.txt"
TEMPLATES = "zeroshot_classification_templates.txt"
FAMILIES = "families.json"  # in fine-grained sets: maps each family to the names of its classes
DEFAULT_TEMPLATE = "a photo of a {c}."
_WORTH_A_BAR = 1 << 30  # bytes; hashing less than this takes a second or two
_LABEL_DIGITS = 18  # a class index has fewer digits than this
UNKNOWN = -1  # the label of a sample that cannot be read

SetKind = Literal["classification", "retrieval"]


@dataclass(frozen=True)
class SetLocation:
    """Locates a set that has not been read yet. `reading` is for pairs of your own; `note` is shown with scores;
    `listed`: the user named a set of the catalogue, so its size must be right."""

    name: str
    where: str
    reading: FindingSettings = field(default_factory=FindingSettings)
    note: str = ""
    listed: bool = False


@dataclass(frozen=True)
class BenchmarkSet:
    """An evaluation set: its kind, its parts, and for classification its classes and prompts."""

    name: str
    where: str
    kind: SetKind
    splits: tuple[str, ...]
    class_names: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    families: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    reading: FindingSettings = field(default_factory=FindingSettings)
    listed: bool = False  # the user named it as in the catalogue

    def open(self, split: str) -> Source:
        """Open a part, as a `LabelledSource` for a classification set. The source's fingerprint covers every byte."""
        if self.kind == "classification":
            folder = _part_folder(Path(self.where), split)
            if not (shards := shards_of_folder(folder) if folder else []):
                raise UserError(f"the {split} part of {self.where} is empty")
            _refuse_cut(shards)
            return LabelledSource(shards, len(self.class_names))
        source = open_stored(self.where, self.reading, split)
        if isinstance(source, ShardSource):
            _refuse_cut(source.shards)
        source.fingerprint = source_digest(source)
        return source

    @property
    def usual_split(self) -> str | None:
        """Return the part that is scored by default: test, else val; None if there is neither."""
        if self.splits == ("all",):
            return "val"  # carved from the undivided data
        return next((split for split in ("test", "val") if split in self.splits), None)

    def scored_split(self, asked: str | None = None) -> str:
        """Return the part to score: `asked`, else the usual part."""
        split, there = asked or self.usual_split, ", ".join(self.splits)
        if split is None:
            raise UserError(f"{self.where} has no test or val part, only {there}; name it by --split")
        if split not in self.splits and self.splits != ("all",):
            raise UserError(f"{self.where} has no {asked} part, only {there}")
        return split


def find_sets(where: str, reading: FindingSettings | None = None) -> list[SetLocation]:
    """Find the sets that a user names; raise `UserError` if there is none."""
    reading = reading or FindingSettings()
    path = built_in_scenes() if where == "scenes" else Path(where)
    if os.path.isdir(path):
        if _looks_like_a_set(path):
            return [SetLocation(_name(path.resolve()), str(path), reading)]
        if inside := [child for child in sorted(path.iterdir()) if child.is_dir() and _looks_like_a_set(child)]:
            return [SetLocation(_name(child.resolve()), str(child), reading) for child in inside]
    splits_of(where, reading)  # raises, with advice, if there is no data
    there = os.path.exists(path)
    return [SetLocation(_name(Path(os.path.abspath(path)).with_suffix("")) if there else path.stem, where, reading)]


def open_set(location: SetLocation) -> BenchmarkSet:
    """Read the small files beside the shards."""
    folder = Path(location.where)
    notes: tuple[str, ...] = (location.note,) if location.note else ()
    retrieval = BenchmarkSet(
        location.name, location.where, "retrieval", (), notes=notes, reading=location.reading, listed=location.listed
    )
    if not os.path.isdir(folder) or not _looks_like_a_set(folder):
        return replace(retrieval, splits=splits_of(location.where, location.reading))
    folders = {part: inside for part in PART_NAMES if (inside := _part_folder(folder, part))}
    if not folders:
        raise UserError(f"{folder} has none of the parts {', '.join(PART_NAMES)}")
    retrieval = replace(retrieval, splits=tuple(folders))
    if _kind(folder, list(folders.values())[-1]) == "retrieval":
        return retrieval
    names, (templates, note) = read_class_names(folder), read_templates(folder)
    families, notes = _families(folder, names), notes + ((note,) if note else ())
    return replace(
        retrieval, kind="classification", class_names=names, templates=templates, families=families, notes=notes
    )


def _refuse_cut(shards: Sequence[Path | RemoteShard]) -> None:
    """Refuse a tar that does not end in two blocks of zeros: a tar cut between two samples looks whole otherwise."""
    for shard in shards:
        with open_shard(shard) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 2 * BLOCKSIZE))
            if size < 2 * BLOCKSIZE or any(file.read()):
                raise UserError(f"{shard} was cut off: it has no end. Fetch or pack it again.")


def _name(folder: Path) -> str:
    """Name a set by its folder; the built-in sets are scenes-pairs, scenes-kinds and so on."""
    if (folder.parent / MANIFEST).is_file():
        return f"scenes-{folder.name}"
    is_part = any(folder.name in names for names in PART_NAMES.values())  # "val" alone is the set that training scored
    return f"{folder.parent.name}-{folder.name}" if is_part else folder.name


def _looks_like_a_set(folder: Path) -> bool:
    if (folder / KIND_FILE).is_file() or (folder / CLASS_NAMES).is_file():
        return True
    parts = [_part_folder(folder, part) for part in PART_NAMES]
    return any(part and ((part / "nshards.txt").is_file() or any(part.glob(SHOWN_TARS))) for part in parts)


def _part_folder(folder: Path, part: str) -> Path | None:
    return next((folder / name for name in PART_NAMES[part] if (folder / name).is_dir()), None)


def _kind(folder: Path, part: Path) -> SetKind:
    if (file := folder / KIND_FILE).is_file():
        kind = file_text(file).strip().lower()[:80]
        if kind not in get_args(SetKind):
            raise UserError(f"{file} says '{kind}'; classification and retrieval sets can be scored")
        return cast(SetKind, kind)
    if (folder / CLASS_NAMES).is_file():
        return "classification"
    # Neither file is there: captions beside the images decide.
    if not (shards := shards_of_folder(part)):
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
    if not (file := folder / FAMILIES).is_file():
        return {}
    try:
        families = read_object(file, named(listed(TEXT)))
    except UnfitFile as error:
        raise UserError(f"{file} should be a JSON object: family name → list of class names ({error})") from None
    strangers = [name for family in families.values() for name in family if name not in names]
    if strangers:
        raise UserError(f"{file} names classes that {CLASS_NAMES} does not have: {', '.join(strangers[:5])}")
    return families


class LabelledSource(ShardSource):
    """Reads images of tar shards with their class indices, `labels` int64 [N]; samples have no captions."""

    beside = frozenset(("cls",))

    def __init__(self, shards: Sequence[Path], classes: int) -> None:
        super().__init__(shards)
        self.fingerprint = content_digest(self.shards)  # a corrected class index may have the same size
        self.labels = self._labels()
        if len(outside := np.flatnonzero(self.labels >= classes)):
            first = int(outside[0])
            raise UserError(
                f"{len(outside)} class indices are out of range, first {self.key(first)}.cls = {self.labels[first]} in "
                f"{self.shards[0].parent}: {CLASS_NAMES} names {classes} classes, 0 to {classes - 1}"
            )

    def captions(self, index: int) -> tuple[str, ...]:
        return ()

    def _check_texts(self) -> None:
        if not (self._image_at >= 0).any():
            raise UserError(f"no images in {self.shards[0].parent}: {len(self.shards)} shards, empty or damaged")
        if len(without := np.flatnonzero((self._image_at >= 0) & (self._caption_at < 0))):
            raise UserError(
                f"{len(without)} of {len(self)} images in {self.shards[0].parent} have no class index: "
                f"{self.key(int(without[0]))}.cls is missing"
            )

    def _labels(self) -> np.ndarray:
        """Read all labels once and store them: a million labels are a million small reads."""
        name = digest("labels", 1, self.fingerprint)
        if (table := io.load_table(name)) is None or not _fits(table, len(self)):
            table = {"labels": np.array([self._label(index) for index in range(len(self))], dtype=np.int64)}
            io.save_table(name, table)
        return table["labels"]

    def _label(self, index: int) -> int:
        if self._cause[index] >= 0:
            return UNKNOWN
        try:
            text = self.text(index).decode("ascii", "replace").strip()
        except Damage:
            return UNKNOWN
        if not (text.isdecimal() and len(text) < _LABEL_DIGITS):
            raise UserError(f"{self.key(index)}.cls in {self.shards[0].parent} holds {text[:40]!r}, not a class index")
        return int(text)


def _fits(table: dict[str, np.ndarray], count: int) -> bool:
    """Return whether a stored table holds the labels of `count` samples."""
    labels = table.get("labels")
    return labels is not None and labels.shape == (count,) and labels.dtype == np.int64


def read_class_names(folder: Path) -> tuple[str, ...]:
    """Read the names of `classnames.txt`, in the order of the class indices."""
    if (names := _lines(folder / CLASS_NAMES)) is None:
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
    """Read the prompt templates of a set; a note says so if the set has none and the default is used."""
    if not (templates := [line for line in _lines(folder / TEMPLATES) or [] if line]):
        return (DEFAULT_TEMPLATE,), f"no {TEMPLATES}: prompts are '{DEFAULT_TEMPLATE}'"
    if without := [template for template in templates if "{c}" not in template]:
        raise UserError(f"{folder / TEMPLATES}: '{without[0]}' has no {{c}}, the place of the class name")
    return tuple(templates), ""


def _lines(path: Path) -> list[str] | None:
    try:
        return [line.strip() for line in file_text(path).splitlines()]
    except FileNotFoundError:
        return None
    except UnfitFile as error:
        raise UserError(f"{error}; convert it") from None


def source_digest(source: Source) -> str:
    """Return a digest of all bytes of a source: embeddings on disk must notice another image of the same size.

    The digest of a shard is stored until the shard is written again; other sources are read through, which takes a
    fraction of the time of embedding them.
    """
    if isinstance(source, ShardSource):
        return content_digest(source.shards)
    if isinstance(source, SplitPart) and isinstance(source.source, ShardSource):
        return digest("part", content_digest(source.source.shards), source.indices.tobytes())
    summary = hashlib.blake2b(digest_size=16)
    for index in tqdm(range(len(source)), "fingerprint", unit="image", leave=False, disable=None):
        try:
            raw = source.read(index)
            pieces = [raw.key.encode("utf-8", "surrogateescape"), raw.image, "\n".join(raw.captions).encode()]
        except Damage as damage:
            pieces = [source.key(index).encode("utf-8", "surrogateescape"), damage.cause.encode()]
        for piece in pieces:
            summary.update(len(piece).to_bytes(8, "little") + piece)
    return digest("samples", summary.hexdigest())


def content_digest(paths: Sequence[Path | RemoteShard]) -> str:
    """Return a digest of the bytes of these files, in their order; their paths do not matter."""
    unknown = sum(shard_size(path) for path in paths if io.load_table(file_stamp(path, "contents")) is None)
    shown = tqdm(paths, "fingerprint", unit="file", leave=False, disable=None if unknown > _WORTH_A_BAR else True)
    return digest("contents", *map(_file_digest, shown))


def _file_digest(path: Path | RemoteShard) -> str:
    name = file_stamp(path, "contents")
    if (known := io.load_table(name)) is not None and "digest" in known:
        return str(known["digest"])
    with open_shard(path) as file:
        content = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    io.save_table(name, {"digest": np.array(content)})
    return content
