"""Shared by the functions of the API and the commands: checks of names and intervals, a quiet load of a model."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip.models.loaded import LoadedModel


def check_known(flag: str, value: str, names: Iterable[str]) -> None:
    names = list(names)
    if value not in names:
        near = difflib.get_close_matches(value, names, n=1)
        raise UserError(
            f"{flag} {value}: there are {', '.join(names)}" + (f"; did you mean {near[0]}?" if near else "")
        )


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
