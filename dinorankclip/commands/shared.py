"""Shared by several verbs: loading a model, checking numbers of flags, finding the studies package."""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType
from typing import Any

from dinorankclip.types import UserError


def load_quietly(model: str, device: str) -> Any:
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


def check_at_least(least: int, **numbers: int | None) -> None:
    """`numbers`: the name of a flag → its value, None if it was not given."""
    for name, number in numbers.items():
        if number is not None and number < least:
            raise UserError(f"--{name.replace('_', '-')} {number}: at least {least}")


def check_interval(level: float, draws: int) -> None:
    """`--level` and `--draws` of bootstrap intervals."""
    from dinorankclip.evaluate.intervals import fewest_draws

    if not 0 < level < 1:
        raise UserError(f"--level {level}: a share between 0 and 1, such as 0.95")
    if draws < 100:
        raise UserError(f"--draws {draws}: fewer than 100 draws have no quantiles to speak of")
    if draws < fewest_draws(level):
        raise UserError(f"--draws {draws} can show nothing at --level {level:g}: at least {fewest_draws(level)} draws")
