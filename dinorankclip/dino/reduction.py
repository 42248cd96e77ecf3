"""PCA of teacher tokens: the 256 directions that keep most of their energy.

Uncentred: a mean would have to be added back before cosines mean anything, and the cropped, flipped and
averaged tokens of a view are then plain linear functions of what is stored.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

REDUCED = 256


def fit_basis(batches: Iterable[Tensor], most: int = REDUCED) -> Tensor:
    """Tokens [n, C], batch by batch → orthonormal rows [min(most, C), C], the strongest direction first."""
    moment: Tensor | None = None
    for tokens in batches:
        tokens = tokens.double()
        product = tokens.T @ tokens
        moment = product if moment is None else moment + product
    if moment is None:
        raise ValueError("no tokens to fit a basis to")
    basis = torch.linalg.eigh(moment).eigenvectors.T.flip(0)[:most]
    # The sign of a direction is arbitrary: make its largest entry positive, so that a basis is reproducible.
    largest = basis.gather(1, basis.abs().argmax(1, keepdim=True))
    return (basis * largest.sign()).float().contiguous()
