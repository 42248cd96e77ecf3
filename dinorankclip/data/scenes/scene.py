"""Every number that decides how hard the built-in scenes are, in one place.

Whoever changes a number here, or anything that changes a byte of what is drawn or written, raises VERSION.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import numpy as np

from dinorankclip.data.damage import Damage
from dinorankclip.data.tar_shards import ShardSource

VERSION = 2

# --- what is in a scene -------------------------------------------------------------------------------
THING_COUNTS = {1: 0.15, 2: 0.40, 3: 0.30, 4: 0.15}  # how many things, with probability
SIZES = {"small": 0.26, "medium": 0.36, "large": 0.50}  # longest side of a thing, as a share of the picture
SIZE_SPREAD = 0.02  # a thing's side is its size ± this share of the picture
SIZE_ODDS = {"small": 0.3, "medium": 0.4, "large": 0.3}
MOST_AREA = 0.50  # sum of the squared sides; a scene that exceeds it gets smaller things
P_TWIN = 0.15  # a further thing is another one of the same kind, colour and pattern
P_SIBLING = 0.15  # a further thing is another kind of the same fine-grained family
P_STACKED = 0.60  # a further thing rests on an earlier one, where one can carry it
P_PATTERNED = 0.35  # a thing that can have a pattern has one
COLOUR_JITTER = 14  # a named colour is drawn up to this far (of 255) from its standard value
TILT = 6.0  # degrees a thing may lean to either side

# --- what a caption says ------------------------------------------------------------------------------
CAPTIONS = 5  # captions of a scene
MANNERS = {"terse": 0.10, "usual": 0.45, "full": 0.45}  # how talkative a caption is
P_COLOUR = {"terse": 0.40, "usual": 0.85, "full": 1.00}
P_PATTERN = {"terse": 0.30, "usual": 0.75, "full": 1.00}  # given that there is one
P_SIZE = {"terse": 0.05, "usual": 0.25, "full": 0.50}
P_BACKGROUND = {"terse": 0.20, "usual": 0.55, "full": 0.85}
P_LEAVE_OUT = {"terse": 0.60, "usual": 0.25, "full": 0.05}  # each thing but the first chosen stays unmentioned
P_RELATION = {"terse": 0.25, "usual": 0.45, "full": 0.55}  # where two mentioned things stand in one
P_PLACE = {"terse": 0.05, "usual": 0.15, "full": 0.25}  # say where in the picture, where no relation is said
P_TOGETHER = 0.75  # things of one kind are counted ("two red mugs") instead of named one by one
P_GENERAL = 0.06  # say "a bird" for a sparrow
P_SYNONYM = 0.30  # say "a couch" for a sofa

# --- single things, for the classification sets -------------------------------------------------------
SINGLE_SIDE = (0.50, 0.80)  # longest side, as a share of the picture


# -------- chance
# Random numbers that depend on names alone: no global state, the same in every process.
#
# Only `Generator.random` is used downstream. It is the part of numpy's random streams least likely ever to change.

T = TypeVar("T")


class Chance:
    """A stream of choices for one (seed, split, index, purpose).

    Purposes (content, captions, drawing) have streams of their own: a change in how scenes are drawn leaves
    their captions as they were.
    """

    def __init__(self, seed: int, split: str, index: int, purpose: str) -> None:
        key = np.random.SeedSequence([seed, crc32(split.encode()), index, crc32(purpose.encode())])
        self.random = np.random.Generator(np.random.Philox(key)).random

    def within(self, low: float, high: float) -> float:
        return low + (high - low) * self.random()

    def happens(self, probability: float) -> bool:
        return self.random() < probability

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    def weighted(self, odds: Mapping[T, float]) -> T:
        """A key, with probability proportional to its value."""
        left = self.random() * sum(odds.values())
        for option, weight in odds.items():  # noqa: B007 - the last one also catches rounding
            left -= weight
            if left < 0:
                break
        return option

    def shuffled(self, options: Sequence[T]) -> list[T]:
        rest = list(options)
        return [rest.pop(int(self.random() * len(rest))) for _ in range(len(rest))]


# -------- scene
# What a scene is and what a caption says of it, as plain data that goes to JSON and back.
#
# Positions are shares of the picture: x to the right, y downwards, both from the top left corner.

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
class MentionedThing:
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
class CaptionContent:
    """What a caption says: things, the background or None, and relations as (index, word, index) into `things`.

    The things are different ones: "two mugs" is two entries.
    """

    things: tuple[MentionedThing, ...]
    background: str | None = None
    relations: tuple[tuple[int, str, int], ...] = ()


@dataclass(frozen=True)
class CaptionedScene:
    """A scene with its captions and, one for each of them, what it says."""

    scene: Scene
    captions: tuple[str, ...]
    mentions: tuple[CaptionContent, ...]


def to_json(captioned: CaptionedScene) -> dict[str, Any]:
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


def mentions_from_json(data: dict[str, Any]) -> tuple[CaptionContent, ...]:
    """What the captions of a sample say, in the order of the lines of its key.txt."""
    return tuple(
        CaptionContent(
            tuple(MentionedThing(**said) for said in mention["things"]),
            mention["background"],
            tuple((i, word, j) for i, word, j in mention["relations"]),
        )
        for mention in data["mentions"]
    )


def _third(position: float) -> int:
    return 0 if position < OUTER_BELOW else 2 if position > OUTER_ABOVE else 1


# -------- stored
# Scenes and what their captions say, read back from the shards of a set of pairs.

FILES_OF_A_SAMPLE = 3  # picture, captions, scene


class SceneSource(ShardSource):
    """Shards read for the key.json beside each image."""

    beside = frozenset(("json",))

    def _check_texts(self) -> None:
        """Sets without a single key.json are no mistake; they are no scenes."""


def holds_scenes(shards: Sequence[Path]) -> bool:
    """Whether the first sample comes with a scene; no index is made to find out."""
    try:
        with tarfile.open(shards[0], "r:") as tar:
            for member in islice(tar, FILES_OF_A_SAMPLE):
                file = tar.extractfile(member) if member.name.endswith(".json") else None
                if file is not None:
                    return _is_scene(json.load(file))
    except (tarfile.TarError, OSError, ValueError):
        pass  # a damaged shard is somebody else's news
    return False


def stored_scenes(shards: Sequence[Path]) -> dict[str, tuple[Scene, tuple[CaptionContent, ...]]]:
    """Scene and mentions by key. Samples that are damaged or hold no scene are left out."""
    source = SceneSource(shards)
    found = {}
    for index in range(len(source)):
        try:
            data = json.loads(source.text(index))
        except (Damage, ValueError):
            continue
        if _is_scene(data):
            found[source.key(index)] = (scene_from_json(data), mentions_from_json(data))
    return found


def _is_scene(data: Any) -> bool:
    return isinstance(data, dict) and {"scene", "mentions"} <= data.keys()
