"""Opens the data that a user names. Pairs (`open_pairs`, after `--data`) are:

scenes                             the built-in data, made on first use
DIR of `data make scenes`          its pairs
DIR with train/, val/, test/       clip-benchmark retrieval folders, or folders of images, part by part
DIR with train.csv, val.csv …      tables, part by part
DIR of .tar files, FILE.tar        WebDataset shards; also a-{000..123}.tar, globs, lists joined by ::
s3://BUCKET/…, https://…           the same on another machine (remote.py): a folder or shards
pipe:COMMAND                       shards that come out of commands
FILE.csv, .tsv, .parquet           image paths and captions
DIR of images                      with .txt files beside them
NAME:ARGUMENT                      what a plugged-in reader calls NAME reads (readers.py)

`open_images` takes the shards, tables (each image once) and folders of these with or without captions, and FILE.txt,
a list of image paths, one a line, relative to the list. `open_captions` takes a text file, a table, or pairs.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip.checked_files import TABLE_BYTES, file_bytes
from dinorankclip.config import FindingSettings
from dinorankclip.data import splits, streams
from dinorankclip.data.damage import Damage
from dinorankclip.data.decode import clean_captions
from dinorankclip.data.folders_and_tables import (
    TABLE_KINDS,
    FolderSource,
    ImageFiles,
    TableSource,
    content_hash,
    find_images,
    has_images,
    table_rows,
    without_image,
)  # fmt: skip
from dinorankclip.data.paths import is_pattern, is_url, nearest, refuse_missing, shown_url
from dinorankclip.data.readers import parts_by_reader
from dinorankclip.data.remote import RemoteShard, listed, matching
from dinorankclip.data.scenes.make import MANIFEST
from dinorankclip.data.streams import PipeSource, refuse_stream
from dinorankclip.data.tar_shards import ShardSource, natural_order, shards_of_folder
from dinorankclip.io import digest, home, one_at_a_time
from dinorankclip.types import CaptionSource, ImageSource, Source, UserError

SPLITS = ("train", "val", "test", "all")
SCENES = home() / "scenes"
PAIRS = "pairs"  # subfolder of a folder that `data make scenes` has written
LIST_KIND = ".txt"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # Windows editors put it first
_PIECE = 1 << 24  # bytes of a text file that are searched for line breaks at once
PART_NAMES = {"train": ("train",), "val": ("val", "valid", "validation", "dev"), "test": ("test",)}


def open_pairs(where: str | Path, reading: FindingSettings | None = None, split: str = "train") -> Source:
    """Open one part of the pairs behind `where`; "all" opens data that is not divided into parts.

    A validation part that the data lacks is carved from the training part; `reading.train_items` chooses from the rest.
    """
    if split not in SPLITS:
        raise UserError(f"no part of data is called {split!r}, only {', '.join(SPLITS)}")
    reading = reading or FindingSettings()
    where = located(where)
    if where.startswith("pipe:"):
        return _open_pipe(_expand(where), reading, split)
    if reading.epoch_samples is not None:
        raise UserError("--reading.epoch-samples is for pipe: shards, which cannot be counted; leave it out here")
    source = _open_whole(where, reading, split)
    if split == "train" and reading.train_items is not None:
        return splits.choose(source, reading.train_items, reading.short_epochs)
    return source


def open_stored(where: str | Path, reading: FindingSettings | None = None, split: str = "train") -> Source:
    """Open pairs that are read in any order, or again, which a stream does not allow."""
    source = open_pairs(where, reading, split)
    refuse_stream(source, f"pairs of the {split} part are read in any order")
    return source


def _open_whole(where: str, reading: FindingSettings, split: str) -> Source:
    openers = _parts(where, reading)
    if split in openers and (split != "train" or "val" in openers):
        return openers[split]()
    if split in ("train", "val") and (whole := openers.get("train") or openers.get("all")):
        train, val = splits.carve(whole(), reading)
        return train if split == "train" else val
    if "all" in openers:
        raise UserError(f"{where} is not divided into parts, so it has no test part; 'val' can be carved from it")
    if split == "all":
        raise UserError(f"{where} is divided into parts: choose one of {', '.join(openers)} with --split")
    raise UserError(f"{where} has no {split!r} part, only {', '.join(openers)}")


def splits_of(where: str | Path, reading: FindingSettings | None = None) -> tuple[str, ...]:
    """Return the parts that the data itself has; ("all",) if it is not divided."""
    where = located(where)
    return ("all",) if where.startswith("pipe:") else tuple(_parts(where, reading or FindingSettings()))


def located(where: str | Path) -> str:
    """Resolve the built-in data's name, and folders of `data make scenes`, whose pairs lie one level down."""
    if str(where) == "scenes":
        return str(built_in_scenes() / PAIRS)
    made = os.path.isfile(Path(where) / MANIFEST) and os.path.isdir(Path(where) / PAIRS)
    return str(Path(where) / PAIRS) if made else str(where)


