"""Small derived tables kept on disk: tar indexes and validation cuts. Deleting them only costs time.

They live in `built/index/` under the current folder, never beside the data, which may be read-only. If that
folder cannot be written either, the tables are made anew each time. Files are arrays (.npz, nothing unpickled).
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from dinorankclip.whole_files import whole_file

FOLDER = Path("built/index")


def load(name: str) -> dict[str, np.ndarray] | None:
    """The table kept under this name, or None."""
    try:
        with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as table:
            return {column: table[column] for column in table.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
        return None  # absent, or written by a machine that lost power


def save(name: str, table: dict[str, np.ndarray]) -> None:
    """Keep a table, if the disk lets us."""
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        with whole_file(FOLDER / f"{name}.npz") as aside, open(aside, "wb") as file:
            np.savez(file, **table)  # type: ignore[arg-type]  # the stubs take any name for `allow_pickle`
    except OSError:
        return  # a read-only or full disk must not stop anybody from reading data
