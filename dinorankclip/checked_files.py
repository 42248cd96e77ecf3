"""Reads files that may be damaged or made by others: regular files alone, and never more bytes than a reader allows.

A FIFO would make a reader wait for ever and a device would fill the memory, so the kind of a file is looked up before
it is opened, and again in the open file. Whatever is wrong with the content of a file becomes `UnfitFile`, a
`UserError`; readers that can do without the file catch it. Errors of the system (no such file, no permission) stay
`OSError`. Nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dinorankclip.json_shape import Shape, fault
from dinorankclip.types import UserError, first_line

if TYPE_CHECKING:
    import numpy as np

JSON_BYTES = 1 << 28  # settings, scores, manifests; the largest that were seen have some megabytes
LOG_BYTES = 1 << 30
ARRAY_BYTES = 1 << 34  # unpacked arrays of an .npz file: embeddings of a few million photos
TABLE_BYTES = 1 << 34  # a CSV table, which is read whole
_AT_ONCE = 1 << 24
# Flags that a system may lack. Without O_BINARY, Windows changes the ends of lines.
_HOW = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
_reading = threading.Lock()
# Letters of the header before an array; row_store.py pads its headers to 4,096 bytes. NumPy takes 17 s to refuse a
# damaged header of 9,000 letters, and the time grows with the square.
_HEADER = 4096
_ZIP_END, _MANY = 22, 0xFFFF  # bytes of the last record of an .npz file; the count in it if there are more
_NPY = b"\x93NUMPY"


class UnfitFile(UserError):
    """Reports a file that is no regular file, is too large, or does not hold what its reader expects."""


class NoRegularFile(UnfitFile):
    """Reports a FIFO, a device or a socket in the place of a file."""


class TooLarge(UnfitFile):
    """Reports a file with more bytes than its reader takes."""


def open_regular(path: str | Path) -> int:
    """Open a regular file for reading and return its number. Never waits, whatever stands at the path."""
    _demand_regular(os.stat(path).st_mode, path)
    # Another kind of file may have taken the place since then: without waiting, and looked at again.
    number = os.open(path, os.O_RDONLY | _HOW)
    try:
        _demand_regular(os.fstat(number).st_mode, path)
    except BaseException:
        os.close(number)
        raise
    return number


def _demand_regular(mode: int, path: str | Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}
        raise NoRegularFile(f"{path} is {kinds.get(stat.S_IFMT(mode), 'something else')}, not a regular file")


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Name the file in errors of the block that name none: a full or broken disk is reported by a write or a read,
    which know no name."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def file_bytes(path: str | Path, most: int) -> bytes:
    """Return all bytes of a regular file of at most `most` bytes."""
    number = open_regular(path)
    with naming(path), contextlib.ExitStack() as stack:
        stack.callback(os.close, number)
        size = os.fstat(number).st_size
        if size > most:
            raise TooLarge(f"{path} has {size:,} bytes, and at most {most:,} are read")
        data = os.read(number, size + 1)  # one more: a file that grows, or whose size the system does not know
        if len(data) == size:
            return data
        pieces, total = [data], len(data)
        while piece := os.read(number, _AT_ONCE):
            pieces.append(piece)
            total += len(piece)
            if total > most:
                raise TooLarge(f"{path} has more than {most:,} bytes, and at most {most:,} are read")
        return b"".join(pieces)


def bytes_at(number: int, size: int, at: int) -> bytes:
    """Read up to `size` bytes at a position of an open file. Threads can share the file; where the system has `pread`,
    which moves no file pointer, forked processes can too."""
    data = _piece_at(number, size, at)
    while len(data) < size and (more := _piece_at(number, size - len(data), at + len(data))):
        data += more  # network file systems may answer in pieces
    return data


def fill_at(number: int, room: memoryview, at: int) -> bool:
    """Read bytes at a position of an open file into `room`, without a copy where the system can. Tell whether the file
    had as many."""
    if not hasattr(os, "preadv"):
        data = bytes_at(number, len(room), at)
        room[: len(data)] = data
        return len(data) == len(room)
    while room and (count := os.preadv(number, [room], at)):
        room, at = room[count:], at + count
    return not room


def _piece_at(number: int, size: int, at: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(number, size, at)
    with _reading:
        os.lseek(number, at, os.SEEK_SET)
        return os.read(number, size)


def file_text(path: str | Path, most: int = JSON_BYTES) -> str:
    """Return the text of a UTF-8 file."""
    try:
        return file_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnfitFile(f"{path} is not in UTF-8: {error}") from None


def parsed_json(data: bytes | str) -> Any:
    """Parse JSON; raise ValueError for anything that is none, too deep nesting included."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("its lists or objects are nested too deeply") from None


def read_json(path: str | Path, shape: Shape | None = None) -> Any:
    """Read a JSON file; with a `shape`, refuse content that differs from it."""
    try:
        value = parsed_json(file_bytes(path, JSON_BYTES))
    except ValueError as error:
        raise UnfitFile(f"{path} is damaged: {error}") from None
    if shape is not None and (text := fault(value, shape)):
        raise UnfitFile(f"{path} is damaged: {text}")
    return value


def read_object(path: str | Path, shape: Shape | None = None) -> dict[str, Any]:
    """Read a file that holds a JSON object."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise UnfitFile(f"{path} is damaged: it holds no JSON object")
    if shape is not None and (text := fault(value, shape)):
        raise UnfitFile(f"{path} is damaged: {text}")
    return value


def read_arrays(path: str | Path, most: int = ARRAY_BYTES) -> dict[str, np.ndarray]:
    """Read all arrays of an .npz file."""
    import numpy as np

    opened = os.fdopen(open_regular(path), "rb")
    try:
        with opened as file, zipfile.ZipFile(file) as packed:
            size = sum(entry.file_size for entry in packed.infolist())
            if size > most:
                raise TooLarge(f"{path} unpacks to {size:,} bytes, and at most {most:,} are read")
            file.seek(-_ZIP_END, os.SEEK_END)
            listed = int.from_bytes(file.read(_ZIP_END)[10:12], "little")
            if listed not in (len(packed.infolist()), _MANY):
                raise ValueError(f"{len(packed.infolist())} of {listed} arrays are found")
            file.seek(0)
            with np.load(file, allow_pickle=False, max_header_size=_HEADER) as arrays:
                found = {name: arrays[name] for name in arrays.files}
            if raw := [name for name, value in found.items() if not isinstance(value, np.ndarray)]:
                raise ValueError(f"{raw[0]} is no array")  # NumPy returns the bytes of such a member
            return found
    except UnfitFile:
        raise
    except Exception as error:  # zipfile, zlib and NumPy raise a dozen types of errors for damaged bytes
        _raise_system_error(error)
        raise UnfitFile(f"{path} is damaged: {first_line(error)}") from error


def read_array(path: str | Path) -> np.ndarray:
    """Map an .npy file read-only. Its bytes are not read, so a header that lies about its size costs no memory."""
    import numpy as np

    os.close(open_regular(path))
    try:
        with open(path, "rb") as file:
            if file.read(len(_NPY)) != _NPY:
                raise ValueError("it is no .npy file")
        return np.load(path, mmap_mode="r", allow_pickle=False, max_header_size=_HEADER)
    except Exception as error:  # NumPy raises a dozen types of errors for damaged headers
        _raise_system_error(error)
        raise UnfitFile(f"{path} is damaged: {first_line(error)}") from error


def _raise_system_error(error: Exception) -> None:
    """Raise an error of the disk again. Damaged offsets make the system refuse a position, which is no such error."""
    if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
        raise error
