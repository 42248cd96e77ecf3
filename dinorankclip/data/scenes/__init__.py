"""Small pictures with captions, drawn by chance: training data for which nothing has to be downloaded.

The generator knows every scene, so it also yields graded relevance between scenes. One file a step:

    scene        what a scene and a caption's content are, as data; named random numbers; all numbers of the difficulty
    kinds/       what can be drawn, with fine-grained families     kind         what a kind is
    drawing      colours and the pen                               backgrounds  places
    composition  random numbers → scene, and how things stand to each other
    rendering    scene → picture: plain, sketch, night, mosaic, watercolour
    wording      scene → captions
    relevance    scene or caption, scene → [0, 1]
    make         (set, split, index) → files of a sample; all sets → folder

Names below are loaded when first used: importing this package alone imports neither numpy nor Pillow.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "make_scenes": "make",
    "captioned_scene": "make",
    "scene_from_json": "scene",
    "mentions_from_json": "scene",
    "relevance_matrix": "relevance",
    "caption_relevance": "relevance",
    "caption_relevance_matrix": "relevance",
    "stored_scenes": "scene",
    "holds_scenes": "scene",
    "RENDITIONS": "rendering",
    "VERSION": "scene",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