def built_in_scenes() -> Path:
    """Return the folder of the built-in data; the first process makes it while the others wait."""
    from dinorankclip.data.scenes.make import make_scenes

    with one_at_a_time("scenes", folder=SCENES.parent):
        return make_scenes(SCENES)


def _parts(where: str, reading: FindingSettings) -> dict[str, Callable[[], Source]]:
    """Return a function for each part that opens it; "all" for data that is not divided."""
    if (named := parts_by_reader(where, reading)) is not None:
        return named
    if is_url(where):
        return {part: partial(ShardSource, shards) for part, shards in _remote_parts(where).items()}
    path = Path(where)
    if os.path.isdir(path):  # not `path.is_dir()`, which raises OSError for a list that is longer than any path may be
        return _parts_of_folder(path, reading)
    if os.path.isfile(path):
        if path.suffix.lower() in TABLE_KINDS:
            return {"all": lambda: TableSource(path, reading)}
        if path.suffix.lower() == ".tar":
            return {"all": lambda: ShardSource([path])}
        raise UserError(f"{where}: pairs are read from .tar, {', '.join(TABLE_KINDS)} or a folder, not from this")
    refuse_missing(where)
    return {"all": lambda: ShardSource(local_shards(where))}


def _parts_of_folder(folder: Path, reading: FindingSettings) -> dict[str, Callable[[], Source]]:
    openers: dict[str, Callable[[], Source]] = {}
    for part, names in PART_NAMES.items():
        for name in names:
            if part not in openers and (folder / name).is_dir():
                openers[part] = partial(_undivided, folder / name, reading)
            for kind in TABLE_KINDS:
                if part not in openers and (folder / (name + kind)).is_file():
                    openers[part] = partial(TableSource, folder / (name + kind), reading)
    return openers or {"all": lambda: _undivided(folder, reading)}


def _undivided(folder: Path, reading: FindingSettings) -> Source:
    if shards := shards_of_folder(folder):
        return ShardSource(shards)
    shown = [file for file in sorted(folder.iterdir()) if not file.name.startswith(".")]  # macOS: ._pairs.csv
    tables = [file for file in shown if file.suffix.lower() in TABLE_KINDS]
    if len(tables) == 1:
        return TableSource(tables[0], reading)
    if tables:
        raise UserError(f"{folder} holds several tables; name one: {', '.join(str(table) for table in tables)}")
    if has_images(folder):
        return FolderSource(folder)
    raise UserError(
        f"no pairs in {folder}: expected .tar shards, a .csv, .tsv or .parquet table, or images with .txt files; "
        f"found {', '.join(sorted(os.listdir(folder))[:8]) or 'nothing'}"
    )


