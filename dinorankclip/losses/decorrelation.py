"""Computes a term that spreads embeddings over all directions, without a teacher: variance and covariance.

It follows VICReg's regulariser (Bardes et al. 2022), on embeddings of unit norm times √D: that is what the contrastive
loss sees, and embeddings that fill all directions alike have a variance of 1 in each.

Shapes: M pairs over all processes, D embedding width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

COVARIANCE_WEIGHT = 1 / 25  # VICReg weighs variance by 25 and covariance by 1
FLOOR = 1e-4  # added to a variance: a root has no gradient at zero


def decorrelation(rows: Tensor) -> Tensor:
    """Return the variance–covariance term of unit-norm rows [M, D], a scalar; at least two rows.

        z = √D·rows,   S = 1/(M-1) Σ_m (z_m - z̄)(z_m - z̄)ᵀ
        L = 1/D Σ_d max(0, 1 - √(S_dd + 1e-4)) + 1/25 · 1/D Σ_{d≠e} S_de²

    As loops:
        for d in range(D):
            for e in range(D):
                S = sum((z[m][d] - mean[d]) * (z[m][e] - mean[e]) for m in range(M)) / (M - 1)
                total += max(0, 1 - sqrt(S + 1e-4)) / D if d == e else S * S / D / 25
    """
    count, dim = rows.shape
    centred = math.sqrt(dim) * (rows - rows.mean(0))
    covariance = centred.T @ centred / (count - 1)
    variance = covariance.diagonal()
    below = (1 - (variance + FLOOR).sqrt()).clamp_min(0).mean()
    between = (covariance.square().sum() - variance.square().sum()) / dim
    return below + COVARIANCE_WEIGHT * between


def both_decorrelated(image: Tensor, text: Tensor) -> Tensor:
    """Return the mean of the terms of both modalities, unit-norm rows [M, D] each. One pair has no variance: zero."""
    if len(image) < 2:
        return torch.zeros((), dtype=image.dtype, device=image.device)
    return (decorrelation(image) + decorrelation(text)) / 2
