"""Lets a room be called: `dinorankclip.train(…)` trains, although `dinorankclip.train` is also the room of the loop.

An import of any file of a room puts the room itself into the package under its name, so a function of the same name
would be lost. A callable room is both.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from dinorankclip.extras import naming_extras

FUNCTIONS = {"train": "dinorankclip.api.training", "search": "dinorankclip.api.searching"}


class CallableRoom(ModuleType):
    """Calls the function of the API that has the name of the room."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _function(self)(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:  # notebooks show it
        return inspect.signature(_function(self))


def _function(room: ModuleType) -> Callable[..., Any]:
    name = room.__name__.rpartition(".")[2]
    with naming_extras(room.__name__):
        return getattr(importlib.import_module(FUNCTIONS[name]), name)


def make_callable(room: str) -> None:
    """Make the room of this name callable; its `__init__.py` calls this."""
    sys.modules[room].__class__ = CallableRoom
