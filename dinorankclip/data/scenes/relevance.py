"""Graded relevance: how well one scene, or what a caption says, fits another scene. 0 is not at all, 1 is fully.

Two things a, b are alike by

    alike(a, b) = KIN(a, b) · ( 0.40 + 0.24 [colour] + 0.12 [pattern] + 0.10 [size] + 0.07 [column] + 0.07 [row] )

where [x] is 1 if they agree in x and else 0, and KIN is 1 for the same kind, 0.7 for kinds of one fine-grained
family, 0.3 for kinds of one group, 0.1 for others. Columns and rows are thirds of the picture. Two scenes:

    relevance(A, B) = 0.85 · max over one-to-one matchings of Σ alike(a, b) / max(|A|, |B|)  +  0.15 [background]

It is symmetric, and 1 exactly when backgrounds agree and things agree, one to one, in all that is compared. A caption
is compared in what it says alone: see `caption_relevance`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations, permutations

import numpy as np

from dinorankclip.data.scenes.backgrounds import BACKGROUNDS
from dinorankclip.data.scenes.composition import PATTERNS, RELATIONS, holding
from dinorankclip.data.scenes.drawing import COLOURS
from dinorankclip.data.scenes.kinds import KINDS
from dinorankclip.data.scenes.scene import COLUMNS, ROWS, SIZES, CaptionContent, MentionedThing, Scene, Thing

# Whole numbers, so that both forms below agree to the last bit and the same content is exactly 1.
KIN_SAME, KIN_FAMILY, KIN_GROUP, KIN_OTHER = 10, 7, 3, 1  # tenths
BASE = 40  # hundredths, as are the next two lines
WEIGHTS = {"colour": 24, "pattern": 12, "size": 10, "column": 7, "row": 7}
THINGS_SHARE, BACKGROUND_SHARE = 85, 15
ALIKE = KIN_SAME * (BASE + sum(WEIGHTS.values()))  # the value of `alike` for things that agree in everything
MOST_THINGS = 4
_VALUES: dict[str, Iterable[str]] = {  # those each attribute can have
    "kind": KINDS,
    "colour": COLOURS,
    "pattern": ("plain", *PATTERNS),
    "size": SIZES,
    "column": COLUMNS,
    "row": ROWS,
    "background": BACKGROUNDS,
}
# For the vectorised form.
NUMBERS = {name: {value: number for number, value in enumerate(values)} for name, values in _VALUES.items()}


def kinship(a: str, b: str) -> int:
    """How close two kinds are, in tenths."""
    if a == b:
        return KIN_SAME
    if KINDS[a].family is not None and KINDS[a].family == KINDS[b].family:
        return KIN_FAMILY
    return KIN_GROUP if KINDS[a].group == KINDS[b].group else KIN_OTHER


def alike(a: Thing, b: Thing) -> int:
    """How alike two things are, in thousandths; see the head of this file."""
    agreeing = sum(weight for name, weight in WEIGHTS.items() if getattr(a, name) == getattr(b, name))
    return kinship(a.kind, b.kind) * (BASE + agreeing)


def relevance(a: Scene, b: Scene) -> float:
    """How well two scenes fit each other; see the head of this file."""
    few, many = sorted((a.things, b.things), key=len)
    best = max(sum(map(alike, few, chosen)) for chosen in permutations(many, len(few)))
    things = THINGS_SHARE * best / (ALIKE * len(many))
    return (things + BACKGROUND_SHARE * (a.background == b.background)) / 100


def relevance_matrix(rows: Sequence[Scene], columns: Sequence[Scene] | None = None, block: int = 128) -> np.ndarray:
    """`relevance` of every row scene to every column scene, float32 [rows, columns]; columns are rows by default."""
    a = encode_scenes(rows)
    b = a if columns is None else encode_scenes(columns)
    result = np.empty((len(a["count"]), len(b["count"])), np.float32)
    for start in range(0, len(result), block):
        part = {name: values[start : start + block] for name, values in a.items()}
        result[start : start + block] = _block(part, b)
    return result


def caption_relevance(mention: CaptionContent, scene: Scene) -> float:
    """How well what a caption says fits a scene: 1 exactly when all of it is true there.

    The mean over everything said: each mentioned thing counts 1 times how well its match fits what was said of it
    (KIN times the agreeing share of 0.40 + the weights of what was said; KIN is 1 where the noun fits), each
    relation and the background count 1 if they hold. Things are matched one to one, in the best way; one that finds
    no partner counts 0.
    """
    partners: list[Thing | None] = list(scene.things) + [None] * max(0, len(mention.things) - len(scene.things))
    total = len(mention.things) + len(mention.relations) + (mention.background is not None)
    best = 0.0
    for chosen in permutations(partners, len(mention.things)):
        score = sum(0.0 if thing is None else _fits(said, thing) for said, thing in zip(mention.things, chosen))
        for i, word, j in mention.relations:
            a, b = chosen[i], chosen[j]
            score += a is not None and b is not None and word in holding(a, b)
        best = max(best, score)
    return (best + (mention.background == scene.background)) / total


def kin_to_noun(said: MentionedThing, kind: str) -> int:
    """How close a kind is to the noun of a caption, in tenths."""
    if said.kind is not None:
        return kinship(said.kind, kind)
    if said.family is not None:
        if KINDS[kind].family == said.family:
            return KIN_SAME
        group = next(k.group for k in KINDS.values() if k.family == said.family)
        return KIN_GROUP if KINDS[kind].group == group else KIN_OTHER
    return KIN_SAME if KINDS[kind].group == said.group else KIN_OTHER


def _fits(said: MentionedThing, thing: Thing) -> float:
    spoken = {name: weight for name, weight in WEIGHTS.items() if getattr(said, name) is not None}
    agreeing = sum(weight for name, weight in spoken.items() if getattr(said, name) == getattr(thing, name))
    return kin_to_noun(said, thing.kind) * (BASE + agreeing) / (KIN_SAME * (BASE + sum(spoken.values())))


def encode_scenes(scenes: Sequence[Scene]) -> dict[str, np.ndarray]:
    """Scenes as numbers: attributes [N, MOST_THINGS] with -1 where there is no thing; counts and backgrounds [N]."""
    table = {name: np.full((len(scenes), MOST_THINGS), -1, np.int16) for name in ("kind", *WEIGHTS)}
    for n, scene in enumerate(scenes):
        for m, thing in enumerate(scene.things):
            for name, codes in table.items():
                codes[n, m] = NUMBERS[name][getattr(thing, name)]
    table["count"] = np.array([len(scene.things) for scene in scenes])
    table["background"] = np.array([NUMBERS["background"][scene.background] for scene in scenes])
    return table


def _block(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> np.ndarray:
    """`relevance` for encoded scenes. Things that are missing are like nothing, so all matchings have four pairs."""
    like = [[_alike_codes(a, i, b, j) for j in range(MOST_THINGS)] for i in range(MOST_THINGS)]
    best = np.zeros(like[0][0].shape, np.int16)
    # Things 0 and 1 take columns p, q in the better order, things 2 and 3 the other two: all 24 matchings.
    for p, q in combinations(range(MOST_THINGS), 2):
        r, s = (k for k in range(MOST_THINGS) if k not in (p, q))
        first = np.maximum(like[0][p] + like[1][q], like[0][q] + like[1][p])
        best = np.maximum(best, first + np.maximum(like[2][r] + like[3][s], like[2][s] + like[3][r]))
    larger = np.maximum(a["count"][:, None], b["count"][None, :])
    same_place = a["background"][:, None] == b["background"][None, :]
    return (THINGS_SHARE * best.astype(np.int64) / (ALIKE * larger) + BACKGROUND_SHARE * same_place) / 100


def _alike_codes(a: dict[str, np.ndarray], i: int, b: dict[str, np.ndarray], j: int) -> np.ndarray:
    """`alike` of thing i of each scene of a and thing j of each scene of b."""
    agreeing = np.full((len(a["kind"]), len(b["kind"])), BASE, np.int16)
    for name, weight in WEIGHTS.items():
        agreeing += np.int16(weight) * (a[name][:, i, None] == b[name][None, :, j])
    return agreeing * _kinships()[a["kind"][:, i, None], b["kind"][None, :, j]]


@lru_cache(maxsize=1)
def _kinships() -> np.ndarray:
    """`kinship` of all kinds, with a last row and column of zeros that code -1 (no thing) finds."""
    table = np.zeros((len(KINDS) + 1, len(KINDS) + 1), np.int16)
    table[:-1, :-1] = [[kinship(a, b) for b in KINDS] for a in KINDS]
    return table


# -------- caption_matrix
# `caption_relevance` of many captions to many scenes at once: the same matchings, for all scenes together.
#
# Shapes: C captions, S scenes, 4 = MOST_THINGS slots for the things of a scene.

# Sums of the same parts in another order differ in their last digits; equal relevance must be equal.
DIGITS = 6


def caption_relevance_matrix(mentions: Sequence[CaptionContent], scenes: Sequence[Scene]) -> np.ndarray:
    """`caption_relevance` of each of `mentions` to each of `scenes`, rounded to six digits: float32 [C, S]."""
    codes = encode_scenes(scenes)
    holds = _relations(scenes)
    result = np.empty((len(mentions), len(scenes)), np.float32)
    for row, mention in zip(result, mentions):
        row[:] = np.round(_one(mention, codes, holds), DIGITS)
    return result


def _one(mention: CaptionContent, codes: dict[str, np.ndarray], holds: dict[str, np.ndarray]) -> np.ndarray:
    """One caption against all scenes: float64 [S]. A slot without a thing fits nothing, as no partner does."""
    fits = [_fits_of_scenes(said, codes) for said in mention.things]  # each [4, S]
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


def _fits_of_scenes(said: MentionedThing, codes: dict[str, np.ndarray]) -> np.ndarray:
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
    noun = MentionedThing(kind, family, group)
    return np.array([*(kin_to_noun(noun, other) for other in KINDS), 0])


def _relations(scenes: Sequence[Scene]) -> dict[str, np.ndarray]:
    """For each word, whether thing i is so to thing j: bool [4, 4, S]."""
    table = {word: np.zeros((MOST_THINGS, MOST_THINGS, len(scenes)), bool) for word in RELATIONS}
    for n, scene in enumerate(scenes):
        for i, j in permutations(range(len(scene.things)), 2):
            for word in holding(scene.things[i], scene.things[j]):
                table[word][i, j, n] = True
    return table
