"""Backgrounds of scenes: their drawings and the words for them in captions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dinorankclip.data.scenes.drawing import Pen, Rgb
from dinorankclip.data.scenes.scene import Chance

# Muted next to the colours of things, so that a white mug still shows in the snow.
GROUND: dict[str, Rgb] = {
    "day": (188, 220, 240),
    "cloud": (236, 242, 246),
    "sun": (252, 232, 150),
    "sea": (98, 160, 190),
    "wave": (146, 196, 214),
    "sand": (232, 212, 166),
    "pebble": (208, 184, 138),
    "dark": (34, 40, 74),
    "star": (236, 234, 200),
    "moon": (240, 236, 210),
    "grass": (160, 198, 120),
    "blade": (128, 172, 94),
    "snow": (228, 234, 240),
    "drift": (208, 218, 230),
    "winter": (190, 202, 216),
    "brick": (188, 116, 96),
    "mortar": (214, 200, 188),
    "tile": (226, 224, 212),
    "tile2": (196, 204, 200),
    "board": (204, 164, 116),
    "seam": (170, 128, 84),
    "asphalt": (128, 130, 134),
    "stripe": (230, 226, 206),
    "pavement": (188, 186, 180),
    "rug": (172, 140, 160),
    "fringe": (214, 192, 188),
    "floor": (196, 172, 142),
    "wood": (112, 140, 104),
    "trunk": (94, 84, 70),
    "moss": (138, 152, 104),
}


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
        p.arc(c.random(), y + 0.08, 0.05, 0.02, 0, 300, 0.008, "seam")


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
        p.arc(c.random(), c.within(horizon + 0.06, 1.0), 0.06, 0.02, 180, 360, 0.012, "wave")


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
