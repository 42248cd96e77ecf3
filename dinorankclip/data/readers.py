"""Holds the readers of data that is named as NAME:ARGUMENT: pairs given in Python, and readers that are plugged in.

A reader is a function of the argument and the settings of reading. It returns a `Source`, or a mapping from "train",
"val" and "test" to functions that open these parts. Nothing here imports torch, so a mistyped name is refused at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from dinorankclip.config import FindingSettings
from dinorankclip.plugins import Registry
from dinorankclip.types import Source, UserError

if TYPE_CHECKING:
    Openers = Mapping[str, Callable[[], Source]]
    Reader = Callable[[str, FindingSettings], Source | Openers]

PYTHON = "python"  # pairs that a Python program gave (`give_pairs`)
PART_NAMES = ("train", "val", "test", "all")
_given: dict[str, dict[str, Source]] = {}  # fingerprint → part → pairs


def give_pairs(parts: dict[str, Source], fingerprint: str) -> str:
    """Make pairs of this process known, and return the name under which `open_pairs` opens them."""
    _given[fingerprint] = parts
    return f"{PYTHON}:{fingerprint}"


def _given_pairs(argument: str, reading: FindingSettings) -> Openers:
    if argument not in _given:
        raise UserError(
            f"{PYTHON}:{argument} are pairs that a Python program gave to dinorankclip.train: only that program can "
            "open them, with the same data; store them as files to use them elsewhere (dinorankclip data pack)"
        )
    return {part: partial(_itself, source) for part, source in _given[argument].items()}


def _itself(source: Source) -> Source:
    return source


def _callable(name: str, reader: Any) -> Reader:
    if not callable(reader):
        raise UserError(f"reader {name!r} must be a function of (argument, reading), not {type(reader).__name__}")
    return reader


REGISTRY: Registry[Reader] = Registry("readers", "reader", {PYTHON: _given_pairs}, _callable)


def register_reader(name: str, reader: Reader) -> None:
    """Add a reader for this process: `--data NAME:ARGUMENT` calls it with the argument and the reading settings."""
    REGISTRY.register(name, reader)


def reader_named_in(where: str) -> str | None:
    """Return the reader that `where` names before its first colon; None if `where` is a path or names none."""
    name, colon, _ = where.partition(":")
    known = colon and not os.path.exists(where) and name in REGISTRY.names()
    return name if known else None


def parts_by_reader(where: str, reading: FindingSettings) -> dict[str, Callable[[], Source]] | None:
    """Return a function for each part that opens it; None if no reader is named."""
    name = reader_named_in(where)
    reader = REGISTRY.get(name) if name else None
    if reader is None:
        return None
    found = reader(where.partition(":")[2], reading)
    if not isinstance(found, Mapping):
        return {"all": partial(_itself, found)}
    if not found or (unknown := [part for part in found if part not in PART_NAMES]):
        wrong = f"there is no part called {unknown[0]!r}" if found else "it gave no part"
        raise UserError(f"{where}: the reader {name!r} must give some of {', '.join(PART_NAMES)}: {wrong}")
    return dict(found)
