"""How things stand to each other, read off their positions. All words are from the viewer's side."""

from __future__ import annotations

from .kinds import KINDS
from .scene import Scene, Thing

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
