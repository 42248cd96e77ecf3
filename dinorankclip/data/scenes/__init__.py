"""Small pictures with captions, drawn by chance: training data for which nothing has to be downloaded.

The generator knows every scene, so it also yields graded relevance between scenes. One file a step:

    chance       random numbers named by (seed, split, index, purpose)
    knobs        all numbers that decide the difficulty, and VERSION
    scene        what a scene and a caption's content are, as data
    kinds/       what can be drawn, a file a group, with fine-grained families
    compose      chance → scene             relations    positions → left of, on, …
    render       scene → picture            renditions   sketch, night, mosaic, watercolour
    captions     scene → captions           phrases, grammar
    relevance    scene, scene → [0, 1]      caption_matrix   the same for many captions at once
    samples      (set, split, index) → files of a sample
    make         all sets → folder          stored       shards of a set → scenes

Names below are loaded when first used: importing this package alone imports neither numpy nor Pillow.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "make_scenes": "make",
    "captioned_scene": "samples",
    "scene_from_json": "scene",
    "mentions_from_json": "scene",
    "relevance_matrix": "relevance",
    "caption_relevance": "relevance",
    "caption_relevance_matrix": "caption_matrix",
    "stored_scenes": "stored",
    "holds_scenes": "stored",
    "RENDITIONS": "renditions",
    "VERSION": "knobs",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