def _remote_parts(where: str) -> dict[str, list[RemoteShard]]:
    """Return the shards of each part of a folder on another machine, or of the shards that `where` names."""
    if any(mark in where for mark in ("{", "::", "*")) or shown_url(where).lower().endswith(".tar"):
        urls = [url for name in _expand(where) for url in matching(name)]
        if not urls or not all(map(is_url, urls)):
            raise UserError(f"{shown_url(where)}: no shards match, or some have no URL; name all of them by URLs")
        return {"all": list(map(RemoteShard, urls))}
    folders, files = listed(where)
    inside = {folder.rpartition("/")[2]: folder for folder in folders}
    named = {part: next(filter(inside.get, names), "") for part, names in PART_NAMES.items()}
    parts = {part: listed(inside[name])[1] for part, name in named.items() if name} or {"all": files}
    found = {part: sorted(filter(_is_shown_tar, urls), key=natural_order) for part, urls in parts.items()}
    if empty := [part for part, urls in found.items() if not urls]:
        raise UserError(f"no .tar shards in {shown_url(where)}" + ("" if "all" in found else f" for {empty[0]}"))
    return {part: list(map(RemoteShard, urls)) for part, urls in found.items()}


def _is_shown_tar(url: str) -> bool:
    return url.endswith(".tar") and not url.rpartition("/")[2].startswith(".")


def _expand(where: str) -> list[str]:
    from webdataset.shardlists import expand_urls

    try:
        shards = expand_urls(where)
    except ValueError:
        raise UserError(f"{where!r}: a brace is not closed; many shards are 'shards/{{0000..0331}}.tar'") from None
    except AssertionError:
        raise UserError(
            f"{where!r}: ${{NAME}} stands for the environment variable WDS_NAME, and there is none; for a variable of "
            "the shell write $NAME, without braces"
        ) from None
    files = [shard for shard in shards if not shard.startswith("pipe:")]
    if 0 < len(files) < len(shards):
        raise UserError(f"files and pipe: shards cannot be mixed: write 'pipe:cat {files[0]}'")
    return shards


def local_shards(where: str) -> list[Path]:
    shards: list[Path] = []
    for name in _expand(where):
        matches = sorted(glob.glob(name)) if any(mark in name for mark in "*?[") else [name]
        if not matches:
            raise UserError(f"no file matches {name}; name yours, as --data 'FOLDER/*.tar' or --data FOLDER")
        shards += map(Path, matches)
    return shards


def _open_pipe(shards: list[str], reading: FindingSettings, split: str) -> Source:
    if split == "all":
        return PipeSource(shards, reading.epoch_samples)
    if reading.train_items is not None:
        raise UserError(
            "--reading.train-items chooses images by name, and the content of pipe: shards is not known beforehand: "
            "store them first"
        )
    if split == "test":
        raise UserError("pipe: shards are not divided into parts; 'val' can be held out from them")
    val, train = streams.held_out(shards, reading)
    if split == "val":
        return streams.read_into_memory(val, reading.val_most)
    return PipeSource(train, reading.epoch_samples)


def open_images(where: str | Path, reading: FindingSettings | None = None) -> ImageFiles | ImageShards:
    """Open the images that a user names after `--images`."""
    reading, path, where = reading or FindingSettings(), Path(where), str(where)
    if is_url(where):
        parts = _remote_parts(where)
        if "all" not in parts:
            raise UserError(
                f"{where} is divided into parts: name the folder of one, as {where.rstrip('/')}/{next(iter(parts))}"
            )
        return ImageShards(parts["all"])
    if os.path.isdir(path):
        if shards := shards_of_folder(path):
            return ImageShards(shards)
        if not (names := find_images(path)[0]):
            raise UserError(f"no images in {path} or below; to choose a part of a data set, name its folder of shards")
        return ImageFiles(path, names)
    kind, is_file = path.suffix.lower(), os.path.isfile(path)
    if is_file and kind == LIST_KIND:
        return ImageFiles(path.parent, listed_paths(path))
    if is_file and kind in TABLE_KINDS:
        rows = table_rows(path, {"image-column": reading.image_column})
        cells = dict.fromkeys(cell.strip() or without_image(number) for number, (cell,) in enumerate(rows, 1))
        if not cells:
            raise UserError(f"{path} has a header but no rows")
        return ImageFiles(path.parent, list(cells))
    if where.startswith("pipe:"):
        raise UserError("images are read in any order, which pipe: shards cannot be; store them first")
    if (is_file and kind == ".tar") or is_pattern(where):
        return ImageShards(local_shards(where))
    if is_file:
        raise UserError(f"{where}: images come from a folder, .tar, {LIST_KIND} list or {', '.join(TABLE_KINDS)} table")
    raise UserError(f"there is no {where}.{nearest(path)}")


