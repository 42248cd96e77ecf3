"""`caption_relevance` of many captions to many scenes at once: the same matchings, for all scenes together.

Shapes: C captions, S scenes, 4 = MOST_THINGS slots for the things of a scene.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import permutations

import numpy as np

from .kinds import KINDS
from .relations import RELATIONS, holding
from .relevance import BASE, KIN_SAME, MOST_THINGS, NUMBERS, WEIGHTS, encode_scenes, kin_to_noun
from .scene import Mention, Said, Scene

# Sums of the same parts in another order differ in their last digits; equal relevance must be equal.
DIGITS = 6


def caption_relevance_matrix(mentions: Sequence[Mention], scenes: Sequence[Scene]) -> np.ndarray:
    """`caption_relevance` of each of `mentions` to each of `scenes`, rounded to six digits: float32 [C, S]."""
    codes = encode_scenes(scenes)
    holds = _relations(scenes)
    result = np.empty((len(mentions), len(scenes)), np.float32)
    for row, mention in zip(result, mentions):
        row[:] = np.round(_one(mention, codes, holds), DIGITS)
    return result


def _one(mention: Mention, codes: dict[str, np.ndarray], holds: dict[str, np.ndarray]) -> np.ndarray:
    """One caption against all scenes: float64 [S]. A slot without a thing fits nothing, as no partner does."""
    fits = [_fits(said, codes) for said in mention.things]  # each [4, S]
    best = np.zeros(codes["background"].shape)
    for slots in permutations(range(MOST_THINGS), len(fits)):
        score = sum(fit[slot] for fit, slot in zip(fits, slots))
        for i, word, j in mention.relations:
            score = score + holds[word][slots[i], slots[j]]
        np.maximum(best, score, out=best)
    total = len(mention.things) + len(mention.relations)
    if mention.background is None:
        return best / total
    return (best + (codes["background"] == NUMBERS["background"][mention.background])) / (total + 1)


def _fits(said: Said, codes: dict[str, np.ndarray]) -> np.ndarray:
    """How well each thing of each scene fits what was said: float64 [4, S]."""
    kin = _kin(said.kind, said.family, said.group)
    agreeing = np.full(codes["kind"].shape, float(BASE))
    most = BASE
    for name, weight in WEIGHTS.items():
        value = getattr(said, name)
        if value is not None:
            agreeing += weight * (codes[name] == NUMBERS[name][value])
            most += weight
    return (kin[codes["kind"]] * agreeing / (KIN_SAME * most)).T


@lru_cache(maxsize=1024)
def _kin(kind: str | None, family: str | None, group: str | None) -> np.ndarray:
    """`kin_to_noun` of every kind, and a last 0 that code -1 (no thing) finds."""
    noun = Said(kind, family, group)
    return np.array([*(kin_to_noun(noun, other) for other in KINDS), 0])


def _relations(scenes: Sequence[Scene]) -> dict[str, np.ndarray]:
    """For each word, whether thing i is so to thing j: bool [4, 4, S]."""
    table = {word: np.zeros((MOST_THINGS, MOST_THINGS, len(scenes)), bool) for word in RELATIONS}
    for n, scene in enumerate(scenes):
        for i, j in permutations(range(len(scene.things)), 2):
            for word in holding(scene.things[i], scene.things[j]):
                table[word][i, j, n] = True
    return table
