"""Run a model over images and captions into an `EmbeddingFolder`, part by part.

A part is a fixed stretch of the source and its batches lie inside it, so every row is computed in the same company
whether or not the run was interrupted: the bytes come out the same.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from tqdm import tqdm

from dinorankclip.data.damage import Damage, DamageCount, refuse_passing
from dinorankclip.data.evaluation import iterate_pairs
from dinorankclip.data.images import MAX_PIXELS
from dinorankclip.data.images_only import WithoutCaptions
from dinorankclip.data.parts import Part
from dinorankclip.digests import digest
from dinorankclip.serving.embedding_files import EmbeddingFolder
from dinorankclip.types import CaptionSource, ImageSource

PART = 2048  # items of the source: what a kill costs at most
BATCH = 128
CAPTIONS_AT_ONCE = 1024
_MOST_THREADS = 8


def plan_of(
    model: Any,
    images: ImageSource | None,
    captions: CaptionSource | None,
    part: int = PART,
    max_pixels: int = MAX_PIXELS,
) -> dict[str, Any]:
    """What must be the same for a folder to be resumed, in words that a refusal can use."""
    spec = model.image_spec
    plan = {
        "the model": model.identity,
        "computed in": f"{model.placement.precision} on {model.device.type}",
        "preprocessing": {
            "size": spec.size,
            "resize": "short side, bicubic with antialiasing",
            "crop": "centre, after resizing",
            "mean": list(spec.mean),
            "std": list(spec.std),
        },
        "the images": _summary(images),
        "the captions": _summary(captions),
        "items of a part": part,
    }
    if images is not None and max_pixels != MAX_PIXELS:  # else left out: folders made without this entry stay valid
        plan["--reading.max-pixels"] = max_pixels
    return plan


def _summary(source: ImageSource | CaptionSource | None) -> str:
    if source is None:
        return "none"
    return f"{len(source)} items, fingerprint {digest(source.fingerprint, source.stamps().tobytes())}"


def embed_images(
    folder: EmbeddingFolder,
    model: Any,
    images: ImageSource,
    part: int = PART,
    max_pixels: int = MAX_PIXELS,
    show: bool = True,
) -> None:
    """Every image of a source (`data.images_only`, or pairs) that `folder` does not have yet."""
    source = WithoutCaptions(images)
    threads = max(2, min(_MOST_THREADS, os.cpu_count() or 1))
    with _bar("images", folder.items("images"), len(source), show) as bar:
        for start in range(folder.items("images"), len(source), part):
            stretch = Part(source, np.arange(start, min(start + part, len(source))))
            damage = DamageCount(max_damaged=1.0)
            rows, names = [np.empty((0, model.dim), np.float32)], []
            batches = iterate_pairs(
                stretch, model.image_spec, BATCH, threads=threads, max_pixels=max_pixels, damage=damage
            )
            for keys, pixels, _ in batches:
                rows.append(model.encode_image(pixels).cpu().numpy())
                names += keys
                bar.update(len(keys))
            refuse_passing(damage.keys.items())
            folder.append("images", len(stretch), np.concatenate(rows), {"key": names}, list(damage.keys.items()))
            bar.update(len(stretch) - len(names))


def embed_captions(
    folder: EmbeddingFolder, model: Any, captions: CaptionSource, part: int = PART, show: bool = True
) -> None:
    """Every caption of a source that `folder` does not have yet; all captions of an image carry its key."""
    with _bar("captions of", folder.items("texts"), len(captions), show) as bar:
        for start in range(folder.items("texts"), len(captions), part):
            stop = min(start + part, len(captions))
            keys: list[str] = []
            texts: list[str] = []
            damaged: list[tuple[str, str]] = []
            for index in range(start, stop):
                try:
                    found = captions.captions(index)
                except Damage as damage:
                    damaged.append((captions.key(index), damage.cause))
                    continue
                keys += [captions.key(index)] * len(found)
                texts += found
            refuse_passing(damaged)
            rows = [np.empty((0, model.dim), np.float32)]
            for at in range(0, len(texts), CAPTIONS_AT_ONCE):
                some = texts[at : at + CAPTIONS_AT_ONCE]
                rows.append(model.encode_text(some).cpu().numpy())
                bar.update((stop - start) * len(some) / len(texts))
            columns = {"key": keys, "caption": texts}
            folder.append("texts", stop - start, np.concatenate(rows), columns, damaged)
            bar.n = stop
            bar.refresh()


def _bar(what: str, done: int, total: int, show: bool) -> tqdm:
    """Rate and time left, on the error stream; nothing if all is done already."""
    return tqdm(
        desc=what, initial=done, total=total, unit="item", disable=not show or done == total, dynamic_ncols=True,
        bar_format="{l_bar}{bar}| {n:.0f}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]",
    )  # fmt: skip
