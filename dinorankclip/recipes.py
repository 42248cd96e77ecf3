"""Defines the table of recipes: named changes of default settings, made after preset and method and before the flags.

To add a recipe: its name in `RecipeName`, its entry in `RECIPES`. Command line, help and stored settings follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from dinorankclip.methods import METHODS, traits_of
from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip.config import TrainSettings

RecipeName = Literal["paper", "aligned", "taught"]
BY_SIZE = 0  # batch or epochs of --recipe aligned: chosen by the number of pairs
RECIPE_NAMES: tuple[str, ...] = get_args(RecipeName)


@dataclass(frozen=True)
class Recipe:
    """Holds a recipe: a text about it, its methods, and the settings that it changes."""

    about: str  # one sentence, for messages and pages
    changes: Callable[[TrainSettings], Mapping[str, Any]]  # settings of preset and method → values at dotted names
    methods: tuple[str, ...] = METHODS  # the methods it is made for; the first serves when the user names none


# Lines of the paper's table that any machine can hold. What the paper leaves open stays as preset and method have it.
PAPER_SETTINGS: Mapping[str, Any] = {
    "optim.name": "adamw",
    "optim.lr": 5e-4,
    "optim.betas": (0.9, 0.98),
    "optim.weight_decay": 0.2,
    # The paper limits no gradients. Apart, the limit that stays as a guard lets no part shorten another part's step.
    "optim.clip_apart": True,
    "reading.crop_scale": (0.9, 1.0),
    "loss.head_dim": 32,
    "loss.ramp": "paper",
    "loss.staged": True,
    "loss.gate_start": None,  # the paper's
    "loss.gate_l1": None,
    "loss.gate_l1_size": "lists",
    "distil.criterion": "gram+rel",
    "distil.weight": 0.5,
    "distil.text_ratio": 0.5,
    "distil.keep": "tokens",  # the Gram of tokens reduced by PCA
}
# Sizes for a GPU node. Other presets keep trunk, batch, epochs, teacher and students of their own.
PAPER_SIZES: Mapping[str, Any] = {
    "optim.warmup_steps": 10_000,
    "budget.batch": 1024,
    "budget.epochs": 64,
    "budget.precision": "bf16",
    "model.trunk": "ViT-B-32",
    "model.image_size": None,  # the trunk's own 224
    "distil.teacher": "timm:vit_large_patch16_dinov3",
    "distil.teacher_size": 224,
    "distil.compare_grid": 14,
    "distil.image_student": "vit-tiny",
    "distil.text_student": "vit-tiny",
}
PAPER_ORDER = 3


def _paper(settings: TrainSettings) -> dict[str, Any]:
    """Return the paper's table of hyper-parameters; docs/paper-departures.md compares all of it."""
    order = {"loss.order": PAPER_ORDER} if traits_of(settings.method).fixed_order is None else {}
    flip = {} if settings.preset == "scenes" else {"reading.flip": True}  # captions of scenes say left and right
    sizes = PAPER_SIZES if settings.preset == "cc3m" else {}
    return {**PAPER_SETTINGS, **order, **flip, **sizes}


def _aligned(settings: TrainSettings) -> dict[str, Any]:
    """Return what was best on the validation part of Flickr8k (docs/LOG.md), whatever the preset."""
    return {
        "reading.crop_scale": (1.0, 1.0),
        "reading.flip": False,
        "reading.workers": 0,  # rows come from memory
        "distil.cache": None,
        "fusion.variant": "none",  # over dense tokens it costs half of the time again and was worth nothing
        "fusion.start": "zero",
        "optim.name": "adamw",  # heads of two layers: Muon was worth nothing
        "optim.lr": 1e-3,
        "optim.weight_decay": 0.1,
        "budget.batch": BY_SIZE,
        "budget.epochs": BY_SIZE,
        "record.save_every": 1_000_000,  # a whole run takes a minute
        "record.score_every": 5,
    }


def _taught(settings: TrainSettings) -> dict[str, Any]:
    """Return the teacher as a third tower beside RankCLIP's lists: what was best at equal time (docs/results.md).

    Without both (--anchor.weight 0 --loss.order 0) the run is CLIP. Parts that did not pay are off and can be put in:
    dense terms (--distil.weight 0.5), a gate over the trunk's own tokens (--fusion.variant single-scale), lists in the
    teacher's order (--loss.reference teacher), higher orders (--loss.order 3).
    """
    return {
        "distil.into": "trunk",
        "distil.tokens": "penultimate",
        "distil.branches": "image",
        "distil.criterion": "gram+rel",
        "distil.weight": 0.0,
        "anchor.weight": 1.0,
        "fusion.variant": "none",
        "fusion.source": "trunk",
        "fusion.start": "zero",
        "loss.order": 1,
        "loss.list_length": 32,
        # Adam moves a number by about its rate a step: at the trunk's, gates stay where they start in short runs.
        "optim.heads_rate": 30.0,
        "optim.gates_rate": 10.0,
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
        methods=("clip", "siglip", "cyclip", "alip", "rankclip", "rank", "dinorankclip"),
    ),
    "taught": Recipe(
        "the trunk is the student: a teacher's cached features shape it, at little more than CLIP's time a step",
        _taught,
        methods=("dinorankclip",),
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
    if method not in recipe.methods and name not in traits_of(method).recipes:
        raise UserError(
            f"--recipe {name} is for --method {', '.join(recipe.methods)}: leave out --recipe, or choose one of these"
        )
