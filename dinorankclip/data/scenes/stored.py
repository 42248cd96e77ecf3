"""Scenes and what their captions say, read back from the shards of a set of pairs."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from dinorankclip.data.damage import Damage
from dinorankclip.data.shards import ShardSource

from .scene import Mention, Scene, mentions_from_json, scene_from_json

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


def stored_scenes(shards: Sequence[Path]) -> dict[str, tuple[Scene, tuple[Mention, ...]]]:
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
