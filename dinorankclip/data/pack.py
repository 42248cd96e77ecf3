"""Writes data sets: pairs in one of the three layouts that `open_pairs` reads, and classification sets.

Images keep their bytes. A set is written into a temporary folder that gets its name at the end: no set is incomplete.
`pack_classes` makes a classification set in the clip-benchmark layout of a folder with one subfolder of images a class.
Subfolders in their natural order are the classes 0, 1, …; where all of them are numbers, the number is the class index
(ImageNetV2 is published like that), and names come from another set.
"""

from __future__ import annotations

import csv
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Literal

from tqdm import tqdm

from dinorankclip.data.benchmark_sets import CLASS_NAMES, TEMPLATES, read_class_names, read_templates
from dinorankclip.data.damage import Damage, DamageCount
from dinorankclip.data.decode import decode, read_header
from dinorankclip.data.folders_and_tables import is_image, read_file
from dinorankclip.data.streams import SampleOrDamage, is_stream
from dinorankclip.data.tar_shards import IMAGE_KINDS, natural_order
from dinorankclip.io import whole_folder
from dinorankclip.types import RawSample, Source, UserError

Layout = Literal["shards", "table", "folder"]
_MAGIC = {b"\xff\xd8\xff": "jpg", b"\x89PNG": "png", b"GIF8": "gif", b"BM": "bmp", b"II*": "tif", b"MM": "tif"}
_CHECKED_AT_ONCE = 64


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder to fill; it becomes `out` if nothing goes wrong. Hidden files in `out`, as .DS_Store, stay."""
    if out.exists() and (not out.is_dir() or any(not path.name.startswith(".") for path in out.iterdir())):
        raise UserError(f"{out} exists already; remove it or choose another name")
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(out) as aside:
        yield aside
        for hidden in list(out.glob(".*")):
            hidden.rename(aside / hidden.name)


def good_pairs(source: Source, max_pixels: int, damage: DamageCount, title: str) -> Iterator[RawSample]:
    """Yield the pairs of a source in order, each decoded once to see that it is whole; count damaged pairs."""
    items: Iterator[int | SampleOrDamage] = source.pairs() if is_stream(source) else iter(range(len(source)))
    total = None if is_stream(source) else len(source)
    with ThreadPoolExecutor(os.cpu_count()) as pool, tqdm(desc=title, total=total, unit="pair", file=sys.stderr) as bar:
        while some := list(islice(items, _CHECKED_AT_ONCE)):  # `pool.map` reads all items into memory first
            for pair in pool.map(partial(_checked, source, max_pixels), some):
                bar.update()
                if isinstance(pair, RawSample):
                    damage.add(1)
                    yield pair
                else:
                    damage.add(0, [(pair[0], pair[1].cause)])


def _checked(source: Source, max_pixels: int, item: int | SampleOrDamage) -> SampleOrDamage:
    """Read a pair by its index, unless it has arrived already, and decode its image."""
    if isinstance(item, tuple):
        return item
    try:
        pair = source.read(item) if isinstance(item, int) else item
        decode(pair.image, read_header(pair.image, max_pixels))
        return pair
    except Damage as damage:
        return source.key(item) if isinstance(item, int) else item.key, damage


class Writer:
    """Writes the parts of one data set into `folder`; `part` is "" for data that is not divided."""

    def __init__(self, folder: Path, layout: Layout, shard_size: int = 1000) -> None:
        self.folder, self.layout, self.shard_size = folder, layout, shard_size
        if layout == "shards":
            (folder / "dataset_type.txt").write_text("retrieval\n", encoding="utf-8")

    def write(self, part: str, samples: Iterable[RawSample]) -> int:
        """Write a part; return the number of pairs."""
        named = _named(samples)
        if self.layout == "shards":
            (folder := self.folder / (part or "train")).mkdir()
            records: Iterator[dict[str, str | bytes]] = (
                {"__key__": name.rpartition(".")[0], kind_of(pair.image): pair.image, "txt": _lines(pair).encode()}
                for name, pair in named
            )
            return _write_shards(folder, records, self.shard_size)
        if self.layout == "table":
            return self._table(part, named)
        return self._folder(self.folder / part, named)

    def _table(self, part: str, samples: Iterator[tuple[str, RawSample]]) -> int:
        images, count, path = PurePosixPath("images") / part, 0, self.folder / f"{part or 'pairs'}.csv"
        # File names are bytes to the system: bytes that are no UTF-8 stay as they are, as in folders_and_tables.py.
        with open(path, "w", newline="", encoding="utf-8", errors="surrogateescape") as table:
            rows = csv.writer(table)
            rows.writerow(("image", "caption"))
            for name, sample in samples:
                _write(self.folder / images / name, sample.image)
                rows.writerows((str(images / name), caption) for caption in sample.captions)
                count += 1
        return count

    def _folder(self, folder: Path, samples: Iterator[tuple[str, RawSample]]) -> int:
        count = 0
        for name, sample in samples:
            _write(folder / name, sample.image)
            _write((folder / name).with_suffix(".txt"), _lines(sample).encode())
            count += 1
        return count


def kind_of(image: bytes) -> str:
    """Return the usual suffix of an image, by its first bytes."""
    usual = "webp" if image[8:12] == b"WEBP" else "jpg"  # readers look at the bytes, not at the name
    return next((kind for magic, kind in _MAGIC.items() if image.startswith(magic)), usual)


def _named(samples: Iterable[RawSample]) -> Iterator[tuple[str, RawSample]]:
    """Give each sample a file name made of its key: relative, one dot, and no two alike but for the suffix."""
    taken: set[str] = set()
    for sample in samples:
        stem, dot, suffix = sample.key.rpartition(".")
        key = stem if dot and suffix.lower() in IMAGE_KINDS else sample.key
        steps = [step for step in key.replace("\\", "/").split("/") if step not in ("", ".", "..")]
        clean = "/".join(step.replace(".", "_").replace("\0", "_") for step in steps) or "image"
        name, number = clean, 1
        while name.lower() in taken:  # some file systems take A and a for the same
            number += 1
            name = f"{clean}-{number}"
        taken.add(name.lower())
        yield f"{name}.{kind_of(sample.image)}", sample


def _lines(sample: RawSample) -> str:
    """Write one caption a line; a line break inside a caption becomes a space."""
    return "".join(" ".join(caption.splitlines()) + "\n" for caption in sample.captions)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _write_shards(folder: Path, records: Iterator[dict[str, str | bytes]], shard_size: int) -> int:
    """Write 0.tar, 1.tar … of `shard_size` records each, and their count; return the number of records."""
    from webdataset import TarWriter

    count = shards = 0
    while some := list(islice(records, shard_size)):
        with TarWriter(str(folder / f"{shards}.tar"), encoder=False, mtime=0, user="", group="") as tar:
            for record in some:
                tar.write(record)
        count += len(some)
        shards += 1
    (folder / "nshards.txt").write_text(f"{shards}\n", encoding="utf-8")
    return count


def pack_classes(
    folder: Path,
    out: Path,
    split: str = "test",
    *,
    listed: Sequence[str] | None = None,
    like: Path | None = None,
    templates: Sequence[str] = (),
    shard_size: int = 1000,
) -> tuple[int, int]:
    """Write one part, perhaps beside others of the same classes; return its numbers of images and classes.

    `listed` are the images of this part, as paths inside `folder`; `like` is a set whose names and templates are taken.
    """
    if (out / split).exists():
        raise UserError(f"{out / split} exists already; remove it or choose another --split")
    names = read_class_names(like) if like is not None else None
    indices = class_folders(folder, names)
    names = names or tuple(class_name(name) for name in indices)
    if (out / CLASS_NAMES).is_file() and read_class_names(out) != tuple(names):
        raise UserError(f"{out} has other classes than {folder}")
    prompts = tuple(templates) or read_templates(like or out)[0]
    out.mkdir(parents=True, exist_ok=True)
    with whole_folder(out / split) as aside:
        count = _write_shards(aside, _labelled_records(_labelled_files(folder, indices, listed)), shard_size)
        if not count:
            raise UserError(f"no images in the class folders of {folder}")
        (out / CLASS_NAMES).write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
        (out / TEMPLATES).write_text("".join(f"{prompt}\n" for prompt in prompts), encoding="utf-8")
        (out / "dataset_type.txt").write_text("classification\n", encoding="utf-8")
    return count, len(names)


def class_folders(folder: Path, names: Sequence[str] | None = None) -> dict[str, int]:
    """Return the class index of each subfolder. `names` are the names of another set with the same classes."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    shown = (child for child in folder.iterdir() if not child.name.startswith("."))
    inside = sorted((child.name for child in shown if child.is_dir()), key=lambda name: natural_order(name.lower()))
    if not inside:
        raise UserError(f"{folder} has no subfolders: one for each class is expected")
    if all(name.isdigit() for name in inside):
        if names is None:
            raise UserError(f"the subfolders of {folder} are numbers, not names: give --like SET, a set with the names")
        indices = {name: int(name) for name in inside}
        if max(indices.values()) >= len(names):
            raise UserError(f"{folder} has a class {max(indices.values())}, the other set only {len(names)} classes")
        return indices
    if names is None:
        return {name: index for index, name in enumerate(inside)}
    times = Counter(names)
    for name in sorted(inside, key=lambda name: times[class_name(name)] > 1):
        if not times[class_name(name)]:
            raise UserError(f"{folder / name} is none of the {len(names)} classes of the other set")
        if times[class_name(name)] > 1:
            raise UserError(
                f"{folder / name} is the name of {times[class_name(name)]} classes of the other set: "
                "name the subfolders by class index instead"
            )
    return {name: names.index(class_name(name)) for name in inside}


def class_name(folder: str) -> str:
    """Turn `001.Black_footed_Albatross` into `Black footed Albatross`."""
    return re.sub(r"^\d+[._-]", "", folder).replace("_", " ").strip() or folder


def _labelled_files(folder: Path, indices: dict[str, int], listed: Sequence[str] | None) -> Iterator[tuple[Path, int]]:
    for name, index in indices.items() if listed is None else ():
        for path in sorted(path for path in (folder / name).rglob("*") if is_image(path.name)):
            yield path, index
    for line in listed or ():
        path = folder / line
        if not path.is_file():
            raise UserError(f"{path} is listed but is not there")
        if (name := Path(line).parts[0]) not in indices:
            raise UserError(f"{path} is listed but is in none of the class folders")
        yield path, indices[name]


def _labelled_records(files: Iterator[tuple[Path, int]]) -> Iterator[dict[str, str | bytes]]:
    for number, (path, label) in enumerate(tqdm(files, "packing", unit="image", leave=False, disable=None)):
        try:
            image = read_file(path, missing="missing-image")
            decode(image)
        except Damage as damage:
            raise UserError(f"{path} cannot be used: {damage}") from None
        yield {"__key__": f"s{number:07d}", kind_of(image): image, "cls": str(label).encode()}
