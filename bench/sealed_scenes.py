"""Makes the sealed test of the scenes: pairs of a seed that no training used, caption swaps and new combinations.

The generator knows every scene and the content of every caption, so both are computed, not guessed:
    swaps         a caption and the same caption with one statement exchanged (left and right, or two colours), if the
                  exchanged caption is wrong for the scene; the model chooses between both (chance 50 %)
    combinations  scenes with two things whose kinds and relation (kind, word, kind) no training scene has
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path

import numpy as np
from torch import Tensor

from dinorankclip.data.scenes.composition import holding
from dinorankclip.data.scenes.make import captioned_scene, make_scenes
from dinorankclip.data.scenes.relevance import caption_relevance_matrix
from dinorankclip.data.scenes.scene import CaptionContent, CaptionedScene, Scene
from dinorankclip.data.scenes.wording import article

SPLIT = "test"
OTHER_SIDE = {"left": "right", "right": "left"}
_ARTICLE = re.compile(r"\b([Aa]n?) (\w)")


@dataclass(frozen=True)
class Swap:
    """Holds a caption of image `image` and its wrong counterpart; `kind` is "sides" or "colours"."""

    image: int
    right: str
    wrong: str
    kind: str


def make_sealed(folder: Path, seed: int, count: int, size: int = 64) -> Path:
    """Write `count` test pairs of a seed, and nothing else, unless they are there."""
    nothing = {"kinds_train": 0, "kinds_test": 0, "fine_train": 0, "fine_test": 0}
    return make_scenes(folder, seed=seed, train=0, val=0, test=count, size=size, workers=1, **nothing)


def sealed_scenes(seed: int, count: int) -> list[CaptionedScene]:
    """Return the scenes of `make_sealed`, in its order."""
    return [captioned_scene(seed, SPLIT, index) for index in range(count)]


def swaps_of(scenes: Iterable[CaptionedScene]) -> list[Swap]:
    """Return at most one swap of each kind for each scene: that of the first caption that allows it."""
    found: list[Swap] = []
    for image, captioned in enumerate(scenes):
        for kind, exchange in (("sides", _other_side), ("colours", _exchanged_colours)):
            for text, content in zip(captioned.captions, captioned.contents):
                made = exchange(text, content)
                if made is not None and _wrong(made[1], captioned.scene):
                    found.append(Swap(image, text, made[0], kind))
                    break
    return found


def _wrong(content: CaptionContent, scene: Scene) -> bool:
    return float(caption_relevance_matrix([content], [scene])[0, 0]) < 1.0


def _other_side(text: str, content: CaptionContent) -> tuple[str, CaptionContent] | None:
    """Exchange left and right in a caption that states one such relation and no places."""
    sides = [word for _, word, _ in content.relations if word in OTHER_SIDE]
    words = re.findall(r"\b(left|right)\b", text)
    if len(content.relations) != 1 or not sides or words != sides:
        return None
    word = words[0]
    relations = tuple((i, OTHER_SIDE[w], j) for i, w, j in content.relations)
    return re.sub(rf"\b{word}\b", OTHER_SIDE[word], text), replace(content, relations=relations)


def _exchanged_colours(text: str, content: CaptionContent) -> tuple[str, CaptionContent] | None:
    """Exchange the colours of the first two mentioned things, each colour being written once."""
    if len(content.things) != 2:
        return None
    first, second = content.things
    if first.colour is None or second.colour is None or first.colour == second.colour:
        return None
    places = [list(re.finditer(rf"\b{thing.colour}\b", text)) for thing in (first, second)]
    if any(len(found) != 1 for found in places):
        return None
    names = {first.colour: second.colour, second.colour: first.colour}
    swapped = re.sub(rf"\b({first.colour}|{second.colour})\b", lambda match: names[match[1]], text)
    things = (replace(first, colour=second.colour), replace(second, colour=first.colour))
    return _ARTICLE.sub(_right_article, swapped), replace(content, things=things)


def _right_article(match: re.Match[str]) -> str:
    word = article(match[2])
    return f"{word.capitalize() if match[1][0] == 'A' else word} {match[2]}"


def combinations_of(scene: Scene) -> set[tuple[str, str, str]]:
    """Return (kind, word, kind) of all relations that hold in a scene."""
    return {
        (a.kind, word, b.kind) for a, b in permutations(scene.things, 2) for word in holding(a, b) if a is not b
    }  # fmt: skip


def new_combinations(train: Iterable[Scene], test: Iterable[Scene]) -> np.ndarray:
    """Return the places of test scenes with a combination that no training scene has."""
    known = set().union(*(combinations_of(scene) for scene in train))
    return np.array([at for at, scene in enumerate(test) if combinations_of(scene) - known], dtype=np.int64)


def swap_scores(images: Tensor, right: Tensor, wrong: Tensor, swaps: list[Swap]) -> dict[str, float]:
    """Return the share of swaps whose right caption is nearer to the image, by kind; equal cosines count half.

    `images` [n, D] are all rows of the set, `right` and `wrong` [S, D] rows of the swaps' captions, unit-norm.
    """
    own = images[[swap.image for swap in swaps]]
    lead = ((own * right).sum(1) - (own * wrong).sum(1)).numpy()
    hits = (lead > 0) + 0.5 * (lead == 0)
    kinds = np.array([swap.kind for swap in swaps])
    return {f"swapped {kind}": float(hits[kinds == kind].mean()) for kind in dict.fromkeys(kinds)}
