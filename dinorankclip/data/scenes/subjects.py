"""Defines subjects of pictures, each with its drawing and its words: the type of all kinds, and the backgrounds.

Kinds have groups and fine-grained families. The kinds themselves are in kinds/.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dinorankclip.data.scenes.drawing import ANY, Pen, Ruler, palette
from dinorankclip.data.scenes.scene import Chance

Drawing = Callable[[Pen], None]


@dataclass(frozen=True)
class Noun:
    """A noun in both numbers. A "pair of scissors" takes its adjectives behind the `of`."""

    singular: str
    plural: str


@dataclass(frozen=True)
class Group:
    """Kinds of one sort: the noun for any of them, and verbs for their presence somewhere."""

    noun: str
    poses: tuple[str, ...]


GROUPS: dict[str, Group] = {
    "vehicles": Group("vehicle", ("parked", "waiting")),
    "animals": Group("animal", ("sitting", "standing", "resting")),
    "birds": Group("bird", ("sitting", "perched")),
    "food": Group("piece of food", ("lying", "placed")),
    "buildings": Group("building", ("standing", "built")),
    "furniture": Group("piece of furniture", ("standing", "placed")),
    "tools": Group("tool", ("lying", "placed")),
    "household": Group("household item", ("standing", "placed")),
    "clothes": Group("piece of clothing", ("lying", "laid out")),
    "plants": Group("plant", ("growing", "standing")),
    "toys": Group("toy", ("lying", "placed")),
    "instruments": Group("musical instrument", ("lying", "placed")),
}

# Kinds of a family share most of their drawing and differ in small parts. The noun is a general word for all of them;
# families with None have no everyday word that fits all their kinds and no other kind.
FAMILIES: dict[str, str | None] = {
    "cars": "car",
    "trucks": "truck",
    "boats": "boat",
    "pets": "pet",
    "small birds": None,
    "round fruit": None,
    "gabled houses": None,
    "seats": "seat",
    "long tools": None,
    "hand tools": None,
    "pouring pots": None,
    "cups": "cup",
    "cutlery": "piece of cutlery",
    "tops": "top",
    "hats": "hat",
    "flowers": "flower",
    "trees": "tree",
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
        """Return the extent of the drawing in the unit square: left, top, right, bottom."""
        ruler = Ruler()
        self.draw(ruler)
        return ruler.left, ruler.top, ruler.right, ruler.bottom

    @cached_property
    def proportions(self) -> tuple[float, float]:
        """Return width and height of the tight box, the longer side being 1."""
        left, top, right, bottom = self.bounds
        longest = max(right - left, bottom - top)
        return (right - left) / longest, (bottom - top) / longest

    @cached_property
    def seat_share(self) -> float | None:
        """Return the height of the seat as a share of the tight box, 0 at its top."""
        _, top, _, bottom = self.bounds
        return None if self.seat is None else (self.seat - top) / (bottom - top)


KINDS: dict[str, Kind] = {}


def kind(name: str, group: str, *, plural: str = "", also: tuple[str, ...] = (), **details: Any) -> Callable:
    """Register the decorated drawing as a kind. `details` are further fields of `Kind`.

    `also` lists synonyms, as "one/many" unless the plural takes -s.
    """
    if group not in GROUPS or details.get("family") not in {None, *FAMILIES} or name in KINDS:
        raise ValueError(f"kind {name!r}: unknown group or family, or registered twice")

    def register(draw: Drawing) -> Drawing:
        pairs = (synonym.partition("/") for synonym in also)
        synonyms = tuple(Noun(one, many or one + "s") for one, _, many in pairs)
        KINDS[name] = Kind(name, Noun(name, plural or name + "s"), group, draw, synonyms=synonyms, **details)
        return draw

    return register


# --- backgrounds

# Muted next to the colours of things, so that a white mug still shows in the snow.
GROUND = palette("""
    day #bcdcf0        cloud #ecf2f6      sun #fce896        sea #62a0be        wave #92c4d6       sand #e8d4a6
    pebble #d0b88a     dark #22284a       star #eceac8       moon #f0ecd2       grass #a0c678      blade #80ac5e
    snow #e4eaf0       drift #d0dae6      winter #becad8     brick #bc7460      mortar #d6c8bc     tile #e2e0d4
    tile2 #c4ccc8      board #cca474      seam #aa8054       asphalt #808286    stripe #e6e2ce     pavement #bcbab4
    rug #ac8ca0        fringe #d6c0bc     floor #c4ac8e      wood #708c68       trunk #5e5446      moss #8a9868
