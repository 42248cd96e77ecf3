"""Files and folders that appear whole or not at all: written beside their place, renamed into it at the end.

A reader never sees half of one, and a kill, a full disk or a power cut leaves what was there before.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def _writer() -> str:
    """Several processes may write the same file, also of machines that share a disk and count processes alike."""
    return f"{platform.node()}.{os.getpid()}"


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Yields a path to write to; on success that file takes the place of `path`, on any error it vanishes."""
    path = Path(path)
    aside = path.with_name(f".{path.name}.{_writer()}")
    try:
        yield aside
        to_disk(aside)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """Yields an empty folder; on success it becomes `out`, which may be there if it is empty; else it vanishes."""
    aside = out.with_name(f".{out.name}.{_writer()}.unfinished")
    shutil.rmtree(aside, ignore_errors=True)  # of a process of the same number that was killed
    aside.mkdir(parents=True)
    try:
        yield aside
        if out.exists():
            out.rmdir()
        os.replace(aside, out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_bytes(path: str | Path, data: bytes) -> None:
    with whole_file(path) as aside:
        aside.write_bytes(data)


def write_text(path: str | Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def to_disk(path: Path) -> None:
    """Before the name is given: a rename can reach the disk earlier than what was written."""
    with open(path, "r+b") as file:
        os.fsync(file.fileno())


# -------- locks
# Locks between processes of one machine: a file each, which is gone when nobody holds it.


@contextlib.contextmanager
def if_free(name: str, folder: Path) -> Iterator[bool]:
    """Whether nobody else of this machine is at a piece of work; if so, it is ours until the end of the block."""
    with _locked(name, folder, wait=False) as free:
        yield free


@contextlib.contextmanager
def one_at_a_time(name: str, folder: Path) -> Iterator[None]:
    """Let one process of this machine do a piece of work while the others wait, then find it done.

    A file lock rather than a barrier between training processes: it also works if only one of them comes here.
    """
    with _locked(name, folder, wait=True):
        yield


@contextlib.contextmanager
def _locked(name: str, folder: Path, wait: bool) -> Iterator[bool]:
    """Where there are no locks, everybody is free: several processes may do the same work, with the same result."""
    path = folder / f"{name}.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = _lock(path, wait)
    except (ImportError, OSError):
        yield True
        return
    if handle is None:
        yield False
        return
    try:
        yield True
    finally:
        with contextlib.suppress(OSError):
            if _lies_at(handle, path):
                path.unlink()  # as long as the lock is ours: who waits for this file sees that it is gone (`_lock`)
        os.close(handle)


def _lock(path: Path, wait: bool) -> int | None:
    """The open lock file, or None if somebody else has it."""
    import fcntl

    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:
            return handle  # a disk without locks
        if _lies_at(handle, path):
            return handle
        os.close(handle)  # the one before us removed it, so others lock another file of that name by now


def _lies_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


# -------- digests
# Short stable names for combinations of values: of data, models, settings, whatever is kept on disk under one.


def digest(*parts: object) -> str:
    """A short stable name for a combination of values."""
    summary = hashlib.blake2b(digest_size=12)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogateescape")
        summary.update(len(data).to_bytes(8, "little") + data)
    return summary.hexdigest()


# -------- kept
# Small derived tables kept on disk: tar indexes and validation cuts. Deleting them only costs time.
#
# They live in `built/index/` under the current folder, never beside the data, which may be read-only. If that
# folder cannot be written either, the tables are made anew each time. Files are arrays (.npz, nothing unpickled).

INDEX_FOLDER = Path("built/index")


def load_table(name: str) -> dict[str, Any] | None:
    """The table kept under this name, or None."""
    import numpy as np

    try:
        with np.load(INDEX_FOLDER / f"{name}.npz", allow_pickle=False) as table:
            return {column: table[column] for column in table.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
        return None  # absent, or written by a machine that lost power


def save_table(name: str, table: dict[str, Any]) -> None:
    """Keep a table, if the disk lets us."""
    import numpy as np

    try:
        INDEX_FOLDER.mkdir(parents=True, exist_ok=True)
        with whole_file(INDEX_FOLDER / f"{name}.npz") as aside, open(aside, "wb") as file:
            np.savez(file, **table)  # type: ignore[arg-type]  # the stubs take any name for `allow_pickle`
    except OSError:
        return  # a read-only or full disk must not stop anybody from reading data
