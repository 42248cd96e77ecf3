"""How things stand to each other, read off their positions. All words are from the viewer's side."""

from __future__ import annotations

from dataclasses import replace

from dinorankclip.data.scenes.backgrounds import BACKGROUNDS
from dinorankclip.data.scenes.kinds import KINDS, Kind, members
from dinorankclip.data.scenes.scene import (
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
    Chance,
    Scene,
    Thing,
)

RELATIONS = ("left", "right", "above", "below", "beside", "on")

LEAST_APART = 0.14  # between centres, as a share of the picture, before one is left of (above) the other
MOSTLY = 1.3  # the distance along the said direction is at least this many times the distance across it
NEXT_TO = 0.09  # widest gap between things that are beside each other
RESTING = 0.015  # farthest a foot is from the seat it rests on


def box(thing: Thing) -> tuple[float, float, float, float]:
    """The tight box of a thing: left, top, right, bottom."""
    wide, high = KINDS[thing.kind].proportions
    half_wide, half_high = thing.side * wide / 2, thing.side * high / 2
    return thing.x - half_wide, thing.y - half_high, thing.x + half_wide, thing.y + half_high


def seat_height(thing: Thing) -> float | None:
    """How far down the picture the surface is on which others can rest; None if nothing rests on this kind."""
    share = KINDS[thing.kind].seat_share
    _, top, _, bottom = box(thing)
    return None if share is None else top + share * (bottom - top)


def rests_on(a: Thing, b: Thing) -> bool:
    seat = seat_height(b)
    if seat is None:
        return False
    left, _, right, _ = box(b)
    return abs(box(a)[3] - seat) <= RESTING and left <= a.x <= right


def holding(a: Thing, b: Thing) -> frozenset[str]:
    """The words w for which "a is w b" is true."""
    words = set()
    dx, dy = b.x - a.x, b.y - a.y
    if abs(dx) >= LEAST_APART and abs(dx) >= MOSTLY * abs(dy):
        words.add("left" if dx > 0 else "right")
    if abs(dy) >= LEAST_APART and abs(dy) >= MOSTLY * abs(dx):
        words.add("above" if dy > 0 else "below")
    if _beside(box(a), box(b)):
        words.add("beside")
    if rests_on(a, b):
        words.add("on")
    return frozenset(words)


def carried(scene: Scene) -> set[int]:
    """Indices of things that rest on another or carry one."""
    indices = set()
    for i, a in enumerate(scene.things):
        for j, b in enumerate(scene.things):
            if i != j and rests_on(a, b):
                indices |= {i, j}
    return indices


def _beside(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    gap = max(a[0] - b[2], b[0] - a[2])
    overlap = min(a[3], b[3]) - max(a[1], b[1])
    return 0 <= gap <= NEXT_TO and overlap >= 0.5 * min(a[3] - a[1], b[3] - b[1])


# -------- compose
# Chance composes a scene: which things, what they look like, and where they stand without hiding each other.

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
