"""Reads pairs from a folder of images with caption files beside them: `shoes/red.jpg` and `shoes/red.txt`."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from dinorankclip.data.damage import Damage
from dinorankclip.data.decode import captions_from_text
from dinorankclip.data.tar_shards import IMAGE_KINDS
from dinorankclip.io import digest
from dinorankclip.types import Source, UserError

log = logging.getLogger(__name__)


class ImageFiles:
    """Reads image files by name, relative to a folder. The name is the key."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder, self._names = folder, names
        self.fingerprint = digest("images", *names)

    def __len__(self) -> int:
        return len(self._names)

    def key(self, index: int) -> str:
        return self._names[index]

    def sizes(self) -> np.ndarray:
        return self.stamps()[:, 0]

    def stamps(self) -> np.ndarray:
        return sizes_and_times(self.folder / name for name in self._names)

    def image(self, index: int) -> bytes:
        return read_file(self.folder / self._names[index], missing="missing-image")


class FolderSource(ImageFiles, Source):
    """Reads the images of a folder and its subfolders, by path. The key is the path inside the folder.

    The fingerprint covers the captions, and names and sizes of the images.
    """

    def __init__(self, folder: Path) -> None:
        names, captioned = find_images(folder)
        if not names:
            raise UserError(f"no images in {folder}")
        if not captioned:
            raise UserError(
                f"{folder} has {len(names)} images, but none has a .txt file of the same name beside it, such as "
                f"{Path(names[0]).with_suffix('.txt')}. A CSV with image and caption columns works too."
            )
        super().__init__(Path(folder), names)
        self.fingerprint = digest("folder", *names, self.sizes().tobytes(), *map(self._caption_bytes, names))

    def _caption_bytes(self, name: str) -> bytes:
        try:
            return (self.folder / name).with_suffix(".txt").read_bytes()
        except OSError:
            return b""

    def captions(self, index: int) -> tuple[str, ...]:
        file = (self.folder / self._names[index]).with_suffix(".txt")
        return captions_from_text(read_file(file, missing="no-caption"))


def read_file(path: Path, missing: str) -> bytes:
    """Return a file's bytes; `Damage` if it is not there (cause `missing`) or cannot be read."""
    try:
        return path.read_bytes()
    except (
        FileNotFoundError,
        NotADirectoryError,
        IsADirectoryError,
        ValueError,
    ):  # ValueError: a zero byte in the name
        raise Damage(missing, str(path)) from None
    except OSError as error:
        # A caption in the place of a name, or links in a circle, will never be a file; a disk may come back.
        never = error.errno in (errno.ENAMETOOLONG, errno.ELOOP)
        raise Damage(missing if never else "unreadable", str(error)) from None


def sizes_and_times(paths: Iterable[Path]) -> np.ndarray:
    """Return int64 [n, 2]: bytes and time of the last change of each file, -1 where there is none."""
    states = []
    for path in paths:
        try:
            state = os.stat(path)
            states.append((state.st_size, state.st_mtime_ns))
        except (OSError, ValueError):  # ValueError: a zero byte in the name
            states.append((-1, -1))
    return np.array(states, dtype=np.int64).reshape(-1, 2)


def find_images(folder: Path) -> tuple[list[str], bool]:
    """Return the sorted paths of all images inside the folder, and whether any of them has a caption file."""
    names, captioned = [], False
    for where, files in _walk(folder):
        stems = {name[:-4] for name in files if name.endswith(".txt")}
        for name in filter(is_image, files):
            names.append((Path(where) / name).relative_to(folder).as_posix())
            captioned |= name.rpartition(".")[0] in stems
    return sorted(names), captioned


def has_images(folder: Path) -> bool:
    """Return whether there is any image in the folder or below; stop at the first."""
    return any(is_image(name) for _, files in _walk(folder) for name in files)


def is_image(name: str) -> bool:
    return name.rpartition(".")[2].lower() in IMAGE_KINDS and "." in name and not name.startswith(".")


def _walk(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (folder, names of its files), without hidden folders.

    Linked folders are left out, too, and named in the log: their files would have two names, or lie outside `folder`.
    """
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in folders:
            if os.path.islink(os.path.join(where, name)):
                log.warning("%s is a link to a folder, and is left out: name its target itself", Path(where) / name)
        yield where, files
