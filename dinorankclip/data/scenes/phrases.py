"""Chance describes one thing, or several of a kind together: "a small red mug", "two mugs with stripes"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .chance import Chance
from .grammar import NUMBERS, article, with_adjectives
from .kinds import FAMILIES, GROUPS, KINDS, Kind, Word
from .knobs import P_COLOUR, P_GENERAL, P_PATTERN, P_SIZE, P_SYNONYM
from .scene import Said, Scene, Thing

SIZE_WORDS = {"small": ("small", "little", "tiny"), "medium": ("medium-sized",), "large": ("large", "big", "huge")}
PATTERN_WORDS = {
    "striped": ("striped", "stripy"),
    "spotted": ("spotted", "dotted", "polka-dot"),
    "checkered": ("checkered", "checked"),
}
PATTERN_ENDINGS = {"striped": "with stripes", "spotted": "with spots", "checkered": "with checks"}
P_MEDIUM = 0.25  # of the times a size is said: people seldom say that something is of middling size
P_ENDING = 0.35  # "a mug with stripes" instead of "a striped mug"
P_ONE = 0.06  # "one mug" instead of "a mug"


@dataclass(frozen=True)
class Phrase:
    """Words for some things of a scene, without the article."""

    core: str
    members: tuple[int, ...]
    said: Said  # holds for each member
    pose: str

    @property
    def many(self) -> bool:
        return len(self.members) > 1

    def text(self, chance: Chance, *, again: bool = False) -> str:
        """With a determiner. `again`: the same words came before, so this is another one."""
        if self.many:
            return f"{NUMBERS[len(self.members)]} {self.core}"
        if again:
            return f"another {self.core}"
        return f"one {self.core}" if chance.happens(P_ONE) else f"{article(self.core)} {self.core}"


def describe(scene: Scene, members: Sequence[int], manner: str, chance: Chance) -> Phrase:
    """Describe things of one kind. Several together are only said to have what all of them have."""
    things = [scene.things[i] for i in members]
    kind = KINDS[things[0].kind]
    word, level = _word(kind, len(things), chance)
    said: dict[str, str] = dict([level])
    adjectives, ending = [], ""

    size = _shared(things, "size")
    if size is not None and chance.happens(P_SIZE[manner] * (P_MEDIUM if size == "medium" else 1)):
        said["size"] = size
        adjectives.append(chance.pick(SIZE_WORDS[size]))
    colour = _shared(things, "colour")
    if colour is not None and chance.happens(P_COLOUR[manner]):
        said["colour"] = colour
        adjectives.append(colour)
    pattern = _shared(things, "pattern")
    if pattern in PATTERN_WORDS and chance.happens(P_PATTERN[manner]):
        said["pattern"] = pattern
        if chance.happens(P_ENDING):
            ending = " " + PATTERN_ENDINGS[pattern]
        else:  # "striped red" and "red striped" are both said, but size comes first
            at = len(adjectives) if chance.happens(0.5) else int("size" in said)
            adjectives.insert(at, chance.pick(PATTERN_WORDS[pattern]))

    noun = word.many if len(things) > 1 else word.one
    pose = chance.pick(GROUPS[kind.group].poses)
    return Phrase(with_adjectives(noun, adjectives) + ending, tuple(members), Said(**said), pose)


def _word(kind: Kind, count: int, chance: Chance) -> tuple[Word, tuple[str, str]]:
    """The noun, and what it says: ("kind", …), ("family", …) or ("group", …).

    Things counted together keep their own name: "two birds" would have to count every bird.
    """
    if count == 1 and chance.happens(P_GENERAL):
        family = FAMILIES[kind.family] if kind.family else None
        if family is not None and kind.family is not None:
            return family, ("family", kind.family)
        return GROUPS[kind.group].word, ("group", kind.group)
    if kind.synonyms and chance.happens(P_SYNONYM):
        return chance.pick(kind.synonyms), ("kind", kind.name)
    return kind.word, ("kind", kind.name)


def _shared(things: Sequence[Thing], attribute: str) -> str | None:
    values = {getattr(thing, attribute) for thing in things}
    return values.pop() if len(values) == 1 else None
