"""Images without captions, and captions without images: what `embed` and `search` read besides pairs.

    DIR of images                  all below it, by path; captions beside them are not looked at
    FILE.txt                       a list of image paths, one a line, relative to the list
    FILE.csv, .tsv, .parquet       the column of image paths, each image once
    DIR of .tar files, FILE.tar    shards with or without captions or classes; also a-{000..123}.tar and globs

The first are an `ImageSource`, the others a `CaptionSource`; pairs are both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from dinorankclip.config import FindingSettings
from dinorankclip.data import decode as caption_files
from dinorankclip.data.damage import Damage
from dinorankclip.data.folders import find_images, read_file, sizes_and_times
from dinorankclip.data.open_data import local_shards, nearest, open_stored
from dinorankclip.data.tables import TABLE_KINDS, content_hash, table_rows, without_image
from dinorankclip.data.tar_shards import ShardSource, shards_of_folder
from dinorankclip.io import digest
from dinorankclip.types import CaptionSource, ImageSource, RawSample, UserError

LIST_KIND = ".txt"
_MARK = b"\xef\xbb\xbf"  # the byte-order mark that Windows editors put first
_PIECE = 1 << 24


class ImageFiles:
    """Image files by name, relative to a folder; the name is the key."""

    def __init__(self, base: Path, names: Sequence[str]) -> None:
        self.base, self._names = base, names
        self.fingerprint = digest("images", *names)

    def __len__(self) -> int:
        return len(self._names)

    def key(self, index: int) -> str:
        return self._names[index]

    def sizes(self) -> np.ndarray:
        """Bytes of each image, -1 where there is none."""
        return self.stamps()[:, 0]

    def stamps(self) -> np.ndarray:
        """What tells a replaced image from the old one."""
        return sizes_and_times(self.base / name for name in self._names)

    def image(self, index: int) -> bytes:
        return read_file(self.base / self._names[index], missing="missing-image")


class ImageShards(ShardSource):
    """Images of shards, whatever lies beside them."""

    def _check_texts(self) -> None:
        """There need be none."""


class WithoutCaptions:
    """Images as a source of pairs, each with no caption at all. A missing caption does not damage an image."""

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

    def read(self, index: int) -> RawSample:
        return RawSample(self.key(index), self.image(index), ())


class Captions(Protocol):
    """Captions as they are stored, one for each index; a list is one such."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[bytes]: ...
    def __getitem__(self, index: int, /) -> bytes: ...


class Lines:
    """The lines of a text file, read when they are asked for: a list of ten million captions costs 80 MB."""

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

    def __iter__(self) -> Iterator[bytes]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> bytes:
        start, end = int(self._starts[index]), int(self._starts[index + 1]) - 1
        return self._text[start:end].tobytes().removeprefix(_MARK if index == 0 else b"")


class CaptionLines:
    """Captions one by one, from a text file or the column of a table; the key is the number of the line or row.

    Of rows that hold lists of captions, the key counts the captions.
    """

    def __init__(self, captions: Captions, fingerprint: str) -> None:
        self._captions = captions
        self.fingerprint = fingerprint

    def __len__(self) -> int:
        return len(self._captions)

    def key(self, index: int) -> str:
        return str(index + 1)

    def stamps(self) -> np.ndarray:
        """Nothing that the fingerprint does not know: int64 [n, 0]."""
        return np.empty((len(self), 0), dtype=np.int64)

    def captions(self, index: int) -> tuple[str, ...]:
        try:
            text = self._captions[index].decode("utf-8")
        except UnicodeDecodeError as error:
            raise Damage("not-utf8", str(error)) from None
        return caption_files.cleaned([text])


def open_images(where: str | Path, reading: FindingSettings | None = None) -> ImageFiles | ImageShards:
    """The images behind what a user types after `--images`."""
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
    """The captions behind what a user types after `--captions`: a text file, a table, or those of (a part of) pairs."""
    reading, path = reading or FindingSettings(), Path(where)
    if os.path.isfile(path) and path.suffix.lower() in (LIST_KIND, *TABLE_KINDS):
        if path.suffix.lower() == LIST_KIND:
            captions: Captions = Lines(path)
        else:
            rows = table_rows(path, {"caption-column": reading.caption_column})
            captions = [cell.encode("utf-8", "surrogateescape") for (cell,) in rows]
        if not any(caption.strip() for caption in captions):
            raise UserError(f"no captions in {path}")
        return CaptionLines(captions, digest("captions", content_hash(path), reading.caption_column))
    if str(where).startswith("pipe:"):
        raise UserError("captions are read in any order, which pipe: shards cannot be; store them first")
    return open_stored(where, reading, split)


def listed_paths(path: Path) -> list[str]:
    """Lines of a list of paths. File names are bytes to the system, so bytes that are no UTF-8 stay as they are."""
    text = path.read_bytes().removeprefix(_MARK).decode("utf-8", "surrogateescape")
    names = [name for line in text.split("\n") if (name := line.rstrip("\r")).strip()]
    if not names:
        raise UserError(f"{path} lists no images: one path a line is expected")
    return names
