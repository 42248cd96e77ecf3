"""Handles files for every room: atomic writes, locks between processes, digests of content, the folder of caches.

A file or folder is written beside its place and renamed at the end. A reader never sees half of it, and a kill, a full
disk or a power cut leaves the previous version. Files beside their place and locks are new files: a link that stands
there is removed or refused, never followed. Folders that killed processes left are removed by the next writer.

All caches lie under `home()`: the environment variable DINORANKCLIP_HOME, by default `built` in the current folder.
Everything there can be deleted; making it again costs time only.
    index/     tar indexes, validation cuts       scenes/       the built-in data     teacher/  automatic teacher caches
    features/  rows of a frozen image tower       embeddings/   rows for scoring      scores/   scores of foreign models
    photo-index/  photo folders that cannot be written
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dinorankclip.checked_files import UnfitFile, naming, read_arrays
from dinorankclip.system import lives
from dinorankclip.types import UserError

STALE_AFTER = (
    24 * 3600
)  # seconds after which an unfinished folder of another machine counts as left by a killed process
_UNFINISHED = ".unfinished"


def home() -> Path:
    """Return the folder of all caches. Rooms read it when they are imported, so set the variable before that."""
    return Path(os.environ.get("DINORANKCLIP_HOME") or "built")


def _writer() -> str:
    """Name this process. Machines that share a disk may use the same process ids."""
    return f"{platform.node()}.{os.getpid()}"


@contextlib.contextmanager
def whole_file(path: str | Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield a path to write to. On success that file replaces `path`; on any error it is removed. `mode` are its rights
    before the umask: 0o600 for a secret."""
    path = Path(path)
    aside = path.with_name(f".{path.name}.{_writer()}")
    with naming(path), _new_file(aside, mode):
        yield aside
        with open(aside, "r+b") as file:  # flushed first: a rename can reach the disk earlier than the contents
            os.fsync(file.fileno())
        os.replace(aside, path)


@contextlib.contextmanager
def _new_file(aside: Path, mode: int) -> Iterator[None]:
    """Make an empty file for the block, in the place of whatever stands there, and remove it at the end."""
    aside.unlink(missing_ok=True)  # left by a killed process with the same id, or a link
    os.close(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), mode))
    try:
        yield
    finally:
        aside.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(out: Path, replace: bool = False) -> Iterator[Path]:
    """Yield an empty folder. On success it becomes `out`, which must be absent or empty unless it is to be replaced; on
    any error it is removed."""
    remove_unfinished(out)
    aside = out.with_name(f".{out.name}.{_writer()}{_UNFINISHED}")
    if aside.is_symlink():
        aside.unlink()
    shutil.rmtree(aside, ignore_errors=True)  # left by a killed process with the same id
    aside.mkdir(parents=True)
    try:
        with naming(out), _in_use(aside):
            yield aside
            if replace and out.exists():
                _swap(aside, out)
            else:
                if out.exists():
                    out.rmdir()
                os.replace(aside, out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _swap(new: Path, old: Path) -> None:
    """Exchange two folders: at once where the system can, so that a kill leaves one of them in its place, not none."""
    if _exchanged(new, old):
        return
    spare = old.with_name(f".{old.name}.{_writer()}.old")
    os.replace(old, spare)
    try:
        os.replace(new, old)
    except OSError:
        os.replace(spare, old)
        raise
    os.replace(spare, new)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange the names of two folders in one call to Linux; return False where that is not possible."""
    import ctypes

    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    try:
        call = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError, TypeError):  # not Linux, or an old one; Windows knows no library of the process
        return False
    return call(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


def remove_unfinished(out: Path) -> None:
    """Remove folders that killed processes left while they made `out`, and folders of other machines after a day."""
    for left in out.parent.glob(f".{glob.escape(out.name)}.*{_UNFINISHED}"):
        with contextlib.suppress(OSError):
            node, _, process = left.name.removeprefix(f".{out.name}.").removesuffix(_UNFINISHED).rpartition(".")
            here = node == platform.node() and process.isdecimal()
            old = time.time() - left.stat().st_mtime > STALE_AFTER
            if not left.is_symlink() and (old or (here and not lives(int(process)))) and _is_free(left):
                shutil.rmtree(left, ignore_errors=True)


def remove_left_files(folder: Path) -> None:
    """Remove files that processes of this machine were writing in a folder (`whole_file`) when they were killed."""
    for left in folder.glob(f".*.{glob.escape(platform.node())}.*"):
        process = left.name.rpartition(".")[2]
        if process.isdecimal() and not lives(int(process)):
            with contextlib.suppress(OSError):
                left.unlink()


@contextlib.contextmanager
def _in_use(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder, which shows that its writer lives even where its process id is that of another one."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):  # no such locks on this system or disk
            import fcntl

            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _is_free(folder: Path) -> bool:
    """Return whether no process holds the lock of `_in_use`."""
    try:
        import fcntl
    except ImportError:
        return True
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(handle)
    return True


def flush(path: str | Path) -> None:
    """Write a file, or a folder's entries, through to the disk. Windows has no way to do so for a folder."""
    if os.name == "nt":
        if not os.path.isdir(path):
            with open(path, "r+b") as file:  # Windows flushes only files that are open for writing
                os.fsync(file.fileno())
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def point(link: Path, name: str) -> None:
    """Let `link` name the folder `name` beside it. A reader sees the old folder or the new one.

    Windows and some disks know no links, or let only administrators make them. There `link` becomes a folder with the
    same files: further names of them where the disk can, which take no room, else copies.
    """
    aside = link.with_name(f".{link.name}.new")
    aside.unlink(missing_ok=True)
    try:
        aside.symlink_to(name, target_is_directory=True)
        os.replace(aside, link)
    except (OSError, NotImplementedError):
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()
        source = link.with_name(name)
        if not source.is_dir():
            raise
        with whole_folder(link, replace=True) as folder:
            shutil.copytree(source, folder, copy_function=_named_again, dirs_exist_ok=True)


def _named_again(source: str, name: str) -> str:
    try:
        os.link(source, name)
    except (OSError, NotImplementedError):
        shutil.copy2(source, name)
    return name


def demand_writable(folder: Path, advice: str) -> None:
    """Refuse a folder in which no file can be made, before long work whose result would be stored there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror or error}): {advice}") from error


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

    path = folder / f"{name}.lock"
    if path.is_symlink():
        raise UserError(f"{path} is a link, and locks are plain files: remove it")
    lock = FileLock(path, -1 if wait else 0, poll_interval=0.02, fallback_to_soft=False)
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
    try:
        return read_arrays(INDEX_FOLDER / f"{name}.npz")
    except (OSError, UnfitFile):
        return None  # absent, or damaged by a power cut


def save_table(name: str, table: dict[str, Any]) -> None:
    """Store an index table. A read-only or full disk is no error: the table is made again next time."""
    import numpy as np

    with contextlib.suppress(OSError):
        INDEX_FOLDER.mkdir(parents=True, exist_ok=True)
        with whole_file(INDEX_FOLDER / f"{name}.npz") as aside, open(aside, "wb") as file:
            np.savez(file, **table)  # type: ignore[arg-type]  # the stubs take any name for `allow_pickle`
