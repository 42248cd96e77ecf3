"""Notices damaged bytes: hashes beside the files of a folder, and a hash inside a JSON object.

A folder that is written at once (a checkpoint, an export) holds `checksums.sha256`: a line for each file as `sha256sum`
writes it, so that `sha256sum -c` reads it too, and at the end the hash of these lines. That last hash stands for the
whole folder, design and weights together. Folders of versions that wrote no hashes open as before.

A JSON file beside others (settings, scores, manifests) holds the hash of its other entries as "checksum".

SHA-256 is the fastest hash of Python's own library where the processor knows it (0.9 GB/s on the cores of the benches;
BLAKE2b 0.4, CRC-32 1.4), and a standard tool reads it. It still takes a quarter of the time in which a fast disk stores
a checkpoint, so checkpoints are hashed by a thread beside training (`sealing`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
import zlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from dinorankclip.checked_files import JSON_BYTES, UnfitFile, file_text, naming, open_regular, read_object
from dinorankclip.io import write_text
from dinorankclip.json_shape import Shape, fault

CHECKSUMS = "checksums.sha256"
CHECKSUM = "checksum"  # entry of a sealed JSON object
CRC = "crc32"  # entry of a line of a log
COPY_AGAIN = f"copy the folder again, or delete {CHECKSUMS} if you changed the file yourself"
_LINE = re.compile(r"([0-9a-f]{64})  ([^\n]+)")
_LAST = re.compile(r"# all of the above: ([0-9a-f]{64})\n")


class DamagedFile(UnfitFile):
    """Reports a file whose bytes are not those that were written."""


def file_hash(path: str | Path) -> str:
    """Return the SHA-256 of a regular file in hexadecimal digits."""
    with naming(path), os.fdopen(open_regular(path), "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal_folder(folder: Path) -> None:
    """Write the hashes of all files in the folder and below."""
    lines = "".join(f"{file_hash(path)}  {name}\n" for name, path in _files(folder).items())
    write_text(folder / CHECKSUMS, lines + f"# all of the above: {_text_hash(lines)}\n")


class Sealing:
    """Seals one folder at a time in a thread. Hashes are computed outside of Python, so training goes on meanwhile."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def start(self, folder: Path) -> None:
        """Begin to seal a folder that is in its place, unless it is sealed."""
        self.wait()
        if not (folder / CHECKSUMS).is_file():
            self._thread = threading.Thread(target=self._seal, args=(folder,), name=f"hashes of {folder.name}")
            self._thread.start()

    def wait(self) -> None:
        """Wait until the folder is sealed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @staticmethod
    def _seal(folder: Path) -> None:
        # A folder without hashes is whole; a full disk will be reported by the next file that must be written.
        with contextlib.suppress(OSError):
            seal_folder(folder)


sealing = Sealing()


def _files(folder: Path) -> dict[str, Path]:
    """Return all files of a folder by their names inside it; folders that have hashes of their own do not count."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not (path / CHECKSUMS).is_file():
            found |= {f"{path.name}/{name}": file for name, file in _files(path).items()}
        elif path.is_file() and path.name != CHECKSUMS and not path.name.startswith("."):
            found[path.name] = path
    return found


def read_checksums(folder: Path) -> dict[str, str]:
    """Return the stored hash of each file of a folder; empty for a folder without hashes."""
    path = folder / CHECKSUMS
    if not path.is_file():
        return {}
    text = file_text(path, JSON_BYTES)
    start = text.rfind("#")
    last = _LAST.fullmatch(text[start:])
    if start < 0 or last is None or last[1] != _text_hash(text[:start]):
        raise DamagedFile(f"{path} is damaged: its lines do not have the hash at its end; {COPY_AGAIN}")
    matches = (_LINE.fullmatch(line) for line in text[:start].splitlines())
    return {match[2]: match[1] for match in matches if match}


def check_folder(folder: Path, skip: Collection[str] = (), advice: str = COPY_AGAIN) -> None:
    """Refuse a folder with a file that is not as it was written. Files that are missing are left to their readers."""
    for path in changed_files(folder, skip):
        raise DamagedFile(f"{path} is damaged: it is not as it was written ({CHECKSUMS} beside it); {advice}")


def check_file(path: Path, advice: str = COPY_AGAIN) -> None:
    """Refuse a file of a folder with hashes that is not as it was written."""
    if read_checksums(path.parent).get(path.name, file_hash(path)) != file_hash(path):
        raise DamagedFile(f"{path} is damaged: it is not as it was written ({CHECKSUMS} beside it); {advice}")


def changed_files(folder: Path, skip: Collection[str] = ()) -> Iterator[Path]:
    """Yield the files that are not as they were written, apart from those named in `skip`."""
    for name, stored in read_checksums(folder).items():
        path = folder / name
        if name not in skip and path.is_file() and file_hash(path) != stored:
            yield path


def sealed(value: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the hash of its entries; the entries may be nested."""
    bare = {name: entry for name, entry in value.items() if name != CHECKSUM}
    return bare | {CHECKSUM: _object_hash(bare)}


def read_sealed(path: Path, shape: Shape | None = None, advice: str = "") -> dict[str, Any]:
    """Read a JSON object without its hash; refuse it if the hash is of other entries. An object without one is old."""
    value = read_object(path)
    if CHECKSUM in value and value.pop(CHECKSUM) != _object_hash(value):
        raise DamagedFile(f"{path} is damaged: its entries are not those that were written{advice and f'; {advice}'}")
    if shape is not None and (text := fault(value, shape)):
        raise UnfitFile(f"{path} is damaged: {text}")
    return value


def sealed_line(numbers: dict[str, Any]) -> str:
    """Return a line of a log: a JSON object whose last entry is the CRC-32 of the others."""
    return json.dumps(numbers | {CRC: _crc(numbers)}) + "\n"


def is_as_written(line: dict[str, Any]) -> bool:
    """Return whether the entries of a line are those that were written, and remove their CRC. A line without is old."""
    return CRC not in line or line.pop(CRC) == _crc(line)


def _crc(numbers: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(numbers).encode()):08x}"


def bytes_hash(pieces: Iterable[Any]) -> str:
    """Return the SHA-256 of bytes or arrays, one after the other."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _object_hash(value: dict[str, Any]) -> str:
    stored = json.loads(json.dumps(value))  # as a reader will see it: names are texts, and sorted as texts
    return _text_hash(json.dumps(stored, sort_keys=True, separators=(",", ":")))


def _text_hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
