"""Composes scenes at random, and derives the relations between things from their positions.

All relations are from the viewer's side. Things never hide each other.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

from dinorankclip.data.scenes.kinds import KINDS, Kind, members
from dinorankclip.data.scenes.scene import Chance, Scene, Thing
from dinorankclip.data.scenes.subjects import BACKGROUNDS

# --- relations

RELATIONS = ("left", "right", "above", "below", "beside", "on")

LEAST_APART = 0.14  # between centres, as a share of the picture, before a thing is left of (above) another
MOSTLY = 1.3  # the distance along a stated direction is at least this many times the distance across it
NEXT_TO = 0.09  # widest gap between things that are beside each other
RESTING = 0.015  # largest distance between a foot and the seat under it


def box(thing: Thing) -> tuple[float, float, float, float]:
    """Return the tight box of a thing: left, top, right, bottom."""
    wide, high = KINDS[thing.kind].proportions
    half_wide, half_high = thing.side * wide / 2, thing.side * high / 2
    return thing.x - half_wide, thing.y - half_high, thing.x + half_wide, thing.y + half_high


def seat_height(thing: Thing) -> float | None:
    """Return the y of the surface on which others can rest, None if nothing rests on this kind."""
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
    """Return the words w for which "a is w b" is true."""
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
    """Return the indices of things that rest on another thing or carry one."""
    pairs = permutations(range(len(scene.things)), 2)
    return {k for i, j in pairs if rests_on(scene.things[i], scene.things[j]) for k in (i, j)}


def _beside(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    gap = max(a[0] - b[2], b[0] - a[2])
    overlap = min(a[3], b[3]) - max(a[1], b[1])
    return 0 <= gap <= NEXT_TO and overlap >= 0.5 * min(a[3] - a[1], b[3] - b[1])


# --- composing

THING_COUNTS = {1: 0.15, 2: 0.40, 3: 0.30, 4: 0.15}  # number of things → probability
SIZES = {"small": 0.26, "medium": 0.36, "large": 0.50}  # longest side of a thing, as a share of the picture
SIZE_SPREAD = 0.02  # the side of a thing is its size ± this share of the picture
SIZE_ODDS = {"small": 0.3, "medium": 0.4, "large": 0.3}
SINGLE_SIDE = (0.50, 0.80)  # longest side of the single thing of a classification set
MOST_AREA = 0.50  # sum of the squared sides; a scene that exceeds it gets smaller things
P_TWIN = 0.15  # a further thing has the kind, colour and pattern of an earlier thing
P_SIBLING = 0.15  # a further thing is another kind of the same fine-grained family
P_STACKED = 0.60  # a further thing rests on an earlier thing that can carry it
P_PATTERNED = 0.35  # a thing that can have a pattern has it
PATTERNS = ("striped", "spotted", "checkered")  # besides "plain"
TRIES = 40  # positions tried for a thing before it is left out
CLEAR = 0.02  # least gap between the boxes of two things
MARGIN = 0.01  # least gap to the rim of the picture
LEAST_SEAT = 0.7  # least width of a carrier, as a share of the width of its load

_KINDS = tuple(KINDS)
_BACKGROUNDS = tuple(BACKGROUNDS)
_SIZES = tuple(SIZES)


def compose(chance: Chance) -> Scene:
    """Compose a scene of one to four things."""
    unplaced: list[Thing] = []
    for _ in range(chance.weighted(THING_COUNTS)):
        unplaced.append(_next_thing(unplaced, chance))
    placed: list[Thing] = []
    for candidate in _shrunk_to_fit(unplaced):
        thing = _place(candidate, placed, chance)
        if thing is not None:
            placed.append(thing)
    return Scene(chance.pick(_BACKGROUNDS), tuple(placed))


def compose_single(kind: str, chance: Chance) -> Scene:
    """Compose a scene of one large thing, for a classification set."""
    side = chance.within(*SINGLE_SIDE)
    thing = replace(_new_thing(KINDS[kind], chance), size="large", side=side)
    return Scene(chance.pick(_BACKGROUNDS), (_drop_anywhere(thing, chance),))


def _new_thing(kind: Kind, chance: Chance) -> Thing:
    pattern = chance.pick(PATTERNS) if kind.patterned and chance.happens(P_PATTERNED) else "plain"
    size = chance.weighted(SIZE_ODDS)
    side = round(SIZES[size] + chance.within(-SIZE_SPREAD, SIZE_SPREAD), 4)
    return Thing(kind.name, chance.pick(kind.colours), pattern, size, 0.5, 0.5, side)


def _next_thing(earlier: list[Thing], chance: Chance) -> Thing:
    """Return a new thing, a twin of an earlier thing, or a thing of the same fine-grained family."""
    lot = chance.random()
    if earlier and lot < P_TWIN + P_SIBLING:
        model = chance.pick(earlier)
        if lot < P_TWIN:
            return replace(_new_thing(KINDS[model.kind], chance), colour=model.colour, pattern=model.pattern)
        family = KINDS[model.kind].family
        if family is not None:
            return _new_thing(KINDS[chance.pick([k for k in members(family) if k != model.kind])], chance)
    return _new_thing(KINDS[chance.pick(_KINDS)], chance)


def _shrunk_to_fit(things: list[Thing]) -> list[Thing]:
    """Shrink the largest things until all fit. Return the largest first: they are the hardest to place."""
    things = list(things)
    while sum(thing.side**2 for thing in things) > MOST_AREA:
        at = max(range(len(things)), key=lambda i: things[i].side)
        smaller = _SIZES[max(0, _SIZES.index(things[at].size) - 1)]
        things[at] = replace(things[at], size=smaller, side=SIZES[smaller])
    return sorted(things, key=lambda thing: -thing.side)


def _place(candidate: Thing, placed: list[Thing], chance: Chance) -> Thing | None:
    seats = [(other, seat) for other in placed if (seat := seat_height(other)) is not None]
    if seats and chance.happens(P_STACKED):
        carrier, seat = chance.pick(seats)
        _, top, _, bottom = box(candidate)
        thing = replace(candidate, x=carrier.x, y=round(seat - (bottom - top) / 2, 4))
        if _carries(carrier, thing) and _clear(thing, [other for other in placed if other is not carrier]):
            return thing
    for _ in range(TRIES):
        thing = _drop_anywhere(candidate, chance)
        if _clear(thing, placed):
            return thing
    return None


def _drop_anywhere(thing: Thing, chance: Chance) -> Thing:
    left, top, right, bottom = box(thing)
    half_wide, half_high = (right - left) / 2 + MARGIN, (bottom - top) / 2 + MARGIN
    x = chance.within(half_wide, 1 - half_wide)
    y = chance.within(half_high, 1 - half_high)
    return replace(thing, x=round(x, 4), y=round(y, 4))


def _carries(carrier: Thing, thing: Thing) -> bool:
    """Return whether the carrier is wide enough for the thing, and the picture large enough."""
    left, top, right, _ = box(thing)
    wide_enough = box(carrier)[2] - box(carrier)[0] >= LEAST_SEAT * (right - left)
    return wide_enough and min(left, top) >= MARGIN and right <= 1 - MARGIN


def _clear(thing: Thing, others: list[Thing]) -> bool:
    a = box(thing)
    return not any(
        a[0] < b[2] + CLEAR and b[0] < a[2] + CLEAR and a[1] < b[3] + CLEAR and b[1] < a[3] + CLEAR
        for b in map(box, others)
    )