def open_captions(where: str | Path, reading: FindingSettings | None = None, split: str = "all") -> CaptionSource:
    """Open the captions that a user names after `--captions`: a text file, a table, or (a part of) pairs."""
    reading, path = reading or FindingSettings(), Path(where)
    if os.path.isfile(path) and path.suffix.lower() in (LIST_KIND, *TABLE_KINDS):
        if path.suffix.lower() == LIST_KIND:
            captions: Sequence[bytes] = TextLines(path)
        else:
            rows = table_rows(path, {"caption-column": reading.caption_column})
            captions = [cell.encode("utf-8", "surrogateescape") for (cell,) in rows]
        if not any(caption.strip() for caption in captions):
            raise UserError(f"no captions in {path}")
        return CaptionList(captions, digest("captions", content_hash(path), reading.caption_column))
    if str(where).startswith("pipe:"):
        raise UserError("captions are read in any order, which pipe: shards cannot be; store them first")
    return open_stored(where, reading, split)


def listed_paths(path: Path) -> list[str]:
    """Read a list of paths. File names are bytes to the system, so bytes that are no UTF-8 stay as they are."""
    text = file_bytes(path, TABLE_BYTES).removeprefix(_BYTE_ORDER_MARK).decode("utf-8", "surrogateescape")
    names = [name for line in text.split("\n") if (name := line.rstrip("\r")).strip()]
    if not names:
        raise UserError(f"{path} lists no images: one path a line is expected")
    return names


class ImageShards(ShardSource):
    def _check_texts(self) -> None:
        """Accept shards without any text beside the images."""


class WithoutCaptions(Source):
    """Presents images as a source of pairs with no captions. A missing caption does not damage an image."""

    def __init__(self, images: ImageSource) -> None:
        self.images, self.fingerprint = images, images.fingerprint

    def __len__(self) -> int:
        return len(self.images)

    def key(self, index: int) -> str:
        return self.images.key(index)

    def image(self, index: int) -> bytes:
        return self.images.image(index)

    def captions(self, index: int) -> tuple[str, ...]:
        return ()

    def sizes(self) -> np.ndarray:
        return self.images.sizes()

    def stamps(self) -> np.ndarray:
        return self.images.stamps()


class TextLines(Sequence[bytes]):
    """Reads lines of a text file on demand: the index of ten million lines takes 80 MB."""

    def __init__(self, path: Path) -> None:
        self._text = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
        pieces = range(0, len(self._text), _PIECE)
        breaks = (np.flatnonzero(self._text[at : at + _PIECE] == ord("\n")) + (at + 1) for at in pieces)
        self._starts = np.concatenate([np.zeros(1, np.int64), *breaks])
        if self._starts[-1] != len(self._text):  # the last line does not end in a line break
            self._starts = np.append(self._starts, len(self._text) + 1)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: Any) -> Any:  # places only, no slices
        if index >= len(self):
            raise IndexError(index)
        start, end = int(self._starts[index]), int(self._starts[index + 1]) - 1
        return self._text[start:end].tobytes().removeprefix(_BYTE_ORDER_MARK if index == 0 else b"")


class CaptionList:
    """Lists captions without images, from a text file or a column of a table. The key is the number of the caption."""

    def __init__(self, captions: Sequence[bytes], fingerprint: str) -> None:
        self._captions, self.fingerprint = captions, fingerprint

    def __len__(self) -> int:
        return len(self._captions)

    def key(self, index: int) -> str:
        return str(index + 1)

    def stamps(self) -> np.ndarray:
        return np.empty((len(self), 0), dtype=np.int64)  # the fingerprint covers all captions

    def captions(self, index: int) -> tuple[str, ...]:
        try:
            text = self._captions[index].decode("utf-8")
        except UnicodeDecodeError as error:
            raise Damage("not-utf8", str(error)) from None
        return clean_captions([text])
