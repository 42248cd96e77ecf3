"""Equation 1: the symmetric contrastive loss of CLIP.

Shapes: N own rows, M items they are compared with (N = M on one process), D embedding width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .precision import SHORTEST, single


def unit_rows(rows: Tensor) -> Tensor:
    """Rows of length one, in at least single precision: at s = 100 half precision would move a logit by 0.4.

    A row without a direction gives zero and gets no gradient.

    As loops:
        for n in range(N):
            unit[n] = rows[n] / norm(rows[n]) if norm(rows[n]) > 1e-8 else 0
    """
    rows = single(rows)
    length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    too_short = length <= SHORTEST
    return (rows / length.masked_fill(too_short, 1.0)).masked_fill(too_short, 0.0)


def info_nce(image: Tensor, text: Tensor, scale: Tensor | float) -> Tensor:
    """Equation 1, with 1/τ = `scale`; the rows [N, D] are normalised here. Returns a scalar.

        L = -1/2N Σ_i log( exp(s·v_i·t_i) / Σ_j exp(s·v_i·t_j) )
            -1/2N Σ_i log( exp(s·v_i·t_i) / Σ_j exp(s·v_j·t_i) )

    As loops:
        for i in range(N):
            total += log(sum(exp(s * dot(v[i], t[j])) for j in range(N))) - s * dot(v[i], t[i])
            total += log(sum(exp(s * dot(v[j], t[i])) for j in range(N))) - s * dot(v[i], t[i])
        return total / (2 * N)
    """
    with torch.autocast(image.device.type, enabled=False):
        logits = scale * unit_rows(image) @ unit_rows(text).T
        return info_nce_rows(logits, logits.T).mean()


def info_nce_rows(image_logits: Tensor, text_logits: Tensor, first: int = 0) -> Tensor:
    """Equation 1 by rows, for a process that owns the pairs first … first+N-1 of M: returns [N].

    `image_logits` [N, M]: own images against all texts; `text_logits` [N, M]: own texts against all images.
    The pair of own row n is item first + n.
    """
    partner = torch.arange(first, first + image_logits.shape[0], device=image_logits.device)
    image_to_text = F.cross_entropy(image_logits, partner, reduction="none")
    text_to_image = F.cross_entropy(text_logits, partner, reduction="none")
    return (image_to_text + text_to_image) / 2
