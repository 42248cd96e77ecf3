"""What a scene is and what a caption says of it, as plain data that goes to JSON and back.

Positions are shares of the picture: x to the right, y downwards, both from the top left corner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

COLUMNS = ("left", "middle", "right")
ROWS = ("top", "middle", "bottom")
OUTER_BELOW, OUTER_ABOVE = 0.37, 0.63  # a centre beyond these is on the left / right (top / bottom)


@dataclass(frozen=True)
class Thing:
    """One object of a scene. (x, y) is the centre of its tight box and `side` that box's longer side."""

    kind: str
    colour: str
    pattern: str
    size: str
    x: float
    y: float
    side: float

    @property
    def column(self) -> str:
        return COLUMNS[_third(self.x)]

    @property
    def row(self) -> str:
        return ROWS[_third(self.y)]


@dataclass(frozen=True)
class Scene:
    background: str
    things: tuple[Thing, ...]


@dataclass(frozen=True)
class Said:
    """What a caption says of one thing; None where it is silent. Exactly one of the first three is given."""

    kind: str | None = None
    family: str | None = None
    group: str | None = None
    colour: str | None = None
    pattern: str | None = None
    size: str | None = None
    column: str | None = None
    row: str | None = None


@dataclass(frozen=True)
class Mention:
    """What a caption says: things, the background or None, and relations as (index, word, index) into `things`.

    The things are different ones: "two mugs" is two entries.
    """

    things: tuple[Said, ...]
    background: str | None = None
    relations: tuple[tuple[int, str, int], ...] = ()


@dataclass(frozen=True)
class Captioned:
    """A scene with its captions and, one for each of them, what it says."""

    scene: Scene
    captions: tuple[str, ...]
    mentions: tuple[Mention, ...]


def to_json(captioned: Captioned) -> dict[str, Any]:
    """For a sample's key.json. Unsaid entries are left out; captions themselves are in key.txt."""
    return {
        "scene": {
            "background": captioned.scene.background,
            "things": [vars(thing) for thing in captioned.scene.things],
        },
        "mentions": [
            {
                "things": [{k: v for k, v in vars(said).items() if v is not None} for said in mention.things],
                "background": mention.background,
                "relations": [list(r) for r in mention.relations],
            }
            for mention in captioned.mentions
        ],
    }


def scene_from_json(data: dict[str, Any]) -> Scene:
    """The scene of a sample's key.json."""
    scene = data["scene"]
    return Scene(scene["background"], tuple(Thing(**thing) for thing in scene["things"]))


def mentions_from_json(data: dict[str, Any]) -> tuple[Mention, ...]:
    """What the captions of a sample say, in the order of the lines of its key.txt."""
    return tuple(
        Mention(
            tuple(Said(**said) for said in mention["things"]),
            mention["background"],
            tuple((i, word, j) for i, word, j in mention["relations"]),
        )
        for mention in data["mentions"]
    )


def _third(position: float) -> int:
    return 0 if position < OUTER_BELOW else 2 if position > OUTER_ABOVE else 1
