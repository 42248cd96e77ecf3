"""Defines the table of training methods: the loss terms of each, its fixed settings, and its description.

Other packages and notebooks add methods (plugins.py): a `MethodTraits` with terms of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from dinorankclip.plugins import Registry, expects
from dinorankclip.types import UserError

BuiltInMethod = Literal["clip", "siglip", "cyclip", "alip", "rankclip", "rank", "dinorankclip", "distil"]
Method = BuiltInMethod | str  # a method that is plugged in has any other name
METHODS: tuple[str, ...] = get_args(BuiltInMethod)

HIGHEST_ORDER = 5
AUTO = "auto"  # value of distil.cache: make the cache if it is absent

LABEL = "paper (projected)"  # stands beside every number of the paper; the studies package holds all others
STUDENT_MILLIONS = 5.7  # the paper's parameters of either student; it states none for towers and fusion
HEAD_MILLIONS = (0.0, 0.0, 0.16, 0.61, 1.32, 2.30)  # the paper's parameters of the rank heads, by order


@dataclass(frozen=True)
class MethodTraits:
    """Holds the properties of a method. Settings can add distillation to any method."""

    words: str  # for the model card; {order} and {likelihood} (see `likelihood_words`) are those of the run
    terms: tuple[str, ...] = ("contrastive",)  # keys of losses.objective.TERMS; without any, only students learn
    title: str = ""  # for tables, where the name alone would mislead; {likelihood} as in `words`
    given_words: str = ""  # for the model card, if second captions were given; the title is then the plain name
    fixed_order: int | None = None  # None: `loss.order` decides
    brings: Mapping[str, Any] = field(default_factory=dict)  # default settings of the method
    # Of a method that is plugged in: its own terms, NAME → `losses.objective.Term` or the function of one; recipes
    # that the method works with besides none.
    own_terms: Mapping[str, Any] = field(default_factory=dict)
    recipes: tuple[str, ...] = ()

    @property
    def ranks(self) -> bool:
        """Return whether lists are part of the loss."""
        return "ranking" in self.terms

    @property
    def biased(self) -> bool:
        """Return whether logits have a learnable bias, which the model holds."""
        return "sigmoid" in self.terms

    @property
    def contrasts(self) -> bool:
        """Return whether the trunk learns; otherwise students learn from their teacher alone."""
        return bool(self.terms)

    @property
    def second_caption(self) -> bool:
        """Return whether pairs are weighted by another caption of the image."""
        return "agreement" in self.terms

    @property
    def may_take_two_captions(self) -> bool:
        """Return whether `loss.two_captions` can add a second caption to the contrastive term."""
        return "contrastive" in self.terms


TRAITS: dict[str, MethodTraits] = {
    "clip": MethodTraits("contrastive loss (CLIP)", fixed_order=0),
    "siglip": MethodTraits("sigmoid loss (SigLIP)", ("sigmoid",), fixed_order=0),
    "cyclip": MethodTraits(
        "contrastive loss with cyclic consistency (CyCLIP)", ("contrastive", "cyclic"), fixed_order=0
    ),
    "alip": MethodTraits(
        "contrastive loss weighted by a second caption (ALIP-style)",
        ("agreement",),
        title="alip-style",  # its second captions are other captions of the image, not synthetic ones
        given_words="contrastive loss weighted by a given second caption (ALIP)",
        fixed_order=0,
    ),
    "rankclip": MethodTraits(
        "contrastive loss with first-order ranking consistency, RankCLIP ({likelihood})",
        ("contrastive", "ranking"),
        title="RankCLIP ({likelihood})",
        fixed_order=1,
    ),
    "rank": MethodTraits("contrastive loss with ranking consistency of order {order}", ("contrastive", "ranking")),
    "dinorankclip": MethodTraits(
        "contrastive loss, ranking consistency of order {order}, distillation and fusion (DinoRankCLIP)",
        ("contrastive", "ranking"),
        brings={"distil.cache": AUTO, "distil.branches": "image+text", "fusion.variant": "full"},
    ),
    "distil": MethodTraits("distillation of a teacher into students alone: the trunk did not learn", (), fixed_order=0),
}


def likelihood_words(rankclip_eps: float) -> str:
    """Return which likelihood of order 1 a run has: equation 2 itself, or that of RankCLIP's public code."""
    return "public ε" if rankclip_eps else "exact"


def second_captions_given(settings: Mapping[str, Any]) -> bool:
    """Return whether stored settings name second captions (ALIP); otherwise they are other captions of the data."""
    reading = settings.get("reading", {})
    return any(reading.get(name) is not None for name in ("second_captions", "second_caption_column"))


def title_of_stored(settings: Mapping[str, Any]) -> str:
    """Return the name of a stored run's method for tables."""
    traits = traits_of_stored(settings["method"])
    title = "" if traits.given_words and second_captions_given(settings) else traits.title
    return title.format(likelihood=_likelihood_of_stored(settings)) or settings["method"]


def words_of_stored(settings: Mapping[str, Any]) -> str:
    """Return the description of a stored run's method."""
    traits = traits_of_stored(settings["method"])
    words = traits.given_words if second_captions_given(settings) and traits.given_words else traits.words
    words = words.format(order=settings["loss"]["order"], likelihood=_likelihood_of_stored(settings))
    return f"{words}, two captions a step" if settings["loss"].get("two_captions") else words


def _likelihood_of_stored(settings: Mapping[str, Any]) -> str:
    return likelihood_words(settings.get("loss", {}).get("rankclip_eps", 0.0))


REGISTRY: Registry[MethodTraits] = Registry("methods", "method", TRAITS, expects(MethodTraits, "method"))


def register_method(name: str, traits: MethodTraits) -> None:
    """Add a training method for this process: `--method NAME` and `dinorankclip.train(method=NAME)`."""
    REGISTRY.register(name, traits)


def traits_of(method: str) -> MethodTraits:
    """Return the traits of a method; raise `UserError` if there is no such method."""
    traits = REGISTRY.get(method)
    if traits is None:
        raise UserError(f"unknown method {method!r}; there are {', '.join(REGISTRY.names())}")
    return traits


def traits_of_stored(method: str) -> MethodTraits:
    """Return the traits of a stored run's method, which may be unknown here: of another version or a plug-in."""
    try:
        return REGISTRY.get(method) or MethodTraits(method, fixed_order=0)
    except UserError:  # a plug-in that cannot be loaded: the stored numbers can be read without it
        return MethodTraits(method, fixed_order=0)
