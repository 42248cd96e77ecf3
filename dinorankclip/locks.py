"""Locks between processes of one machine: a file each, which is gone when nobody holds it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


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
