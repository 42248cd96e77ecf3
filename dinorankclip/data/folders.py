"""A folder of images with a caption file beside each: `shoes/red.jpg` and `shoes/red.txt`, one caption a line."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from dinorankclip.data import decode as caption_files
from dinorankclip.data.damage import Damage
from dinorankclip.data.tar_shards import IMAGE_KINDS
from dinorankclip.io import digest
from dinorankclip.types import RawSample, UserError

log = logging.getLogger(__name__)


class FolderSource:
    """Images of a folder and its subfolders, by path. The key is the path inside the folder.

    The fingerprint covers the captions, and names and sizes of the images.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._names, captioned = find_images(self.folder)
        if not self._names:
            raise UserError(f"no images in {folder}")
        if not captioned:
            raise UserError(
                f"{folder} has {len(self._names)} images, but none has a .txt file of the same name beside it, such as "
                f"{Path(self._names[0]).with_suffix('.txt')}. A CSV with image and caption columns works too."
            )
        self._sizes = self.stamps()[:, 0]
        self.fingerprint = digest("folder", *self._names, self._sizes.tobytes(), *map(self._caption_bytes, self._names))

    def _caption_bytes(self, name: str) -> bytes:
        try:
            return self._beside(name).read_bytes()
        except OSError:
            return b""

    def _beside(self, name: str) -> Path:
        return (self.folder / name).with_suffix(".txt")

    def __len__(self) -> int:
        return len(self._names)

    def key(self, index: int) -> str:
        return self._names[index]

    def sizes(self) -> np.ndarray:
        """Bytes of each image."""
        return self._sizes

    def stamps(self) -> np.ndarray:
        """What tells a replaced image from the old one; see `sizes_and_times`."""
        return sizes_and_times(self.folder / name for name in self._names)

    def captions(self, index: int) -> tuple[str, ...]:
        return caption_files.from_text(read_file(self._beside(self._names[index]), missing="no-caption"))

    def image(self, index: int) -> bytes:
        return read_file(self.folder / self._names[index], missing="missing-image")

    def read(self, index: int) -> RawSample:
        return RawSample(self.key(index), self.image(index), self.captions(index))


def read_file(path: Path, missing: str) -> bytes:
    """A file's bytes; `Damage` if it is not there (cause `missing`) or cannot be read."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise Damage(missing, str(path)) from None
    except ValueError:  # a zero byte in the name
        raise Damage(missing, str(path)) from None
    except OSError as error:
        # A caption in the place of a name, or links in a circle, will never be a file; a disk may come back.
        never = error.errno in (errno.ENAMETOOLONG, errno.ELOOP)
        raise Damage(missing if never else "unreadable", str(error)) from None


def sizes_and_times(paths: Iterable[Path]) -> np.ndarray:
    """int64 [n, 2]: bytes and time of the last change of each file, -1 where there is none."""
    found = []
    for path in paths:
        try:
            state = os.stat(path)
            found.append((state.st_size, state.st_mtime_ns))
        except (OSError, ValueError):  # ValueError: a zero byte in the name
            found.append((-1, -1))
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def find_images(folder: Path) -> tuple[list[str], bool]:
    """Paths of all images inside the folder, sorted, and whether any of them has a caption file."""
    names, captioned = [], False
    for where, _, files in _walk(folder):
        stems = {name[:-4] for name in files if name.endswith(".txt")}
        for name in files:
            stem, _, kind = name.rpartition(".")
            if stem and not name.startswith(".") and kind.lower() in IMAGE_KINDS:
                names.append((Path(where) / name).relative_to(folder).as_posix())
                captioned |= stem in stems
    return sorted(names), captioned


def _walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """As `os.walk`, but not into hidden folders. Linked ones are left out, too, and named: their files would have two
    names, or lie outside of what was asked for."""
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in folders:
            if os.path.islink(os.path.join(where, name)):
                log.warning("%s is a link to a folder, and is left out: name its target itself", Path(where) / name)
        yield where, folders, files


def has_images(folder: Path) -> bool:
    """Whether there is any image in the folder or below; stops at the first."""
    for _, _, files in _walk(folder):
        if any(name.rpartition(".")[2].lower() in IMAGE_KINDS and not name.startswith(".") for name in files):
            return True
    return False
