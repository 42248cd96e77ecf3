"""Files and folders that appear whole or not at all: written beside their place, renamed into it at the end.

A reader never sees half of one, and a kill, a full disk or a power cut leaves what was there before.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
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
