"""Write pairs in one of the three layouts that `open_pairs` reads: shards, a table, a folder.

Images keep their bytes. Everything is written into a temporary folder that gets its name at the end, so an
interrupted conversion leaves nothing that looks complete.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from dinorankclip.data.damage import Damage
from dinorankclip.data.images import decode, read_header
from dinorankclip.data.pipes import Found, PipeSource, stream_shard
from dinorankclip.data.tars import IMAGE_KINDS
from dinorankclip.types import RawSample, Source, UserError
from dinorankclip.whole_files import whole_folder

Layout = Literal["shards", "table", "folder"]
_MAGIC = {b"\xff\xd8\xff": "jpg", b"\x89PNG": "png", b"GIF8": "gif", b"BM": "bmp", b"II*": "tif", b"MM": "tif"}


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder to fill; it becomes `out` if nothing goes wrong, and is removed otherwise.

    Hidden files that are in `out` already, such as macOS's .DS_Store, stay.
    """
    if out.exists() and (not out.is_dir() or any(not path.name.startswith(".") for path in out.iterdir())):
        raise UserError(f"{out} exists already; remove it or choose another name")
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(out) as aside:
        yield aside
        for hidden in list(out.glob(".*")):
            hidden.rename(aside / hidden.name)


def checked_pairs(source: Source | PipeSource, max_pixels: int) -> Iterator[Found]:
    """Every pair of a source, in order, decoded once to see that it is whole; damaged ones as (key, damage)."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        if isinstance(source, PipeSource):
            arriving = (found for shard in source.shards for found in stream_shard(shard))
            yield from _in_pieces(pool, partial(_checked, max_pixels), arriving)
        else:
            yield from _in_pieces(pool, partial(_read_checked, max_pixels, source), range(len(source)))


def _checked(max_pixels: int, found: Found) -> Found:
    if not isinstance(found, RawSample):
        return found
    try:
        decode(found.image, read_header(found.image, max_pixels))
        return found
    except Damage as damage:
        return found.key, damage


def _read_checked(max_pixels: int, source: Source, index: int) -> Found:
    try:
        return _checked(max_pixels, source.read(index))
    except Damage as damage:
        return source.key(index), damage


def _in_pieces(pool: ThreadPoolExecutor, function: Any, items: Iterable[Any], piece: int = 64) -> Iterator[Found]:
    """`pool.map` that does not read the whole source into memory first."""
    remaining = iter(items)
    while some := list(islice(remaining, piece)):
        yield from pool.map(function, some)


class Writer:
    """Writes the parts of one data set into `folder`; `part` is "" for data that is not divided."""

    def __init__(self, folder: Path, layout: Layout, shard_size: int = 1000) -> None:
        self.folder, self.layout, self.shard_size = folder, layout, shard_size
        if layout == "shards":
            (folder / "dataset_type.txt").write_text("retrieval\n")

    def write(self, part: str, samples: Iterable[RawSample]) -> int:
        """Write a part; returns the number of pairs."""
        named = _named(samples)
        if self.layout == "shards":
            return self._shards(self.folder / (part or "train"), named)
        if self.layout == "table":
            return self._table(part, named)
        return self._folder(self.folder / part, named)

    def _shards(self, folder: Path, samples: Iterator[tuple[str, RawSample]]) -> int:
        from webdataset import TarWriter

        folder.mkdir()
        count = shards = 0
        while some := list(islice(samples, self.shard_size)):
            with TarWriter(str(folder / f"{shards}.tar"), mtime=0, user="", group="") as tar:
                for name, sample in some:
                    key = name.rpartition(".")[0]
                    tar.write({"__key__": key, kind_of(sample.image): sample.image, "txt": _lines(sample).encode()})
            count += len(some)
            shards += 1
        (folder / "nshards.txt").write_text(f"{shards}\n")
        return count

    def _table(self, part: str, samples: Iterator[tuple[str, RawSample]]) -> int:
        images = PurePosixPath("images") / part
        count = 0
        path = self.folder / f"{part or 'pairs'}.csv"
        # File names are bytes to the system: those that are no UTF-8 stay as they are, as in `tables`.
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
    """The usual suffix of an image, by its first bytes."""
    for magic, kind in _MAGIC.items():
        if image.startswith(magic):
            return kind
    return "webp" if image[8:12] == b"WEBP" else "jpg"  # readers look at the bytes, not at the name


def _named(samples: Iterable[RawSample]) -> Iterator[tuple[str, RawSample]]:
    """Each sample with a file name made of its key: relative, one dot, and no two alike but for the suffix."""
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
    """One caption a line; a line break inside a caption becomes a space."""
    return "".join(" ".join(caption.splitlines()) + "\n" for caption in sample.captions)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
