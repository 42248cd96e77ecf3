"""Relevance of scenes and captions as loops over things, as the head of data/scenes/relevance.py states it."""

from itertools import permutations

from dinorankclip.data.scenes.composition import holding
from dinorankclip.data.scenes.relevance import (
    ALIKE,
    BACKGROUND_SHARE,
    BASE,
    KIN_SAME,
    THINGS_SHARE,
    WEIGHTS,
    kin_to_noun,
    kinship,
)
from dinorankclip.data.scenes.scene import CaptionContent, MentionedThing, Scene, Thing


def alike(a: Thing, b: Thing) -> int:
    agreeing = sum(weight for name, weight in WEIGHTS.items() if getattr(a, name) == getattr(b, name))
    return kinship(a.kind, b.kind) * (BASE + agreeing)


def relevance(a: Scene, b: Scene) -> float:
    few, many = sorted((a.things, b.things), key=len)
    best = max(sum(map(alike, few, chosen)) for chosen in permutations(many, len(few)))
    things = THINGS_SHARE * best / (ALIKE * len(many))
    return (things + BACKGROUND_SHARE * (a.background == b.background)) / 100


def caption_relevance(content: CaptionContent, scene: Scene) -> float:
    partners: list[Thing | None] = list(scene.things) + [None] * max(0, len(content.things) - len(scene.things))
    total = len(content.things) + len(content.relations) + (content.background is not None)
    best = 0.0
    for chosen in permutations(partners, len(content.things)):
        score = sum(0.0 if thing is None else _fits(said, thing) for said, thing in zip(content.things, chosen))
        for i, word, j in content.relations:
            a, b = chosen[i], chosen[j]
            score += a is not None and b is not None and word in holding(a, b)
        best = max(best, score)
    return (best + (content.background == scene.background)) / total


def _fits(said: MentionedThing, thing: Thing) -> float:
    spoken = {name: weight for name, weight in WEIGHTS.items() if getattr(said, name) is not None}
    agreeing = sum(weight for name, weight in spoken.items() if getattr(said, name) == getattr(thing, name))
    return kin_to_noun(said, thing.kind) * (BASE + agreeing) / (KIN_SAME * (BASE + sum(spoken.values())))
