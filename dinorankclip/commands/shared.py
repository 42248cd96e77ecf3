"""Shared by the verbs: parsing a command line, loading a model, checking flags, finding the studies package."""

from __future__ import annotations

import difflib
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import TYPE_CHECKING

from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip.models.loaded import LoadedModel


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


def check_known(flag: str, value: str, names: Iterable[str]) -> None:
    names = list(names)
    if value not in names:
        near = difflib.get_close_matches(value, names, n=1)
        raise UserError(
            f"{flag} {value}: there are {', '.join(names)}" + (f"; did you mean {near[0]}?" if near else "")
        )


def check_at_least(least: int, **numbers: int | None) -> None:
    """Refuse numbers that are too small. `numbers`: the name of a flag → its value, None if it was not given."""
    for name, number in numbers.items():
        if number is not None and number < least:
            raise UserError(f"--{name.replace('_', '-')} {number}: at least {least}")


def check_interval(level: float, draws: int) -> None:
    """Check `--level` and `--draws` of bootstrap intervals."""
    from dinorankclip.evaluate.intervals import fewest_draws

    if not 0 < level < 1:
        raise UserError(f"--level {level}: a share between 0 and 1, such as 0.95")
    if draws < 100:
        raise UserError(f"--draws {draws}: fewer than 100 draws have no quantiles to speak of")
    if draws < fewest_draws(level):
        raise UserError(f"--draws {draws} can show nothing at --level {level:g}: at least {fewest_draws(level)} draws")


def load_quietly(model: str, device: str) -> LoadedModel:
    """Load a model for a command. Warnings are hidden because commands print the same facts in their own words."""
    from dinorankclip.device import keep_freed_memory
    from dinorankclip.models.loaded import load_model

    keep_freed_memory()  # batches of embeddings ask for the same memory again and again
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return load_model(model, device=device)


def import_studies(module: str) -> ModuleType:
    """Import a module of `dinorankclip_studies` by name: this package never depends on it."""
    try:
        return importlib.import_module(f"dinorankclip_studies.{module}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("dinorankclip_studies"):
            raise
        raise UserError("studies are a package of their own: pip install 'dinorankclip[studies]'") from None
