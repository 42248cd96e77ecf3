"""Writes captions of scenes at random, the way people do.

Each caption names some things of the scene and states nothing that is not true. Its content is returned as data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dinorankclip.data.scenes.composition import RELATIONS, holding
from dinorankclip.data.scenes.kinds import FAMILIES, GROUPS, KINDS, Kind
from dinorankclip.data.scenes.scene import CaptionContent, CaptionedScene, Chance, MentionedThing, Scene, Thing
from dinorankclip.data.scenes.subjects import BACKGROUNDS

CAPTIONS = 5  # captions of each scene
TRIES = 8  # attempts at a caption that the scene does not have yet
MANNERS = {"terse": 0.10, "usual": 0.45, "full": 0.45}  # how talkative a caption is, with probability
P_COLOUR = {"terse": 0.40, "usual": 0.85, "full": 1.00}
P_PATTERN = {"terse": 0.30, "usual": 0.75, "full": 1.00}  # if the thing has a pattern
P_SIZE = {"terse": 0.05, "usual": 0.25, "full": 0.50}
P_BACKGROUND = {"terse": 0.20, "usual": 0.55, "full": 0.85}
P_LEAVE_OUT = {"terse": 0.60, "usual": 0.25, "full": 0.05}  # each thing but the first chosen stays unmentioned
P_RELATION = {"terse": 0.25, "usual": 0.45, "full": 0.55}  # if a relation holds between two mentioned things
P_PLACE = {"terse": 0.05, "usual": 0.15, "full": 0.25}  # places in the picture, if no relation is stated
P_TOGETHER = 0.75  # things of one kind are counted ("two red mugs") instead of named one by one
P_GENERAL = 0.06  # "a bird" for a sparrow
P_SYNONYM = 0.30  # "a couch" for a sofa
P_MEDIUM = 0.25  # factor for "medium": people seldom mention a middling size
P_ENDING = 0.35  # "a mug with stripes" instead of "a striped mug"
P_ONE = 0.06  # "one mug" instead of "a mug"

NUMBERS = {2: "two", 3: "three", 4: "four"}
PAIR = ("pair of ", "pairs of ")


def article(words: str) -> str:
    """Return "a" or "an". All words used here that begin with a vowel letter begin with a vowel sound."""
    return "an" if words[0].lower() in "aeiou" else "a"


def with_adjectives(noun: str, adjectives: Sequence[str]) -> str:
    """Put adjectives before the noun, and inside of "pair of …": "pair of red scissors"."""
    for head in PAIR:
        if noun.startswith(head):
            return head + " ".join([*adjectives, noun.removeprefix(head)])
    return " ".join([*adjectives, noun])


def listed(parts: Sequence[str]) -> str:
    """Return "x", "x and y" or "x, y and z"."""
    if len(parts) == 1:
        return parts[0]
    return ", ".join(parts[:-1]) + " and " + parts[-1]


def sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


# --- phrases

SIZE_WORDS = {"small": ("small", "little", "tiny"), "medium": ("medium-sized",), "large": ("large", "big", "huge")}
PATTERN_WORDS = {
    "striped": ("striped", "stripy"),
    "spotted": ("spotted", "dotted", "polka-dot"),
    "checkered": ("checkered", "checked"),
}
PATTERN_ENDINGS = {"striped": "with stripes", "spotted": "with spots", "checkered": "with checks"}


@dataclass(frozen=True)
class Phrase:
    """Words for one thing of a scene or several of a kind ("small red mug", "mugs with stripes"), without article."""

    core: str
    members: tuple[int, ...]
    content: MentionedThing  # statements about each member
    pose: str

    @property
    def many(self) -> bool:
        return len(self.members) > 1

    def text(self, chance: Chance, *, again: bool = False) -> str:
        """Return the words with a determiner: "another" if the same words came before (`again`)."""
        if self.many:
            return f"{NUMBERS[len(self.members)]} {self.core}"
        if again:
            return f"another {self.core}"
        return f"one {self.core}" if chance.happens(P_ONE) else f"{article(self.core)} {self.core}"


def describe(scene: Scene, members: Sequence[int], manner: str, chance: Chance) -> Phrase:
    """Describe things of one kind. Several things together get only the attributes that all of them have."""
    things = [scene.things[i] for i in members]
    kind = KINDS[things[0].kind]
    noun, level = _noun(kind, len(things), chance)
    content: dict[str, str] = dict([level])
    adjectives, ending = [], ""

    size = _shared(things, "size")
    if size is not None and chance.happens(P_SIZE[manner] * (P_MEDIUM if size == "medium" else 1)):
        content["size"] = size
        adjectives.append(chance.pick(SIZE_WORDS[size]))
    colour = _shared(things, "colour")
    if colour is not None and chance.happens(P_COLOUR[manner]):
        content["colour"] = colour
        adjectives.append(colour)
    pattern = _shared(things, "pattern")
    if pattern in PATTERN_WORDS and chance.happens(P_PATTERN[manner]):
        content["pattern"] = pattern
        if chance.happens(P_ENDING):
            ending = " " + PATTERN_ENDINGS[pattern]
        else:  # both "striped red" and "red striped" are usual, but size comes first
            at = len(adjectives) if chance.happens(0.5) else int("size" in content)
            adjectives.insert(at, chance.pick(PATTERN_WORDS[pattern]))

    pose = chance.pick(GROUPS[kind.group].poses)
    core = with_adjectives(noun, adjectives) + ending
    return Phrase(core, tuple(members), MentionedThing(**content), pose)


def _noun(kind: Kind, count: int, chance: Chance) -> tuple[str, tuple[str, str]]:
    """Return a noun and its meaning: ("kind", …), ("family", …) or ("group", …).

    Things counted together keep the name of their kind: "two birds" would have to count every bird.
    """
    if count == 1 and chance.happens(P_GENERAL):
        family = FAMILIES[kind.family] if kind.family else None
        if family is not None and kind.family is not None:
            return family, ("family", kind.family)
        return GROUPS[kind.group].noun, ("group", kind.group)
    noun = chance.pick(kind.synonyms) if kind.synonyms and chance.happens(P_SYNONYM) else kind.noun
    return noun.plural if count > 1 else noun.singular, ("kind", kind.name)


def _shared(things: Sequence[Thing], attribute: str) -> str | None:
    values = {getattr(thing, attribute) for thing in things}
    return values.pop() if len(values) == 1 else None


# --- captions

DIRECT = {  # "a mug … a plate"
    "left": ("to the left of", "left of", "on the left of"),
    "right": ("to the right of", "right of", "on the right of"),
    "above": ("above", "over"),
    "below": ("below", "under", "beneath"),
    "beside": ("next to", "beside", "close to"),
    "on": ("on", "on top of"),
}
TURNED = {  # "a plate with a mug …"; {its} and {it} follow the number of plates
    "left": ("to {its} left", "on {its} left"),
    "right": ("to {its} right", "on {its} right"),
    "above": ("above {it}", "over {it}"),
    "below": ("below {it}", "underneath {it}"),
    "beside": ("next to {it}", "beside {it}"),
    "on": ("on {it}", "on top of {it}"),
}
PLACES = {
    ("left", None): ("on the left", "on the left side"),
    ("right", None): ("on the right", "on the right side"),
    (None, "top"): ("at the top", "in the upper part"),
    (None, "bottom"): ("at the bottom", "in the lower part"),
    ("left", "top"): ("in the top left corner", "at the upper left"),
    ("right", "top"): ("in the top right corner", "at the upper right"),
    ("left", "bottom"): ("in the bottom left corner", "at the lower left"),
    ("right", "bottom"): ("in the bottom right corner", "at the lower right"),
    ("middle", "middle"): ("in the middle", "in the centre"),
}


def caption_scene(scene: Scene, chance: Chance) -> CaptionedScene:
    """Write the captions of a scene. They differ from each other if the scene offers enough content."""
    texts: list[str] = []
    contents: list[CaptionContent] = []
    for _ in range(CAPTIONS):
        for _ in range(TRIES):
            text, content = write_caption(scene, chance)
            if text not in texts:
                break
        texts.append(text)
        contents.append(content)
    return CaptionedScene(scene, tuple(texts), tuple(contents))


def write_caption(scene: Scene, chance: Chance) -> tuple[str, CaptionContent]:
    """Write one caption and return it with its content."""
    manner = chance.weighted(MANNERS)
    phrases = [describe(scene, unit, manner, chance) for unit in _mentioned_units(scene, manner, chance)]
    background = scene.background if chance.happens(P_BACKGROUND[manner]) else None
    related = _related(scene, phrases, chance) if chance.happens(P_RELATION[manner]) else None
    if related is not None:
        return _relation_caption(phrases, related, background, chance)
    if chance.happens(P_PLACE[manner]):
        return _places_caption(scene, phrases, background, chance)
    return _list_caption(phrases, background, chance)


def _mentioned_units(scene: Scene, manner: str, chance: Chance) -> list[tuple[int, ...]]:
    """Choose the mentioned things and group things that are counted. A count covers all things of the kind."""
    order = chance.shuffled(range(len(scene.things)))
    chosen = order[:1] + [i for i in order[1:] if not chance.happens(P_LEAVE_OUT[manner])]
    units: list[tuple[int, ...]] = []
    for i in chosen:
        if any(i in unit for unit in units):
            continue
        alike = tuple(j for j, thing in enumerate(scene.things) if thing.kind == scene.things[i].kind)
        already_single = any(len(unit) == 1 and unit[0] in alike for unit in units)
        together = len(alike) > 1 and not already_single and chance.happens(P_TOGETHER)
        units.append(alike if together else (i,))
    return units


def _related(scene: Scene, phrases: Sequence[Phrase], chance: Chance) -> tuple[int, str, int] | None:
    """Choose two phrases and a word that holds between all their things; "on" takes precedence."""
    options = []
    for i, a in enumerate(phrases):
        for j, b in enumerate(phrases):
            if i == j:
                continue
            each = [holding(scene.things[m], scene.things[n]) for m in a.members for n in b.members]
            words = frozenset.intersection(*each)
            if "on" in words:
                return i, "on", j
            options += [(i, word, j) for word in RELATIONS if word in words]
    return chance.pick(options) if options else None


def _texts(phrases: Sequence[Phrase], chance: Chance) -> list[str]:
    """Return phrases with determiners: the second "red mug" becomes "another red mug"."""
    return [
        phrase.text(chance, again=any(phrase.core == earlier.core for earlier in phrases[:k]))
        for k, phrase in enumerate(phrases)
    ]


def _relation_caption(
    phrases: list[Phrase], related: tuple[int, str, int], background: str | None, chance: Chance
) -> tuple[str, CaptionContent]:
    i, word, j = related
    turned = chance.happens(0.3)
    order = [j, i] if turned else [i, j]
    rest = [k for k in range(len(phrases)) if k not in (i, j)]
    ordered = [phrases[k] for k in order + rest]
    first, second, *others = _texts(ordered, chance)
    is_are = "are" if ordered[0].many else "is"
    forms: tuple[str, ...]
    if turned:
        its, it = ("their", "them") if ordered[0].many else ("its", "it")
        core = f"{first} with {second} {chance.pick(TURNED[word]).format(its=its, it=it)}"
        forms = (core, f"there {is_are} {core}")
    else:
        tail = f"{chance.pick(DIRECT[word])} {second}"
        forms = (
            f"{first} {tail}",
            f"{first} {ordered[0].pose} {tail}",
            f"{first} {is_are} {tail}",
            f"there {is_are} {first} {tail}",
        )
    text = _add_background(chance.pick(forms), background, chance)
    if others:
        also = "are" if ordered[2].many else "is"
        text += chance.pick((f", and there {also} also {listed(others)}", f"; {listed(others)} can be seen too"))
    relation = (1, word, 0) if turned else (0, word, 1)
    return sentence(text), _content(ordered, background, relation)


def _places_caption(
    scene: Scene, phrases: list[Phrase], background: str | None, chance: Chance
) -> tuple[str, CaptionContent]:
    parts, placed = [], []
    for phrase, text in zip(phrases, _texts(phrases, chance)):
        options = _true_places(scene, phrase)
        if options:
            column, row = chance.pick(options)
            text += " " + chance.pick(PLACES[column, row])
            phrase = replace(phrase, content=replace(phrase.content, column=column, row=row))
        parts.append(text)
        placed.append(phrase)
    text = listed(parts)
    if background is not None:
        is_are = "are" if phrases[0].many else "is"
        where = chance.pick(BACKGROUNDS[background].where)
        text = chance.pick((f"{where} there {is_are} {text}", f"{BACKGROUNDS[background].noun} with {text}"))
    return sentence(text), _content(placed, background)


def _true_places(scene: Scene, phrase: Phrase) -> list[tuple[str | None, str | None]]:
    columns = {scene.things[m].column for m in phrase.members} | {None}
    rows = {scene.things[m].row for m in phrase.members} | {None}
    if len(columns) > 2:
        columns = {None}  # the members are not all on one side
    if len(rows) > 2:
        rows = {None}
    return [(column, row) for column, row in PLACES if column in columns and row in rows]


def _list_caption(phrases: list[Phrase], background: str | None, chance: Chance) -> tuple[str, CaptionContent]:
    things = listed(_texts(phrases, chance))
    is_are = "are" if phrases[0].many else "is"
    content = _content(phrases, background)
    if background is None:
        bare = (things, things, f"there {is_are} {things}", f"a picture of {things}", f"{things} can be seen")
        return sentence(chance.pick(bare)), content
    where = chance.pick(BACKGROUNDS[background].where)
    forms = [
        f"{things} {where}",
        f"there {is_are} {things} {where}",
        f"{where} there {is_are} {things}",
        f"{BACKGROUNDS[background].noun} with {things}",
    ]
    if len(phrases) == 1:
        forms += [f"{things} {phrases[0].pose} {where}", f"{things} {is_are} {phrases[0].pose} {where}"]
    return sentence(chance.pick(forms)), content


def _add_background(text: str, background: str | None, chance: Chance) -> str:
    if background is None:
        return text
    where = chance.pick(BACKGROUNDS[background].where)
    return chance.pick((f"{text} {where}", f"{where}, {text}"))


def _content(
    phrases: Sequence[Phrase], background: str | None, relation: tuple[int, str, int] | None = None
) -> CaptionContent:
    """Return the content of phrases. A phrase of several things becomes as many entries; `relation` links phrases."""
    things: list[MentionedThing] = []
    entries: list[range] = []
    for phrase in phrases:
        entries.append(range(len(things), len(things) + len(phrase.members)))
        things += [phrase.content] * len(phrase.members)
    relations: tuple[tuple[int, str, int], ...] = ()
    if relation is not None:
        a, word, b = relation
        relations = tuple((m, word, n) for m in entries[a] for n in entries[b])
    return CaptionContent(tuple(things), background, relations)
