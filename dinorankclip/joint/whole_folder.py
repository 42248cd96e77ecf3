"""A folder that appears whole or not at all: written beside its place, renamed into it at the end."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dinorankclip.types import UserError


@contextlib.contextmanager
def whole_folder(out: Path, replace: bool, mark: str) -> Iterator[Path]:
    """Yields an empty folder; on success it becomes `out`, on any error it vanishes.

    A folder that is there is refused, unless `replace` is set and it holds the file `mark`: whatever else lies there
    was not made by us and is not ours to delete.
    """
    named, out = out, out.resolve()  # messages name it as the user did
    _refuse_taken(named, replace, mark)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise UserError(f"{named} cannot be written: {error.strerror}") from error
    try:
        yield aside
        # mkdtemp makes folders for their owner alone, whatever the user's own rule is.
        aside.chmod(0o777 & ~_umask())
        _put(aside, out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _refuse_taken(out: Path, replace: bool, mark: str) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not out.is_dir() or not (out / mark).is_file():
        raise UserError(f"{out} is there and is no exported model; choose another --out")
    if not replace:
        raise UserError(f"{out} is there; choose another --out, or --replace it")


def _put(aside: Path, out: Path) -> None:
    """Rename into place; an old export is moved out of the way first and removed last."""
    if not out.exists() or not any(out.iterdir()):
        os.replace(aside, out)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}.old.", dir=out.parent))
    os.replace(out, old)
    os.replace(aside, out)
    shutil.rmtree(old)
