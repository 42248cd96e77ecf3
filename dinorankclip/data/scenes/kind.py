"""Defines a kind of thing, the groups and fine-grained families of kinds, and the decorator that registers kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from dinorankclip.data.scenes.drawing import ANY, Pen, Ruler

Drawing = Callable[[Pen], None]


@dataclass(frozen=True)
class Noun:
    """A noun in both numbers. A "pair of scissors" takes its adjectives behind the `of`."""

    singular: str
    plural: str


@dataclass(frozen=True)
class Group:
    """Kinds of one sort: the noun for any of them, and verbs for their presence somewhere."""

    noun: Noun
    poses: tuple[str, ...]


GROUPS: dict[str, Group] = {
    "vehicles": Group(Noun("vehicle", "vehicles"), ("parked", "waiting")),
    "animals": Group(Noun("animal", "animals"), ("sitting", "standing", "resting")),
    "birds": Group(Noun("bird", "birds"), ("sitting", "perched")),
    "food": Group(Noun("piece of food", "pieces of food"), ("lying", "placed")),
    "buildings": Group(Noun("building", "buildings"), ("standing", "built")),
    "furniture": Group(Noun("piece of furniture", "pieces of furniture"), ("standing", "placed")),
    "tools": Group(Noun("tool", "tools"), ("lying", "placed")),
    "household": Group(Noun("household item", "household items"), ("standing", "placed")),
    "clothes": Group(Noun("piece of clothing", "pieces of clothing"), ("lying", "laid out")),
    "plants": Group(Noun("plant", "plants"), ("growing", "standing")),
    "toys": Group(Noun("toy", "toys"), ("lying", "placed")),
    "instruments": Group(Noun("musical instrument", "musical instruments"), ("lying", "placed")),
}

# Kinds of a family share most of their drawing and differ in small parts. The noun is a general word for all of them;
# families with None have no everyday word that fits all their kinds and no other kind.
FAMILIES: dict[str, Noun | None] = {
    "cars": Noun("car", "cars"),
    "trucks": Noun("truck", "trucks"),
    "boats": Noun("boat", "boats"),
    "pets": Noun("pet", "pets"),
    "small birds": None,
    "round fruit": None,
    "gabled houses": None,
    "seats": Noun("seat", "seats"),
    "long tools": None,
    "hand tools": None,
    "pouring pots": None,
    "cups": Noun("cup", "cups"),
    "cutlery": Noun("piece of cutlery", "pieces of cutlery"),
    "tops": Noun("top", "tops"),
    "hats": Noun("hat", "hats"),
    "flowers": Noun("flower", "flowers"),
    "trees": Noun("tree", "trees"),
    "plucked strings": None,
}


@dataclass(frozen=True)
class Kind:
    """One kind of thing. `seat` is the height in the unit square on which another thing can rest, if any can."""

    name: str
    noun: Noun
    group: str
    draw: Drawing = field(compare=False)
    family: str | None = None
    synonyms: tuple[Noun, ...] = ()
    colours: tuple[str, ...] = ANY
    patterned: bool = True
    seat: float | None = None

    @cached_property
    def bounds(self) -> tuple[float, float, float, float]:
        """Extent of the drawing in the unit square: left, top, right, bottom."""
        ruler = Ruler()
        self.draw(ruler)
        return ruler.left, ruler.top, ruler.right, ruler.bottom

    @cached_property
    def proportions(self) -> tuple[float, float]:
        """Width and height of the tight box, the longer side being 1."""
        left, top, right, bottom = self.bounds
        longest = max(right - left, bottom - top)
        return (right - left) / longest, (bottom - top) / longest

    @cached_property
    def seat_share(self) -> float | None:
        """Height of the seat as a share of the tight box, 0 at its top."""
        _, top, _, bottom = self.bounds
        return None if self.seat is None else (self.seat - top) / (bottom - top)


KINDS: dict[str, Kind] = {}


def kind(
    name: str,
    group: str,
    *,
    family: str | None = None,
    plural: str | None = None,
    also: tuple[str, ...] = (),
    colours: tuple[str, ...] = ANY,
    patterned: bool = True,
    seat: float | None = None,
) -> Callable[[Drawing], Drawing]:
    """Register the decorated drawing as a kind. `also` lists synonyms, as "one/many" unless the plural takes -s."""
    if group not in GROUPS or (family is not None and family not in FAMILIES) or name in KINDS:
        raise ValueError(f"kind {name!r}: unknown group or family, or registered twice")

    def register(draw: Drawing) -> Drawing:
        pairs = (synonym.partition("/") for synonym in also)
        synonyms = tuple(Noun(one, many or one + "s") for one, _, many in pairs)
        noun = Noun(name, plural or name + "s")
        KINDS[name] = Kind(name, noun, group, draw, family, synonyms, colours, patterned, seat)
        return draw

    return register
