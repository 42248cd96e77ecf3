"""Computes graded relevance between scenes, and between captions and scenes: 0 is not at all, 1 is fully.

Two things a, b are alike by

    alike(a, b) = KIN(a, b) · ( 0.40 + 0.24 [colour] + 0.12 [pattern] + 0.10 [size] + 0.07 [column] + 0.07 [row] )

where [x] is 1 if they agree in x and else 0, and KIN is 1 for the same kind, 0.7 for kinds of one fine-grained
family, 0.3 for kinds of one group, 0.1 for others. Columns and rows are thirds of the picture. Two scenes:

    relevance(A, B) = 0.85 · max over one-to-one matchings of Σ alike(a, b) / max(|A|, |B|)  +  0.15 [background]

It is symmetric, and 1 exactly when backgrounds agree and things agree, one to one, in all that is compared. A caption
is compared in its statements alone: see `caption_relevance_matrix`. tests/data/scene_oracles.py has both as loops.

Shapes: C captions, S scenes, 4 = MOST_THINGS slots for the things of a scene.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations, permutations

import numpy as np

from dinorankclip.data.scenes.composition import PATTERNS, RELATIONS, SIZES, holding
from dinorankclip.data.scenes.drawing import COLOURS
from dinorankclip.data.scenes.kinds import KINDS
from dinorankclip.data.scenes.scene import COLUMNS, ROWS, CaptionContent, MentionedThing, Scene
from dinorankclip.data.scenes.subjects import BACKGROUNDS

# Whole numbers, so that loops and arrays agree to the last bit and the same content is exactly 1.
KIN_SAME, KIN_FAMILY, KIN_GROUP, KIN_OTHER = 10, 7, 3, 1  # tenths
BASE = 40  # hundredths, as are the next two lines
WEIGHTS = {"colour": 24, "pattern": 12, "size": 10, "column": 7, "row": 7}
THINGS_SHARE, BACKGROUND_SHARE = 85, 15
ALIKE = KIN_SAME * (BASE + sum(WEIGHTS.values()))  # the value of `alike` for things that agree in everything
MOST_THINGS = 4
DIGITS = 6  # sums of the same parts in another order differ in their last digits; equal relevance must be equal
_VALUES: dict[str, Iterable[str]] = {
    "kind": KINDS,
    "colour": COLOURS,
    "pattern": ("plain", *PATTERNS),
    "size": SIZES,
    "column": COLUMNS,
    "row": ROWS,
    "background": BACKGROUNDS,
}
CODES = {name: {value: code for code, value in enumerate(values)} for name, values in _VALUES.items()}


def kinship(a: str, b: str) -> int:
    """Return how close two kinds are, in tenths."""
    if a == b:
        return KIN_SAME
    if KINDS[a].family is not None and KINDS[a].family == KINDS[b].family:
        return KIN_FAMILY
    return KIN_GROUP if KINDS[a].group == KINDS[b].group else KIN_OTHER


def kin_to_noun(noun: MentionedThing, kind: str) -> int:
    """Return how close a kind is to the noun of a caption, in tenths."""
    if noun.kind is not None:
        return kinship(noun.kind, kind)
    if noun.family is not None:
        if KINDS[kind].family == noun.family:
            return KIN_SAME
        group = next(k.group for k in KINDS.values() if k.family == noun.family)
        return KIN_GROUP if KINDS[kind].group == group else KIN_OTHER
    return KIN_SAME if KINDS[kind].group == noun.group else KIN_OTHER


def encode_scenes(scenes: Sequence[Scene]) -> dict[str, np.ndarray]:
    """Return attributes [S, 4] with -1 where there is no thing; counts and backgrounds [S]."""
    table = {name: np.full((len(scenes), MOST_THINGS), -1, np.int16) for name in ("kind", *WEIGHTS)}
    for n, scene in enumerate(scenes):
        for m, thing in enumerate(scene.things):
            for name, codes in table.items():
                codes[n, m] = CODES[name][getattr(thing, name)]
    table["count"] = np.array([len(scene.things) for scene in scenes])
    table["background"] = np.array([CODES["background"][scene.background] for scene in scenes])
    return table


# --- scenes to scenes


def relevance_matrix(rows: Sequence[Scene], columns: Sequence[Scene] | None = None, block: int = 128) -> np.ndarray:
    """Return the relevance of every row scene to every column scene, float32; columns are rows by default."""
    a = encode_scenes(rows)
    b = a if columns is None else encode_scenes(columns)
    result = np.empty((len(a["count"]), len(b["count"])), np.float32)
    for start in range(0, len(result), block):
        part = {name: values[start : start + block] for name, values in a.items()}
        result[start : start + block] = _scene_block(part, b)
    return result


def _scene_block(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> np.ndarray:
    """Return the relevance of encoded scenes. A missing thing is like nothing, so all matchings have four pairs."""
    like = [[_alike(a, i, b, j) for j in range(MOST_THINGS)] for i in range(MOST_THINGS)]
    best = np.zeros(like[0][0].shape, np.int16)
    # Things 0 and 1 take columns p, q in the better order, things 2 and 3 the other two: all 24 matchings.
    for p, q in combinations(range(MOST_THINGS), 2):
        r, s = (k for k in range(MOST_THINGS) if k not in (p, q))
        first = np.maximum(like[0][p] + like[1][q], like[0][q] + like[1][p])
        best = np.maximum(best, first + np.maximum(like[2][r] + like[3][s], like[2][s] + like[3][r]))
    larger = np.maximum(a["count"][:, None], b["count"][None, :])
    same_place = a["background"][:, None] == b["background"][None, :]
    return (THINGS_SHARE * best.astype(np.int64) / (ALIKE * larger) + BACKGROUND_SHARE * same_place) / 100


def _alike(a: dict[str, np.ndarray], i: int, b: dict[str, np.ndarray], j: int) -> np.ndarray:
    """Return `alike` of thing i of each scene of a and thing j of each scene of b, in thousandths."""
    agreeing = np.full((len(a["kind"]), len(b["kind"])), BASE, np.int16)
    for name, weight in WEIGHTS.items():
        agreeing += np.int16(weight) * (a[name][:, i, None] == b[name][None, :, j])
    return agreeing * _kinships()[a["kind"][:, i, None], b["kind"][None, :, j]]


@lru_cache(maxsize=1)
def _kinships() -> np.ndarray:
    """Return `kinship` of all kinds, with a last row and column of zeros for code -1 (no thing)."""
    table = np.zeros((len(KINDS) + 1, len(KINDS) + 1), np.int16)
    table[:-1, :-1] = [[kinship(a, b) for b in KINDS] for a in KINDS]
    return table


# --- captions to scenes


def caption_relevance_matrix(contents: Sequence[CaptionContent], scenes: Sequence[Scene]) -> np.ndarray:
    """Return how well each caption fits each scene, rounded to six digits, float32 [C, S]; 1 if all of it is true.

    Relevance is the mean over all statements. Each mentioned thing counts 1 times the fit of its match (KIN times the
    agreeing share of 0.40 + the weights of the stated attributes; KIN is 1 where the noun fits). Each relation and the
    background count 1 if they hold. Things are matched one to one, in the best way; a thing without partner counts 0.
    """
    codes = encode_scenes(scenes)
    holds = _relations(scenes)
    result = np.empty((len(contents), len(scenes)), np.float32)
    for row, content in zip(result, contents):
        row[:] = np.round(_caption_row(content, codes, holds), DIGITS)
    return result


def _caption_row(content: CaptionContent, codes: dict[str, np.ndarray], holds: dict[str, np.ndarray]) -> np.ndarray:
    """Compare one caption with all scenes: float64 [S]. A slot without a thing fits nothing."""
    fits = [_thing_fits(thing, codes) for thing in content.things]  # each [4, S]
    best = np.zeros(codes["background"].shape)
    for slots in permutations(range(MOST_THINGS), len(fits)):
        score = sum(fit[slot] for fit, slot in zip(fits, slots))
        for i, word, j in content.relations:
            score = score + holds[word][slots[i], slots[j]]
        np.maximum(best, score, out=best)
    total = len(content.things) + len(content.relations)
    if content.background is None:
        return best / total
    return (best + (codes["background"] == CODES["background"][content.background])) / (total + 1)


def _thing_fits(mentioned: MentionedThing, codes: dict[str, np.ndarray]) -> np.ndarray:
    """Return how well each thing of each scene fits a mentioned thing: float64 [4, S]."""
    kin = _kin(mentioned.kind, mentioned.family, mentioned.group)
    agreeing = np.full(codes["kind"].shape, float(BASE))
    most = BASE
    for name, weight in WEIGHTS.items():
        value = getattr(mentioned, name)
        if value is not None:
            agreeing += weight * (codes[name] == CODES[name][value])
            most += weight
    return (kin[codes["kind"]] * agreeing / (KIN_SAME * most)).T


@lru_cache(maxsize=1024)
def _kin(kind: str | None, family: str | None, group: str | None) -> np.ndarray:
    """Return `kin_to_noun` of every kind, and a last 0 for code -1 (no thing)."""
    noun = MentionedThing(kind, family, group)
    return np.array([*(kin_to_noun(noun, other) for other in KINDS), 0])


def _relations(scenes: Sequence[Scene]) -> dict[str, np.ndarray]:
    """Return for each word whether it holds between things i and j: bool [4, 4, S]."""
    table = {word: np.zeros((MOST_THINGS, MOST_THINGS, len(scenes)), bool) for word in RELATIONS}
    for n, scene in enumerate(scenes):
        for i, j in permutations(range(len(scene.things)), 2):
            for word in holding(scene.things[i], scene.things[j]):
                table[word][i, j, n] = True
    return table
