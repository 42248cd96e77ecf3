"""Handles files for every room: atomic writes, locks between processes, digests of content, the folder of caches.

A file or folder is written beside its place and renamed at the end. A reader never sees half of it, and a kill, a full
disk or a power cut leaves the previous version.

All caches lie under `home()`: the environment variable DINORANKCLIP_HOME, by default `built` in the current folder.
Everything there can be deleted; making it again costs time only.
    index/     tar indexes, validation cuts       scenes/       the built-in data     teacher/  automatic teacher caches
    features/  rows of a frozen image tower       embeddings/   rows for scoring      scores/   scores of foreign models
    photo-index/  photo folders that cannot be written
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


def home() -> Path:
    """Return the folder of all caches. Rooms read it when they are imported, so set the variable before that."""
    return Path(os.environ.get("DINORANKCLIP_HOME") or "built")


def _writer() -> str:
    """Name this process. Machines that share a disk may use the same process ids."""
    return f"{platform.node()}.{os.getpid()}"


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Yield a path to write to. On success that file replaces `path`; on any error it is removed."""
    path = Path(path)
    aside = path.with_name(f".{path.name}.{_writer()}")
    try:
        yield aside
        with open(aside, "r+b") as file:  # flushed first: a rename can reach the disk earlier than the contents
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """Yield an empty folder. On success it becomes `out`, which must be absent or empty; on any error it is removed."""
    aside = out.with_name(f".{out.name}.{_writer()}.unfinished")
    shutil.rmtree(aside, ignore_errors=True)  # left by a killed process with the same id
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


def if_free(name: str, folder: Path) -> contextlib.AbstractContextManager[bool]:
    """Try to take a lock for the length of the block. Yield whether this process holds the lock."""
    return _locked(name, folder, wait=False)


def one_at_a_time(name: str, folder: Path) -> contextlib.AbstractContextManager[bool]:
    """Wait for a lock and hold it for the length of the block, so that one process works and others find the result.

    Unlike a barrier between training processes, a lock also works if only one of them comes here.
    """
    return _locked(name, folder, wait=True)


@contextlib.contextmanager
def _locked(name: str, folder: Path, wait: bool) -> Iterator[bool]:
    """Hold a lock file. On a disk without locks every process is free, and the empty lock file stays.

    The holder removes the file before it lets go of the lock. A process that waited for the removed file notices that
    the file has no name any more, and starts over (filelock does so from version 3.21 on).
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / f"{name}.lock", -1 if wait else 0, poll_interval=0.02, fallback_to_soft=False)
    free = True
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        free = False
    except OSError:
        pass
    try:
        yield free
    finally:
        if lock.is_locked:
            with contextlib.suppress(OSError):
                os.unlink(lock.lock_file)
            lock.release()


def digest(*parts: object) -> str:
    """Return a short stable name for a combination of values: data, models, settings."""
    summary = hashlib.blake2b(digest_size=12)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogateescape")
        summary.update(len(data).to_bytes(8, "little") + data)
    return summary.hexdigest()


# Tables never lie beside the data, which may be read-only. Files are plain arrays (.npz); nothing is unpickled.
INDEX_FOLDER = home() / "index"


def load_table(name: str) -> dict[str, Any] | None:
    """Return the index table stored under this name, or None."""
    import numpy as np

    try:
        with np.load(INDEX_FOLDER / f"{name}.npz", allow_pickle=False) as table:
            return {column: table[column] for column in table.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
        return None  # absent, or damaged by a power cut


def save_table(name: str, table: dict[str, Any]) -> None:
    """Store an index table. A read-only or full disk is no error: the table is made again next time."""
    import numpy as np

    with contextlib.suppress(OSError):
        INDEX_FOLDER.mkdir(parents=True, exist_ok=True)
        with whole_file(INDEX_FOLDER / f"{name}.npz") as aside, open(aside, "wb") as file:
            np.savez(file, **table)  # type: ignore[arg-type]  # the stubs take any name for `allow_pickle`
