"""Chance composes a scene: which things, what they look like, and where they stand without hiding each other."""

from __future__ import annotations

from dataclasses import replace

from .backgrounds import BACKGROUNDS
from .chance import Chance
from .kinds import KINDS, Kind, members
from .knobs import (
    MOST_AREA,
    P_PATTERNED,
    P_SIBLING,
    P_STACKED,
    P_TWIN,
    SINGLE_SIDE,
    SIZE_ODDS,
    SIZE_SPREAD,
    SIZES,
    THING_COUNTS,
)
from .relations import box, seat_height
from .scene import Scene, Thing

PATTERNS = ("striped", "spotted", "checkered")  # besides "plain"
TRIES = 40  # positions tried for a thing before it is left out
CLEAR = 0.02  # least gap between the boxes of two things
MARGIN = 0.01  # least gap to the rim of the picture
LEAST_SEAT = 0.7  # width of a carrier as a share of the width of what it carries

_KINDS = tuple(KINDS)
_BACKGROUNDS = tuple(BACKGROUNDS)
_SIZES = tuple(SIZES)


def compose(chance: Chance) -> Scene:
    """A scene of one to four things."""
    looks: list[Thing] = []
    for _ in range(chance.weighted(THING_COUNTS)):
        looks.append(_next_look(looks, chance))
    placed: list[Thing] = []
    for look in _fitting(looks):
        thing = _place(look, placed, chance)
        if thing is not None:
            placed.append(thing)
    return Scene(chance.pick(_BACKGROUNDS), tuple(placed))


def compose_single(kind: str, chance: Chance) -> Scene:
    """One large thing, for a classification set."""
    side = chance.within(*SINGLE_SIDE)
    look = replace(_look(KINDS[kind], chance), size="large", side=side)
    return Scene(chance.pick(_BACKGROUNDS), (_drop_anywhere(look, chance),))


def _look(kind: Kind, chance: Chance) -> Thing:
    pattern = chance.pick(PATTERNS) if kind.patterned and chance.happens(P_PATTERNED) else "plain"
    size = chance.weighted(SIZE_ODDS)
    side = round(SIZES[size] + chance.within(-SIZE_SPREAD, SIZE_SPREAD), 4)
    return Thing(kind.name, chance.pick(kind.colours), pattern, size, 0.5, 0.5, side)


def _next_look(earlier: list[Thing], chance: Chance) -> Thing:
    """A thing that is new, a twin of an earlier one, or of the same fine-grained family."""
    lot = chance.random()
    if earlier and lot < P_TWIN + P_SIBLING:
        model = chance.pick(earlier)
        if lot < P_TWIN:
            return replace(_look(KINDS[model.kind], chance), colour=model.colour, pattern=model.pattern)
        family = KINDS[model.kind].family
        if family is not None:
            return _look(KINDS[chance.pick([k for k in members(family) if k != model.kind])], chance)
    return _look(KINDS[chance.pick(_KINDS)], chance)


def _fitting(looks: list[Thing]) -> list[Thing]:
    """The same things, the largest made smaller until they fit, largest first (they are the hardest to place)."""
    looks = list(looks)
    while sum(look.side**2 for look in looks) > MOST_AREA:
        at = max(range(len(looks)), key=lambda i: looks[i].side)
        smaller = _SIZES[max(0, _SIZES.index(looks[at].size) - 1)]
        looks[at] = replace(looks[at], size=smaller, side=SIZES[smaller])
    return sorted(looks, key=lambda look: -look.side)


def _place(look: Thing, placed: list[Thing], chance: Chance) -> Thing | None:
    seats = [(other, seat) for other in placed if (seat := seat_height(other)) is not None]
    if seats and chance.happens(P_STACKED):
        carrier, seat = chance.pick(seats)
        thing = _set_on(look, carrier, seat)
        if _carries(carrier, thing) and _clear(thing, [other for other in placed if other is not carrier]):
            return thing
    for _ in range(TRIES):
        thing = _drop_anywhere(look, chance)
        if _clear(thing, placed):
            return thing
    return None


def _drop_anywhere(look: Thing, chance: Chance) -> Thing:
    left, top, right, bottom = box(look)
    half_wide, half_high = (right - left) / 2 + MARGIN, (bottom - top) / 2 + MARGIN
    x = chance.within(half_wide, 1 - half_wide)
    y = chance.within(half_high, 1 - half_high)
    return replace(look, x=round(x, 4), y=round(y, 4))


def _set_on(look: Thing, carrier: Thing, seat: float) -> Thing:
    _, top, _, bottom = box(look)
    return replace(look, x=carrier.x, y=round(seat - (bottom - top) / 2, 4))


def _carries(carrier: Thing, thing: Thing) -> bool:
    """Whether the carrier is wide enough for a thing set on it, and the picture large enough."""
    left, top, right, _ = box(thing)
    wide_enough = box(carrier)[2] - box(carrier)[0] >= LEAST_SEAT * (right - left)
    return wide_enough and min(left, top) >= MARGIN and right <= 1 - MARGIN


def _clear(thing: Thing, others: list[Thing]) -> bool:
    a = box(thing)
    for other in others:
        b = box(other)
        if a[0] < b[2] + CLEAR and b[0] < a[2] + CLEAR and a[1] < b[3] + CLEAR and b[1] < a[3] + CLEAR:
            return False
    return True
