"""Defines the table of recipes: named changes of default settings, made after preset and method and before the flags.

To add a recipe: its name in `RecipeName`, its entry in `RECIPES`. Command line, help and stored settings follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from dinorankclip.methods import METHODS
from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip.config import TrainSettings

RecipeName = Literal["paper", "aligned"]
BY_SIZE = 0  # batch or epochs of --recipe aligned: chosen by the number of pairs
RECIPE_NAMES: tuple[str, ...] = get_args(RecipeName)


@dataclass(frozen=True)
class Recipe:
    """Holds a recipe: a text about it, its methods, and the settings that it changes."""

    about: str  # one sentence, for messages and pages
    changes: Callable[[TrainSettings], Mapping[str, Any]]  # settings of preset and method → values at dotted names
    methods: tuple[str, ...] = METHODS  # the methods it is made for; the first serves when the user names none


def _paper(settings: TrainSettings) -> dict[str, Any]:
    """Return the paper's table of hyper-parameters. Sizes that need a GPU node are set with the preset cc3m alone."""
    changes: dict[str, Any] = {
        "optim.lr": 5e-4,
        "optim.betas": (0.9, 0.98),
        "optim.weight_decay": 0.2,
        "loss.ramp": "paper",
        "loss.head_dim": 32,
        "loss.staged": True,
        "distil.weight": 0.5,
        "distil.text_ratio": 0.5,
        "distil.criterion": "gram+rel",
    }
    if settings.preset == "cc3m":
        changes |= {
            "optim.warmup_steps": 10_000,
            "budget.batch": 1024,
            "budget.epochs": 64,
            "model.trunk": "ViT-B-32",
            "distil.teacher": "timm:vit_large_patch16_dinov3",
            "distil.image_student": "vit-tiny",
            "distil.text_student": "vit-tiny",
        }
    return changes


def _aligned(settings: TrainSettings) -> dict[str, Any]:
    """Return what was best on the validation part of Flickr8k (docs/LOG.md), whatever the preset."""
    return {
        "reading.crop_scale": (1.0, 1.0),
        "reading.flip": False,
        "reading.workers": 0,  # rows come from memory
        "distil.cache": None,
        "fusion.variant": "full",
        "fusion.start": "zero",
        "optim.lr": 1e-3,
        "optim.weight_decay": 0.1,
        "budget.batch": BY_SIZE,
        "budget.epochs": BY_SIZE,
        "record.save_every": 1_000_000,  # a whole run takes a minute
    }


RECIPES: dict[str, Recipe] = {
    "paper": Recipe(
        "every line of the paper's table of hyper-parameters",
        _paper,
        methods=("dinorankclip", "clip", "cyclip", "alip", "rankclip", "rank"),
    ),
    "aligned": Recipe(
        "frozen towers, small heads: a useful model from a few thousand own photos in minutes",
        _aligned,
        methods=("clip", "cyclip", "alip", "rankclip", "rank", "dinorankclip"),
    ),
}


def recipe_called(name: str) -> Recipe:
    """Return a recipe by its name; raise `UserError` if there is none."""
    if name not in RECIPES:
        raise UserError(f"--recipe {name}: there is no such recipe; there are {', '.join(RECIPES)}")
    return RECIPES[name]


def check_recipe(name: str, method: str) -> None:
    """Raise `UserError` unless the recipe exists and is made for the method."""
    recipe = recipe_called(name)
    if method not in recipe.methods:
        raise UserError(
            f"--recipe {name} is for --method {', '.join(recipe.methods)}: leave out --recipe, or choose one of these"
        )
