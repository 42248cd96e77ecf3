"""Opens tables of the package to other packages: methods, teachers, readers, scorers and studies can be plugged in.

An installed package names its additions as entry points; the name of the entry point is the name that users type:

    [project.entry-points."dinorankclip.methods"]
    margin = "my_package:MARGIN"

A notebook calls `register_method` and its like instead. Only names are listed until an addition is used, so nothing
here slows down an import or `--help`. A plug-in that cannot be loaded is named in one line, and the others work.
Nothing here imports torch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from dinorankclip.types import UserError, first_line

log = logging.getLogger(__name__)
PREFIX = "dinorankclip."  # begins the names of the groups of entry points
IN_PYTHON = "registered in Python"  # origin of an addition that no package brings

T = TypeVar("T")


class BrokenPlugin(UserError):
    """Names a plug-in that cannot be loaded, its package and the reason, in one line."""


@dataclass
class Registry(Generic[T]):
    """Holds the built-in entries of a table and those that are plugged in.

    `what` is the word for an entry in messages; `check` returns a loaded object as the table stores it, or raises an
    error that says what is wrong with it.
    """

    group: str  # "methods"
    what: str  # "method"
    builtin: Mapping[str, T]
    check: Callable[[str, Any], T]
    _registered: dict[str, T] = field(default_factory=dict)
    _loaded: dict[str, T] = field(default_factory=dict)
    _reported: set[str] = field(default_factory=set)

    def register(self, name: str, entry: Any) -> None:
        """Add an entry for this process; the same name again replaces it. Names of built-in entries are refused."""
        if name in self.builtin:
            raise UserError(f"{self.what} {name!r} is built in: choose another name")
        self._registered[name] = self.check(name, entry)

    def names(self) -> list[str]:
        """Return all names, built-in ones first, without loading anything."""
        return list(dict.fromkeys([*self.builtin, *self._registered, *self._points()]))

    def get(self, name: str) -> T | None:
        """Return an entry by its name; None if there is none. Raise `BrokenPlugin` if its plug-in cannot be loaded."""
        if name in self.builtin:
            return self.builtin[name]
        if name in self._registered:
            return self._registered[name]
        if name not in self._loaded and (point := self._points().get(name)) is not None:
            self._loaded[name] = self._load(point)
        return self._loaded.get(name)

    def plugged_in(self) -> Iterator[tuple[str, T]]:
        """Yield every entry that is not built in. A plug-in that cannot be loaded is reported once and left out."""
        for name in self.names()[len(self.builtin) :]:
            try:
                entry = self.get(name)
            except BrokenPlugin as error:
                if name not in self._reported:
                    self._reported.add(name)
                    log.warning("%s; it is left out", error)
                continue
            assert entry is not None, "names() lists what get() finds"
            yield name, entry

    def origin(self, name: str) -> str | None:
        """Return package and version that an entry comes from; None for built-in and unknown entries."""
        if name in self.builtin:
            return None
        if name in self._registered:
            return IN_PYTHON
        point = self._points().get(name)
        return None if point is None else package_of(point)

    def _load(self, point: EntryPoint) -> T:
        try:
            return self.check(point.name, point.load())
        except Exception as error:  # code of others may raise anything
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {first_line(error)}"
            raise BrokenPlugin(
                f"the {self.what} {point.name!r} of the plug-in {package_of(point)} cannot be loaded: {reason}"
            ) from error

    def _points(self) -> Mapping[str, EntryPoint]:
        points = _entry_points(PREFIX + self.group)
        for name in points.keys() & self.builtin.keys() - self._reported:
            self._reported.add(name)
            log.warning(
                "the plug-in %s has a %s %r, which is built in; it is left out",
                package_of(points[name]), self.what, name,
            )  # fmt: skip
        return {name: point for name, point in points.items() if name not in self.builtin}


@cache
def _entry_points(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name; of two packages with the same name the first counts."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        first = found.setdefault(point.name, point)
        if first.dist and point.dist and first.dist.name != point.dist.name:
            log.warning(
                "%s is in two plug-ins, %s and %s; the first counts", point.name, package_of(first), package_of(point)
            )
    return found


def forget_installed() -> None:
    """Look for installed plug-ins again, after `pip install` in a running notebook."""
    _entry_points.cache_clear()


def package_of(point: EntryPoint) -> str:
    """Return name and version of the package of an entry point."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


def expects(kind: type, what: str) -> Callable[[str, Any], Any]:
    """Return a `check` that demands an instance of a class."""

    def check(name: str, entry: Any) -> Any:
        if not isinstance(entry, kind):
            raise UserError(f"{what} {name!r} must be a {kind.__name__}, not {type(entry).__name__}")
        return entry

    return check
