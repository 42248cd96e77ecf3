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
