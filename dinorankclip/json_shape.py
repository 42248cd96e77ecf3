"""Compares values from JSON files with the shape that their reader expects, and says in words where they differ.

A shape is one of the kinds below (`NUMBER`, `TEXT` …), or made of shapes:

    entries({"step": WHOLE})                an object; entries that are absent, or not named here, are fine
    entries({…}, required=("step",))        an object that has these entries
    entries({…}, closed=True)               an object without other entries: an allowlist
    named(NUMBER)                           an object of any names, each with a number
    listed(TEXT)                            a list
    either(NUMBER, NONE)                    one of several shapes; both(…) all of them
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LARGEST_WHOLE = 1 << 62  # larger numbers overflow the integers of NumPy and torch
_SHOWN = 60  # characters of a wrong value that a message shows


@dataclass(frozen=True)
class Shape:
    """Holds words for what is expected, and a function that returns the first fault ("" if there is none).

    The function gets the value and the words for its place.
    """

    words: str
    fault: Callable[[Any, str], str]


def fault(value: Any, shape: Shape) -> str:
    """Return where and how a value differs from a shape, in words; "" if it fits."""
    return shape.fault(value, "")


def kind(words: str, fits: Callable[[Any], bool]) -> Shape:
    """Return the shape of single values for which `fits` is true."""
    return Shape(words, lambda value, place: "" if fits(value) else _differs(value, place, words))


def _differs(value: Any, place: str, words: str) -> str:
    shown = repr(value) if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"
    return f"{place or 'it'} is {shown[:_SHOWN]}, and {words} was expected"


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_WHOLE


def _is_number(value: Any) -> bool:
    return _is_whole(value) or isinstance(value, float)


TEXT = kind("text", lambda value: isinstance(value, str))
FLAG = kind("true or false", lambda value: isinstance(value, bool))
WHOLE = kind("a whole number", _is_whole)
COUNT = kind("a whole number from 0 on", lambda value: _is_whole(value) and value >= 0)
NUMBER = kind("a number", _is_number)
NONE = kind("null", lambda value: value is None)
OBJECT = kind("an object", lambda value: isinstance(value, dict))
LIST = kind("a list", lambda value: isinstance(value, list))
ANY = kind("anything", lambda value: True)


def whole(least: int, most: int) -> Shape:
    return kind(f"a whole number from {least} to {most}", lambda value: _is_whole(value) and least <= value <= most)


def number(least: float, most: float) -> Shape:
    """Return the shape of finite numbers in a range."""
    return kind(
        f"a number from {least:g} to {most:g}",
        lambda value: _is_number(value) and math.isfinite(value) and least <= value <= most,
    )


def word(*words: str) -> Shape:
    """Return the shape of text that is one of some words."""
    return kind(f"one of {', '.join(words)}", lambda value: isinstance(value, str) and value in words)


def either(*shapes: Shape) -> Shape:
    words = " or ".join(shape.words for shape in shapes)

    def first_fault(value: Any, place: str) -> str:
        faults = [shape.fault(value, place) for shape in shapes]
        if "" in faults:
            return ""
        # The fault of an inner entry says more than the list of what might stand here.
        inner = [text for text in faults if not text.startswith(f"{place or 'it'} is ")]
        return inner[0] if inner else _differs(value, place, words)

    return Shape(words, first_fault)


def both(*shapes: Shape) -> Shape:
    """Return the shape of values that fit all shapes."""
    return Shape(
        shapes[0].words, lambda value, place: next((text for s in shapes if (text := s.fault(value, place))), "")
    )


def listed(item: Shape, least: int = 0, most: int | None = None) -> Shape:
    words = f"a list of {item.words}" if most is None or least != most else f"a list of {least} times {item.words}"

    def first_fault(value: Any, place: str) -> str:
        if not isinstance(value, list | tuple) or len(value) < least or (most is not None and len(value) > most):
            return _differs(value, place, words)
        return next((text for at, entry in enumerate(value) if (text := item.fault(entry, f"{place}[{at}]"))), "")

    return Shape(words, first_fault)


def named(entry: Shape) -> Shape:
    def first_fault(value: Any, place: str) -> str:
        if not isinstance(value, dict):
            return _differs(value, place, "an object")
        return next((text for name, item in value.items() if (text := entry.fault(item, _inside(place, name)))), "")

    return Shape("an object", first_fault)


def entries(shapes: Mapping[str, Shape], *, required: Sequence[str] = (), closed: bool = False) -> Shape:
    def first_fault(value: Any, place: str) -> str:
        if not isinstance(value, dict):
            return _differs(value, place, "an object")
        if missing := [name for name in required if name not in value]:
            return f"{place or 'it'} lacks {', '.join(missing)}"
        if closed and (unknown := sorted(value.keys() - shapes.keys())):
            return f"{place or 'it'} has entries that are not known here: {', '.join(unknown[:5])[:_SHOWN]}"
        known = ((name, shape) for name, shape in shapes.items() if name in value)
        return next((text for name, shape in known if (text := shape.fault(value[name], _inside(place, name)))), "")

    return Shape("an object", first_fault)


def _inside(place: str, name: str) -> str:
    return f"{place}.{name[:_SHOWN]}" if place else name[:_SHOWN]
