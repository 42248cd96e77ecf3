"""Where an export goes: a new folder, or in place of an older export, never over anything else."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dinorankclip.types import UserError
from dinorankclip.whole_files import whole_folder


@contextlib.contextmanager
def export_place(out: Path, replace: bool, mark: str) -> Iterator[Path]:
    """Yields an empty folder; on success it becomes `out`, on any error it vanishes.

    A folder that is there is refused, unless `replace` is set and it holds the file `mark`: whatever else lies there
    was not made by us and is not ours to delete.
    """
    named, out = out, out.resolve()  # messages name it as the user did
    _refuse_taken(named, replace, mark)
    with contextlib.ExitStack() as old, contextlib.ExitStack() as new:
        try:
            aside = new.enter_context(whole_folder(out))
        except OSError as error:
            raise UserError(f"{named} cannot be written: {error.strerror}") from error
        yield aside
        if out.exists():  # moved out of the way now, removed when the new one is in its place, or back if it cannot be
            older = Path(tempfile.mkdtemp(prefix=f".{out.name}.old.", dir=out.parent))
            old.push(lambda error, *_: _put_back(older, out) if error else shutil.rmtree(older))
            os.replace(out, older)


def _put_back(older: Path, out: Path) -> None:
    """Where something else has come meanwhile, the older export stays beside it rather than being lost."""
    if not out.exists():
        os.replace(older, out)
    else:
        with contextlib.suppress(OSError):
            older.rmdir()  # empty, if it was never moved


def _refuse_taken(out: Path, replace: bool, mark: str) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not out.is_dir() or not (out / mark).is_file():
        raise UserError(f"{out} is there and is no exported model; choose another --out")
    if not replace:
        raise UserError(f"{out} is there; choose another --out, or --replace it")
