"""Which students and which fusion a trained model (`--init`) goes on with."""

from __future__ import annotations

from typing import TypeVar

from dinorankclip.config import TrainSettings
from dinorankclip.joint.model import FusionDesign, JointModel, Students
from dinorankclip.presets import for_method, preset
from dinorankclip.pretrain.distilling import wanted_parts
from dinorankclip.pretrain.records import say

Part = TypeVar("Part", str, FusionDesign)


def continued_parts(model: JointModel, settings: TrainSettings) -> tuple[Students, FusionDesign]:
    """The model's own, unless others are asked for: what preset and method bring of themselves is not."""
    wanted, fusion = wanted_parts(settings)
    usual = for_method(preset(settings.preset), settings.method)
    named = {}
    for branch in ("image", "text"):
        own, asked = getattr(model.students, branch), getattr(wanted, branch)
        if asked is None and model.fusion.variant == "none":
            own = None  # it says nothing in the embeddings, and nobody would teach it
        what = f"{branch} student"
        named[branch] = _chosen(settings, what, own, asked, getattr(usual.distil, f"{branch}_student"))
    brought = FusionDesign(usual.fusion.variant, usual.fusion.gate)
    # The embeddings of a fused model are the fused ones: fine-tuning goes on from those.
    chosen = _chosen(settings, "fusion", _unless_none(model.fusion), _unless_none(fusion), brought)
    return Students(named["image"], named["text"]), chosen or FusionDesign()


def _unless_none(fusion: FusionDesign) -> FusionDesign | None:
    return None if fusion.variant == "none" else fusion


def _chosen(settings: TrainSettings, what: str, own: Part | None, asked: Part | None, usual: Part) -> Part | None:
    if own is None or own == asked:
        return asked
    if asked is None:
        return own
    if asked == usual:
        say(f"{settings.init} keeps its {what} ({_words(own)}); the default {_words(asked)} is for models without one")
        return own
    say(f"mind: the {what} of {settings.init} ({_words(own)}) gives way to a fresh one ({_words(asked)}), as asked")
    return asked


def _words(part: str | FusionDesign) -> str:
    if isinstance(part, str):
        return part
    return part.variant if part.gate else f"{part.variant} without gate"
