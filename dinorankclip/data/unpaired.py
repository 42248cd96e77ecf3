"""Opens images without captions, and captions without images, which `embed` and `search` read besides pairs.

    DIR of images                  all images below it, by path; captions beside them are not looked at
    FILE.txt                       a list of image paths, one a line, relative to the list
    FILE.csv, .tsv, .parquet       the column of image paths, each image once
    DIR of .tar files, FILE.tar    shards with or without captions or classes; also a-{000..123}.tar and globs

`open_images` returns an `ImageSource`, `open_captions` a `CaptionSource`; pairs are both.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip.config import FindingSettings
from dinorankclip.data.damage import Damage
from dinorankclip.data.decode import clean_captions
from dinorankclip.data.folders import ImageFiles, find_images
from dinorankclip.data.open_data import local_shards, nearest, open_stored
from dinorankclip.data.tables import TABLE_KINDS, content_hash, table_rows, without_image
from dinorankclip.data.tar_shards import ShardSource, shards_of_folder
from dinorankclip.io import digest
from dinorankclip.types import CaptionSource, ImageSource, Source, UserError

LIST_KIND = ".txt"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # Windows editors put it first
_PIECE = 1 << 24


class ImageShards(ShardSource):
    """Images of shards, with or without text beside them."""

    def _check_texts(self) -> None:
        """Accept shards without any text."""


class WithoutCaptions(Source):
    """Presents images as a source of pairs with no captions. A missing caption does not damage an image."""

    def __init__(self, images: ImageSource) -> None:
        self.images = images
        self.fingerprint = images.fingerprint

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
    """The lines of a text file, read when they are asked for: the index of ten million lines takes 80 MB."""

    def __init__(self, path: Path) -> None:
        self._text = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
        starts = [np.zeros(1, np.int64)]
        for at in range(0, len(self._text), _PIECE):
            starts.append(np.flatnonzero(self._text[at : at + _PIECE] == ord("\n")) + (at + 1))
        self._starts = np.concatenate(starts)
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
    """Captions without images, from a text file or a column of a table. The key is the number of the caption."""

    def __init__(self, captions: Sequence[bytes], fingerprint: str) -> None:
        self._captions = captions
        self.fingerprint = fingerprint

    def __len__(self) -> int:
        return len(self._captions)

    def key(self, index: int) -> str:
        return str(index + 1)

    def stamps(self) -> np.ndarray:
        """Return int64 [n, 0]: the fingerprint covers all captions."""
        return np.empty((len(self), 0), dtype=np.int64)

    def captions(self, index: int) -> tuple[str, ...]:
        try:
            text = self._captions[index].decode("utf-8")
        except UnicodeDecodeError as error:
            raise Damage("not-utf8", str(error)) from None
        return clean_captions([text])


def open_images(where: str | Path, reading: FindingSettings | None = None) -> ImageFiles | ImageShards:
    """Open the images that a user names after `--images`."""
    reading, path, where = reading or FindingSettings(), Path(where), str(where)
    if os.path.isdir(path):
        if shards := shards_of_folder(path):
            return ImageShards(shards)
        names, _ = find_images(path)
        if not names:
            raise UserError(f"no images in {path} or below; to choose a part of a data set, name its folder of shards")
        return ImageFiles(path, names)
    kind = path.suffix.lower()
    is_file = os.path.isfile(path)
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
    if (is_file and kind == ".tar") or any(mark in where for mark in ("{", "::", "*", "?")):
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
    text = path.read_bytes().removeprefix(_BYTE_ORDER_MARK).decode("utf-8", "surrogateescape")
    names = [name for line in text.split("\n") if (name := line.rstrip("\r")).strip()]
    if not names:
        raise UserError(f"{path} lists no images: one path a line is expected")
    return names
