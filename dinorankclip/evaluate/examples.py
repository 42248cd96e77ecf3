"""Embeddings in two dimensions, for pictures: PCA, the same every time, or UMAP if it is installed. Data only.

Both modalities, or several models' rows of one width, share one plane: it is fitted on all rows together.

Shapes: N rows of a group, D embedding width.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from dinorankclip.evaluate.retrieval import both_ways, right_items
from dinorankclip.evaluate.scores import SeenSet
from dinorankclip.evaluate.zero_shot import predictions, set_classes
from dinorankclip.types import UserError

Method = Literal["pca", "umap"]


@dataclass(frozen=True)
class Projection:
    """`points` [N, 2] float32 by group; `explained`: share of the variance each axis holds (PCA alone)."""

    points: dict[str, np.ndarray]
    method: str
    explained: tuple[float, float] | None = None


def demand(method: str) -> None:
    """`UserError` for a method that there is not, or not here. Imports nothing: UMAP takes long to import."""
    if method not in get_args(Method):
        raise UserError(f"there is no projection '{method}': pca or umap")
    if method == "umap" and importlib.util.find_spec("umap") is None:
        raise UserError(
            "UMAP is an extra: pip install -c constraints.txt -e '.[umap]' (or use the PCA, which needs nothing)"
        )


def project(groups: Mapping[str, Tensor], method: Method = "pca", seed: int = 0) -> Projection:
    """`groups` name rows [N, D], e.g. {"image": …, "text": …}. `seed` matters to UMAP alone."""
    demand(method)
    rows = torch.cat([rows.float().cpu() for rows in groups.values()])
    if len(rows) < 3:
        raise UserError(f"{len(rows)} rows span no plane; project at least 3")
    points, explained = _pca(rows) if method == "pca" else (_umap(rows.numpy(), seed), None)
    ends = np.cumsum([len(rows) for rows in groups.values()])[:-1]
    return Projection(dict(zip(groups, np.split(points, ends))), method, explained)


def _pca(rows: Tensor) -> tuple[np.ndarray, tuple[float, float]]:
    """Coordinates on the two axes of largest variance. An axis points to where its largest entry is positive."""
    centred = rows.double() - rows.double().mean(0)
    values, vectors = torch.linalg.eigh(centred.T @ centred)
    values, axes = values.flip(0).clamp_min(0), vectors.flip(1)[:, :2]
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
    axes = axes * torch.where(largest < 0, -1.0, 1.0)
    total = max(float(values.sum()), torch.finfo(torch.double).tiny)
    return (centred @ axes).float().numpy(), (float(values[0]) / total, float(values[1]) / total)


def _umap(rows: np.ndarray, seed: int) -> np.ndarray:
    """UMAP on cosines; a fixed seed makes it single-threaded and repeatable."""
    from umap import UMAP

    return UMAP(n_components=2, metric="cosine", random_state=seed, n_jobs=1).fit_transform(rows).astype(np.float32)


# -------- pictures
# What is worth looking at, as data: retrieval examples with hits and misses; the hardest classes and what they are
# taken for; images and captions in one plane. Drawn in writeup/.
#
# Shapes: N images, T captions, K classes.

FOUND = 5  # items shown for a query
QUERIES = 6  # of each outcome
HARDEST = 10  # classes in a picture of confusions
TAKEN_FOR = 4  # classes named beside each
IN_PLANE = 3000  # images, and captions, in a picture of the plane: more hide each other


@dataclass(frozen=True)
class TextQuery:
    """A caption and the images nearest to it."""

    caption: str
    images: list[bytes]
    right: list[bool]
    place: int  # of the best right image, from 0
    wanted: bytes  # a right image


@dataclass(frozen=True)
class ImageQuery:
    """An image and the captions nearest to it."""

    image: bytes
    captions: list[str]
    right: list[bool]
    place: int
    wanted: str


@dataclass(frozen=True)
class HardClass:
    """A class that is often missed: what its images are taken for, most often first, and one that was missed."""

    name: str
    images: int
    recall: float
    taken_for: list[tuple[str, float]]  # other classes with their share of the images
    example: bytes | None


def retrieval_examples(seen: SeenSet, seed: int = 0) -> tuple[list[TextQuery], list[ImageQuery]]:
    """Queries drawn by the seed, hits first: as many with a right item in front as without, if there are."""
    captions = seen.captions()
    texts, right = right_items(captions)
    images, rows = seen.images(), seen.texts(texts)
    places = both_ways(images, rows, right)
    image_of = np.repeat(np.arange(len(captions)), [len(group) for group in captions])

    by_text = []
    for query in _some(places.t2i.numpy(), seed):
        nearest = _nearest(rows[query] @ images.T)
        wanted = right.images.of(query)
        marks = [at in wanted for at in nearest]
        own = picture_at(seen, int(image_of[query]))
        shown = [picture_at(seen, at) for at in nearest]
        by_text.append(TextQuery(texts[query], shown, marks, int(places.t2i[query]), own))
    by_image = []
    for query in _some(places.i2t.numpy(), seed + 1):
        nearest = _nearest(images[query] @ rows.T)
        wanted = right.texts.of(query)
        marks = [at in wanted for at in nearest]
        read = [texts[at] for at in nearest]
        by_image.append(ImageQuery(picture_at(seen, query), read, marks, int(places.i2t[query]), captions[query][0]))
    return by_text, by_image


def hardest_classes(seen: SeenSet, most: int = HARDEST) -> list[HardClass]:
    """Classes with the lowest recall; of equal ones the one with more images, which says more."""
    labels, names = seen.labels(), seen.benchmark.class_names
    taken = predictions(seen.images(), set_classes(seen))
    counts = np.bincount(labels, minlength=len(names))
    right = np.bincount(labels, taken == labels, minlength=len(names))
    there = np.flatnonzero(counts)
    order = there[np.lexsort((-counts[there], right[there] / counts[there]))][:most]
    found = []
    for label in order.tolist():
        own = np.flatnonzero(labels == label)
        shares = np.bincount(taken[own], minlength=len(names)) / len(own)
        others = [int(other) for other in np.argsort(-shares, kind="stable") if other != label and shares[other] > 0]
        missed = own[taken[own] != label]
        example = picture_at(seen, int(missed[0])) if len(missed) else None
        taken_for = [(names[other], float(shares[other])) for other in others[:TAKEN_FOR]]
        found.append(HardClass(names[label], len(own), float(right[label] / counts[label]), taken_for, example))
    return found


def plane(seen: SeenSet, method: Method = "pca", seed: int = 0) -> Projection:
    """Images and captions of a retrieval set in two dimensions; of large sets some, drawn by the seed."""
    draw = np.random.default_rng(seed)
    groups = {}
    for name, rows in {"images": seen.images(), "captions": seen.caption_rows()[0]}.items():
        if len(rows) > IN_PLANE:
            name, rows = f"of {len(rows)} {name}", rows[torch.from_numpy(draw.permutation(len(rows))[:IN_PLANE])]
        groups[name] = rows
    return project(groups, method, seed)


def picture_at(seen: SeenSet, at: int) -> bytes:
    """The stored bytes of a usable image."""
    return seen.source().image(int(seen.indices()[at]))


def _some(places: np.ndarray, seed: int) -> list[int]:
    """Queries to show: hits, then misses, each drawn by the seed."""
    order = np.random.default_rng(seed).permutation(len(places))
    hits = [int(query) for query in order if places[query] == 0][:QUERIES]
    misses = [int(query) for query in order if places[query] > 0][:QUERIES]
    return hits + misses


def _nearest(similarity: torch.Tensor) -> list[int]:
    """The first items, nearest first; equal ones by index, as `retrieval.ranks` has it."""
    return similarity.sort(descending=True, stable=True).indices[:FOUND].tolist()
