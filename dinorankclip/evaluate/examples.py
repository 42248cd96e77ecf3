"""Collects the data that report/ draws as pictures of scores.

`retrieval_examples` returns hits and misses, `hardest_classes` the classes with the lowest recall and their
confusions, and `project` puts embeddings into two dimensions: by PCA, the same every time, or by UMAP if it is
installed. Both modalities, or several models' rows of one width, share one plane, fitted on all rows together.

Shapes: N rows of a group, D embedding width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from dinorankclip.evaluate.retrieval import both_ways, right_items
from dinorankclip.evaluate.scores import EmbeddedSet
from dinorankclip.evaluate.zero_shot import predictions, set_classes
from dinorankclip.extras import demand_extra
from dinorankclip.types import UserError

ProjectionMethod = Literal["pca", "umap"]
SHOWN_ITEMS = 5  # items shown for each query
QUERIES = 6  # queries shown for each outcome
HARDEST = 10  # number of classes in a picture of confusions
TAKEN_FOR = 4  # number of confused classes named beside each class
IN_PLANE = 3000  # images, and captions, in a picture of the plane: more hide each other


@dataclass(frozen=True)
class Projection:
    """Holds `points` [N, 2] float32 by group; `explained` is the share of the variance on each axis (PCA alone)."""

    points: dict[str, np.ndarray]
    method: str
    explained: tuple[float, float] | None = None


def demand(method: str) -> None:
    """Raise `UserError` for a method that is unknown or not installed, without importing UMAP, which takes long."""
    if method not in get_args(ProjectionMethod):
        raise UserError(f"there is no projection '{method}': pca or umap")
    if method == "umap":
        demand_extra("umap", "UMAP (unlike the PCA)")


def project(groups: Mapping[str, Tensor], method: ProjectionMethod = "pca", seed: int = 0) -> Projection:
    """Project groups of rows [N, D], e.g. {"image": …, "text": …}. `seed` matters to UMAP alone."""
    demand(method)
    rows = torch.cat([rows.float().cpu() for rows in groups.values()])
    if len(rows) < 3:
        raise UserError(f"{len(rows)} rows span no plane; project at least 3")
    points, explained = _pca(rows) if method == "pca" else (_umap(rows.numpy(), seed), None)
    ends = np.cumsum([len(rows) for rows in groups.values()])[:-1]
    return Projection(dict(zip(groups, np.split(points, ends))), method, explained)


def _pca(rows: Tensor) -> tuple[np.ndarray, tuple[float, float]]:
    """Return coordinates on the two axes of largest variance. The largest entry of an axis is positive."""
    centred = rows.double() - rows.double().mean(0)
    values, vectors = torch.linalg.eigh(centred.T @ centred)
    values, axes = values.flip(0).clamp_min(0), vectors.flip(1)[:, :2]
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
    axes = axes * torch.where(largest < 0, -1.0, 1.0)
    total = max(float(values.sum()), torch.finfo(torch.double).tiny)
    return (centred @ axes).float().numpy(), (float(values[0]) / total, float(values[1]) / total)


def _umap(rows: np.ndarray, seed: int) -> np.ndarray:
    """Run UMAP on cosines; a fixed seed makes it single-threaded and repeatable."""
    from umap import UMAP

    return UMAP(n_components=2, metric="cosine", random_state=seed, n_jobs=1).fit_transform(rows).astype(np.float32)


@dataclass(frozen=True)
class TextQuery:
    """Holds a caption and the images nearest to it."""

    caption: str
    images: list[bytes]
    right: list[bool]
    place: int  # rank of the best right image, from 0
    answer: bytes  # a right image


@dataclass(frozen=True)
class ImageQuery:
    """Holds an image and the captions nearest to it."""

    image: bytes
    captions: list[str]
    right: list[bool]
    place: int
    answer: str


@dataclass(frozen=True)
class HardClass:
    """Holds a class that is often missed, the classes its images are taken for, most frequent first, and an image."""

    name: str
    images: int
    recall: float
    taken_for: list[tuple[str, float]]  # other classes with their share of the images
    example: bytes | None


def retrieval_examples(embedded: EmbeddedSet, seed: int = 0) -> tuple[list[TextQuery], list[ImageQuery]]:
    """Draw queries by the seed, hits first: as many with a right item in front as without, if there are so many."""
    captions = embedded.captions()
    texts, right = right_items(captions)
    images, rows = embedded.images(), embedded.texts(texts)
    i2t, t2i = both_ways(images, rows, right)
    image_of = np.repeat(np.arange(len(captions)), [len(group) for group in captions])

    by_text = []
    for query in _some(t2i.numpy(), seed):
        nearest = _nearest(rows[query] @ images.T)
        marks = [at in right.images.of(query) for at in nearest]
        own = picture_at(embedded, int(image_of[query]))
        shown = [picture_at(embedded, at) for at in nearest]
        by_text.append(TextQuery(texts[query], shown, marks, int(t2i[query]), own))
    by_image = []
    for query in _some(i2t.numpy(), seed + 1):
        nearest = _nearest(images[query] @ rows.T)
        marks = [at in right.texts.of(query) for at in nearest]
        read = [texts[at] for at in nearest]
        by_image.append(ImageQuery(picture_at(embedded, query), read, marks, int(i2t[query]), captions[query][0]))
    return by_text, by_image


def hardest_classes(embedded: EmbeddedSet, most: int = HARDEST) -> list[HardClass]:
    """Return the classes with the lowest recall; of equal recalls those with more images come first."""
    labels, names = embedded.labels(), embedded.benchmark.class_names
    predicted = predictions(embedded.images(), set_classes(embedded))
    counts = np.bincount(labels, minlength=len(names))
    right = np.bincount(labels, predicted == labels, minlength=len(names))
    present = np.flatnonzero(counts)
    order = present[np.lexsort((-counts[present], right[present] / counts[present]))][:most]
    hard = []
    for label in order.tolist():
        own = np.flatnonzero(labels == label)
        shares = np.bincount(predicted[own], minlength=len(names)) / len(own)
        others = [int(other) for other in np.argsort(-shares, kind="stable") if other != label and shares[other] > 0]
        missed = own[predicted[own] != label]
        example = picture_at(embedded, int(missed[0])) if len(missed) else None
        taken_for = [(names[other], float(shares[other])) for other in others[:TAKEN_FOR]]
        hard.append(HardClass(names[label], len(own), float(right[label] / counts[label]), taken_for, example))
    return hard


def plane(embedded: EmbeddedSet, method: ProjectionMethod = "pca", seed: int = 0) -> Projection:
    """Project images and captions of a retrieval set; a large set is sampled by the seed."""
    draw = np.random.default_rng(seed)
    groups = {}
    for name, rows in {"images": embedded.images(), "captions": embedded.caption_rows()[0]}.items():
        if len(rows) > IN_PLANE:
            name, rows = f"of {len(rows)} {name}", rows[torch.from_numpy(draw.permutation(len(rows))[:IN_PLANE])]
        groups[name] = rows
    return project(groups, method, seed)


def picture_at(embedded: EmbeddedSet, at: int) -> bytes:
    """Return the stored bytes of a usable image."""
    return embedded.source().image(int(embedded.indices()[at]))


def _some(places: np.ndarray, seed: int) -> list[int]:
    """Choose queries to show: hits, then misses, each drawn by the seed."""
    order = np.random.default_rng(seed).permutation(len(places))
    return [*order[places[order] == 0][:QUERIES].tolist(), *order[places[order] > 0][:QUERIES].tolist()]


def _nearest(similarity: Tensor) -> list[int]:
    """Return the nearest items in order; ties are ordered by index, as in `retrieval.ranks`."""
    return similarity.sort(descending=True, stable=True).indices[:SHOWN_ITEMS].tolist()
