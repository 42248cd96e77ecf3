"""Shared by the verbs: parsing a command line, loading a model, checking flags, finding the studies package."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable
from types import ModuleType

from dinorankclip.api.checks import check_interval, check_known, load_quietly
from dinorankclip.types import UserError

__all__ = [
    "call_verb", "check_at_least", "check_interval", "check_known", "did_you_mean", "import_studies", "load_quietly",
]  # fmt: skip


def call_verb(verb: Callable[..., None], name: str, argv: list[str]) -> None:
    """Call a verb with the flags in `argv`. Its help shows the docstring, whose "Args:" describe the flags."""
    import tyro

    description = (inspect.getdoc(verb) or "").split("\nArgs:")[0].strip()
    tyro.cli(verb, args=argv, prog=f"dinorankclip {name}", description=description)


def did_you_mean(word: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the nearest name as a question, or all names if none is near."""
    names = list(names)
    near = difflib.get_close_matches(word, names, n=1, cutoff=cutoff)
    return f"did you mean '{near[0]}'?" if near else f"there are {', '.join(names)}"


def check_at_least(least: int, **numbers: int | None) -> None:
    """Refuse numbers that are too small. `numbers`: the name of a flag → its value, None if it was not given."""
    for name, number in numbers.items():
        if number is not None and number < least:
            raise UserError(f"--{name.replace('_', '-')} {number}: at least {least}")


def import_studies(module: str) -> ModuleType:
    """Import a module of `dinorankclip_studies` by name: this package never depends on it."""
    try:
        return importlib.import_module(f"dinorankclip_studies.{module}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("dinorankclip_studies"):
            raise
        raise UserError("studies are a package of their own: pip install 'dinorankclip[studies]'") from None
