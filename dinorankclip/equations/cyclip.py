"""CyCLIP's two consistencies (Goel et al. 2022), a baseline of the paper without an equation number there.

Shapes: N own rows, M items (N = M on one process), D embedding width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .contrastive import unit_rows


def cyclip_consistency(image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
    """(in-modal, cross-modal) consistency of the pairs [N, D]; rows are normalised here.

        in    = 1/N Σ_ij (v_i·v_j - t_i·t_j)²        cross = 1/N Σ_ij (v_i·t_j - t_i·v_j)²

    As loops:
        for i in range(N):
            for j in range(N):
                in_modal += (dot(v[i], v[j]) - dot(t[i], t[j])) ** 2 / N
                cross += (dot(v[i], t[j]) - dot(t[i], v[j])) ** 2 / N

    The public code writes N·mean(·)/s² over logits s·cos, which is the same.
    """
    with torch.autocast(image.device.type, enabled=False):
        v, t = unit_rows(image), unit_rows(text)
        return consistency_rows(v @ v.T, t @ t.T).mean(), consistency_rows(v @ t.T, t @ v.T).mean()


def consistency_rows(one: Tensor, other: Tensor) -> Tensor:
    """Squared difference of two cosine matrices [N, M], summed over items: [N]."""
    return (one - other).square().sum(1)
