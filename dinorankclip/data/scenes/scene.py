"""Defines scenes and the content of captions as data: random choices, JSON form and stored form.

Raise VERSION with any change of a drawn or written byte. The numbers that decide how hard scenes are stand in
composition.py, wording.py and rendering.py.
Positions are shares of the picture: x to the right, y downwards, both from the top left corner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import numpy as np

from dinorankclip.checked_files import UnfitFile, parsed_json
from dinorankclip.data.damage import CAPTION_BYTES, Damage
from dinorankclip.data.remote import RemoteShard
from dinorankclip.data.tar_headers import members
from dinorankclip.data.tar_shards import ShardSource, open_shard

VERSION = 2

# --- random choices

T = TypeVar("T")


class Chance:
    """A stream of random choices for one (seed, split, index, purpose): no global state, the same in every process.

    Purposes (content, captions, drawing) have streams of their own: a change of drawing leaves captions as they were.
    Only `Generator.random` is used, the part of numpy's random streams that is least likely to change.
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
        """Return a key with probability proportional to its value."""
        left = self.random() * sum(odds.values())
        for option, weight in odds.items():  # noqa: B007 - the last option also catches rounding
            left -= weight
            if left < 0:
                break
        return option

    def shuffled(self, options: Sequence[T]) -> list[T]:
        rest = list(options)
        return [rest.pop(int(self.random() * len(rest))) for _ in range(len(rest))]


# --- scenes and captions

COLUMNS = ("left", "middle", "right")
ROWS = ("top", "middle", "bottom")
OUTER_BELOW, OUTER_ABOVE = 0.37, 0.63  # a centre beyond these is on the left / right (top / bottom)


@dataclass(frozen=True)
class Thing:
    """One object of a scene. (x, y) is the centre of its tight box and `side` the longer side of that box."""

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
    """Statements of a caption about one thing, None for no statement. Exactly one of the first three is given."""

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
    """All statements of a caption: things, the background or None, and relations (index, word, index) into `things`.

    "Two mugs" is two entries of `things`.
    """

    things: tuple[MentionedThing, ...]
    background: str | None = None
    relations: tuple[tuple[int, str, int], ...] = ()


@dataclass(frozen=True)
class CaptionedScene:
    """Joins a scene with its captions and the content of each caption."""

    scene: Scene
    captions: tuple[str, ...]
    contents: tuple[CaptionContent, ...]


def to_json(captioned: CaptionedScene) -> dict[str, Any]:
    """Return the content of a sample's key.json. Entries of None are left out; the captions are in key.txt."""
    scene = {"background": captioned.scene.background, "things": [vars(thing) for thing in captioned.scene.things]}
    mentions = [
        {
            "things": [{k: v for k, v in vars(thing).items() if v is not None} for thing in content.things],
            "background": content.background,
            "relations": [list(r) for r in content.relations],
        }
        for content in captioned.contents
    ]
    return {"scene": scene, "mentions": mentions}


def scene_from_json(data: dict[str, Any]) -> Scene:
    """Read the scene of a sample's key.json."""
    scene = data["scene"]
    return Scene(scene["background"], tuple(Thing(**thing) for thing in scene["things"]))


def contents_from_json(data: dict[str, Any]) -> tuple[CaptionContent, ...]:
    """Read the content of a sample's captions, in the order of the lines of its key.txt."""
    return tuple(
        CaptionContent(
            tuple(MentionedThing(**thing) for thing in mention["things"]),
            mention["background"],
            tuple((i, word, j) for i, word, j in mention["relations"]),
        )
        for mention in data["mentions"]
    )


def _third(position: float) -> int:
    return 0 if position < OUTER_BELOW else 2 if position > OUTER_ABOVE else 1


# --- scenes in shards

FILES_OF_A_SAMPLE = 3  # picture, captions, scene


class SceneSource(ShardSource):
    """Reads the key.json beside each image of shards."""

    beside = frozenset(("json",))

    def _check_texts(self) -> None:
        """Accept sets without a single key.json: they hold no scenes."""


def holds_scenes(shards: Sequence[Path | RemoteShard]) -> bool:
    """Return whether the first sample comes with a scene, without making an index."""
    try:
        with open_shard(shards[0]) as file:
            for member in islice(members(file), FILES_OF_A_SAMPLE):
                if (
                    member.name.endswith(".json")
                    and member.is_file
                    and not member.cause
                    and member.size <= CAPTION_BYTES
                ):
                    file.seek(member.data_at)
                    return _is_scene(parsed_json(file.read(member.size)))
    except (OSError, ValueError, UnfitFile):
        pass  # other code reports damaged shards
    return False


def stored_scenes(shards: Sequence[Path | RemoteShard]) -> dict[str, tuple[Scene, tuple[CaptionContent, ...]]]:
    """Return scene and caption contents by key, without samples that are damaged or hold no scene."""
    source = SceneSource(shards)
    scenes = {}
    for index in range(len(source)):
        try:
            data = parsed_json(source.text(index))
            if _is_scene(data):
                scenes[source.key(index)] = (scene_from_json(data), contents_from_json(data))
        except (Damage, ValueError, KeyError, TypeError, AttributeError, IndexError):
            continue
    return scenes


def _is_scene(data: Any) -> bool:
    return isinstance(data, dict) and {"scene", "mentions"} <= data.keys()