""")


@dataclass(frozen=True)
class Background:
    """`where` continues a sentence ("a mug on the beach"); `noun` starts a sentence ("a beach with a mug")."""

    name: str
    where: tuple[str, ...]
    noun: str
    draw: Callable[[Pen, Chance], None] = field(compare=False)


BACKGROUNDS: dict[str, Background] = {}


def background(name: str, noun: str, *where: str) -> Callable[[Callable[[Pen, Chance], None]], None]:
    """Register the decorated drawing as a background."""

    def register(draw: Callable[[Pen, Chance], None]) -> None:
        BACKGROUNDS[name] = Background(name, where, noun, draw)

    return register


def _dots(p: Pen, c: Chance, fill: str, count: int, top: float, size: float, *, flat: float = 1.0) -> None:
    """Draw blots at random below `top`."""
    for _ in range(count):
        x, y, r = c.random(), c.within(top, 1.0), size * c.within(0.6, 1.4)
        p.oval(x, y, r, r * flat, fill, edge=False)


@background("beach", "a beach", "on the beach", "at the beach", "on the sand")
def _beach(p: Pen, c: Chance) -> None:
    horizon = c.within(0.2, 0.35)
    p.box(0, 0, 1, horizon, "day", edge=False)
    p.box(0, horizon - 0.08, 1, horizon + 0.06, "sea", edge=False)
    p.box(0, horizon + 0.04, 1, 1, "sand", edge=False)
    _dots(p, c, "pebble", 14, horizon + 0.08, 0.012)


@background("night sky", "a night sky", "under a starry sky", "against the night sky", "at night")
def _night_sky(p: Pen, c: Chance) -> None:
    p.box(0, 0, 1, 1, "dark", edge=False)
    _dots(p, c, "star", 24, 0.0, 0.009)
    p.oval(c.within(0.1, 0.9), c.within(0.08, 0.2), 0.06, 0.06, "moon", edge=False)


@background("meadow", "a meadow", "in a meadow", "on the grass", "in a green field")
def _meadow(p: Pen, c: Chance) -> None:
    horizon = c.within(0.1, 0.25)
    p.box(0, 0, 1, horizon, "day", edge=False)
    p.box(0, horizon, 1, 1, "grass", edge=False)
    for _ in range(24):
        x, y = c.random(), c.within(horizon + 0.04, 1.0)
        p.line([(x, y), (x + c.within(-0.02, 0.02), y - 0.05)], 0.01, "blade")


@background("snow", "a snowy field", "in the snow", "on snow", "on a snowy day")
def _snow(p: Pen, c: Chance) -> None:
    horizon = c.within(0.12, 0.28)
    p.box(0, 0, 1, horizon + 0.05, "winter", edge=False)
    p.box(0, horizon, 1, 1, "snow", edge=False)
    _dots(p, c, "drift", 6, horizon + 0.1, 0.12, flat=0.25)
    for _ in range(16):
        p.oval(c.random(), c.random() * horizon, 0.008, 0.008, "snow", edge=False)


@background("brick wall", "a brick wall", "in front of a brick wall", "against a brick wall", "by a brick wall")
def _brick_wall(p: Pen, c: Chance) -> None:
    p.box(0, 0, 1, 1, "mortar", edge=False)
    shift = c.random() * 0.2
    for row in range(9):
        for column in range(-1, 5):
            x, y = column * 0.24 + shift + (row % 2) * 0.12, row * 0.115
            p.box(x, y, x + 0.22, y + 0.095, "brick", edge=False)


@background("kitchen floor", "a tiled floor", "on the kitchen floor", "on a tiled floor", "on the tiles")
def _kitchen_floor(p: Pen, c: Chance) -> None:
    p.box(0, 0, 1, 1, "tile", edge=False)
    step = c.within(0.14, 0.2)
    for row in range(8):
        for column in range(4):
            x, y = (2 * column + row % 2) * step, row * step
            p.box(x, y, x + step, y + step, "tile2", edge=False)


@background("wooden table", "a wooden table", "on a wooden table", "on a wooden tabletop", "on wooden boards")
def _wooden_table(p: Pen, c: Chance) -> None:
    p.box(0, 0, 1, 1, "board", edge=False)
    shift = c.random() * 0.16
    for k in range(7):
        y = shift + 0.16 * k
        p.line([(0, y), (1, y)], 0.012, "seam")
        x = c.random()
        p.line([(x, y), (x, y + 0.16)], 0.01, "seam")
        p.arc(c.random(), y + 0.08, 0.05, 0.02, 0, 300, width=0.008, fill="seam")


@background("road", "a road", "on the road", "on the street", "in the street")
def _road(p: Pen, c: Chance) -> None:
    edge = c.within(0.14, 0.26)
    p.box(0, 0, 1, edge, "pavement", edge=False)
    p.box(0, edge, 1, 1, "asphalt", edge=False)
    shift = c.random() * 0.3
    for k in range(-1, 4):
        p.box(shift + 0.3 * k, 0.6, shift + 0.3 * k + 0.17, 0.64, "stripe", edge=False)


@background("sea", "the sea", "on the water", "at sea", "on the waves")
def _sea(p: Pen, c: Chance) -> None:
    horizon = c.within(0.12, 0.28)
    p.box(0, 0, 1, horizon, "day", edge=False)
    p.box(0, horizon, 1, 1, "sea", edge=False)
    for _ in range(12):
        p.arc(c.random(), c.within(horizon + 0.06, 1.0), 0.06, 0.02, 180, 360, width=0.012, fill="wave")


@background("cloudy sky", "a cloudy sky", "in the sky", "among the clouds", "against a cloudy sky")
def _cloudy_sky(p: Pen, c: Chance) -> None:
    p.box(0, 0, 1, 1, "day", edge=False)
    p.oval(c.within(0.1, 0.9), c.within(0.06, 0.2), 0.08, 0.08, "sun", edge=False)
    for _ in range(5):
        x, y = c.random(), c.random()
        for dx, r in ((-0.1, 0.06), (0.0, 0.09), (0.1, 0.06)):
            p.oval(x + dx, y, r, r * 0.7, "cloud", edge=False)


@background("rug", "a rug", "on a rug", "on the carpet", "on a soft rug")
def _rug(p: Pen, c: Chance) -> None:
    p.box(0, 0, 1, 1, "floor", edge=False)
    inset = c.within(0.02, 0.06)
    p.box(inset, inset, 1 - inset, 1 - inset, "fringe", edge=False)
    p.box(inset + 0.05, inset + 0.05, 0.95 - inset, 0.95 - inset, "rug", edge=False)
    for k in range(5):
        y = 0.1 + 0.2 * k
        p.poly([(0.5, y - 0.07), (0.6, y), (0.5, y + 0.07), (0.4, y)], "fringe", edge=False)


@background("forest", "a forest", "in the forest", "in the woods", "in a dark wood")
def _forest(p: Pen, c: Chance) -> None:
    floor = c.within(0.55, 0.7)
    p.box(0, 0, 1, floor, "wood", edge=False)
    for k in range(6):
        x = (k + c.random()) / 6
        p.box(x - 0.025, 0, x + 0.025, floor + 0.05, "trunk", edge=False)
    p.box(0, floor, 1, 1, "moss", edge=False)
    _dots(p, c, "wood", 8, floor + 0.03, 0.03, flat=0.4)
