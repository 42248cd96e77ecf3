"""The methods there are, and what is particular about each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from dinorankclip.types import UserError

Method = Literal["clip", "cyclip", "alip", "rankclip", "rank", "dinorankclip", "distil"]
METHODS: tuple[str, ...] = get_args(Method)

HIGHEST_ORDER = 5
AUTO = "auto"  # of distil.cache: make the cache if it is not there


@dataclass(frozen=True)
class MethodTraits:
    """What is particular about a method, beside its loss (losses/objective.py)."""

    words: str  # for the card of a model; {order} stands for that of its run
    title: str = ""  # in tables, where the name alone would mislead
    fixed_order: int | None = None  # None: `loss.order` decides
    ranks: bool = False  # lists are part of the loss
    contrasts: bool = True  # False: students learn from their teacher alone, the trunk does not
    second_caption: bool = False  # pairs are weighed by another caption of the image
    brings: Mapping[str, Any] = field(default_factory=dict)  # settings, unless others are asked for


TRAITS: dict[str, MethodTraits] = {
    "clip": MethodTraits("contrastive loss (CLIP)", fixed_order=0),
    "cyclip": MethodTraits("contrastive loss with cyclic consistency (CyCLIP)", fixed_order=0),
    "alip": MethodTraits(
        "contrastive loss weighted by a second caption (ALIP-style)",
        title="alip-style",  # its second captions are others of the image, not synthetic ones
        fixed_order=0,
        second_caption=True,
    ),
    "rankclip": MethodTraits("contrastive loss with first-order ranking consistency (RankCLIP)", fixed_order=1, ranks=True),
    "rank": MethodTraits("contrastive loss with ranking consistency of order {order}", ranks=True),
    "dinorankclip": MethodTraits(
        "contrastive loss, ranking consistency of order {order}, distillation and fusion (DinoRankCLIP)",
        ranks=True,
        brings={"distil.cache": AUTO, "distil.branches": "image+text", "fusion.variant": "full"},
    ),
    "distil": MethodTraits(
        "distillation of a teacher into students alone: the trunk did not learn", fixed_order=0, contrasts=False
    ),
}


def traits_of(method: str) -> MethodTraits:
    """`UserError` if there is no such method."""
    if method not in TRAITS:
        raise UserError(f"unknown method {method!r}; there are {', '.join(METHODS)}")
    return TRAITS[method]


def traits_of_stored(method: str) -> MethodTraits:
    """Of a run in a folder, which may be of another version: nothing is known of a method that is not here."""
    return TRAITS.get(method, MethodTraits(method, fixed_order=0))


# -------- paper
# What rooms before `study` need of the paper's own numbers, and the words that must stand beside any of them.
#
# All its other numbers, by table and row, are in `study/paper_values.py`.

LABEL = "paper (projected)"
# Millions of parameters that it states: of either student, and of the rank heads by order. Of towers and fusion it
# states none.
STUDENT_MILLIONS = 5.7
HEAD_MILLIONS = (0.0, 0.0, 0.16, 0.61, 1.32, 2.30)
