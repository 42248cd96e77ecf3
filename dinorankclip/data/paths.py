"""Refuses paths of pairs that cannot be right. Nothing here imports torch, so a mistyped path is refused at once."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from dinorankclip.data.readers import reader_named_in
from dinorankclip.types import UserError

ACCEPTED = (
    " Pairs (--data of train) are: scenes (built in); a folder with train/, val/, test/, each of .tar shards (the "
    "clip-benchmark retrieval layout) or of images with .txt files; one such folder; a .csv, .tsv or .parquet table; "
    "FILE.tar, or 'a-{000..123}.tar'; shards of another machine by their URL"
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def is_url(where: str) -> bool:
    """Return whether `where` names something on another machine, which data/remote.py reads."""
    return _URL.match(where) is not None


def shown_url(url: str) -> str:
    """Return a URL without what may be secret: a name before @, and the query of a signed link."""
    return re.sub(r"(?<=://)[^/@]*@", "", url).partition("?")[0]


def is_pattern(where: str) -> bool:
    """Return whether `where` names several shards: braces, globs, or a list joined by `::`."""
    return any(mark in where for mark in ("{", "::", "*", "?"))


def refuse_missing(where: str) -> None:
    """Raise `UserError` unless `where` can be opened: a path that exists, the name of built-in data, or shards that are
    looked for later (patterns, URLs and `pipe:`)."""
    if where == "scenes" or where.startswith("pipe:") or os.path.isdir(where) or os.path.isfile(where):
        return
    if reader_named_in(where) is not None:
        return
    if is_url(where) or is_pattern(where):
        return
    built_in = " Did you mean scenes, the built-in data?" if difflib.get_close_matches(where, ["scenes"]) else ""
    raise UserError(f"there is no {where}.{built_in or nearest(Path(where)) or ACCEPTED}")


def nearest(path: Path) -> str:
    """Return a hint for a mistyped path: the nearest name in its folder."""
    names = os.listdir(path.parent) if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1)
    return f" Did you mean {path.parent / near[0]}?" if near else ""
