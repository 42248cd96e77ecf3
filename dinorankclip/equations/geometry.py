"""How far apart the two modalities lie.

Shapes: N images, M texts, D embedding width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .contrastive import unit_rows


def cone_separation(image: Tensor, text: Tensor) -> Tensor:
    """Degrees between the mean image and the mean text embedding, rows normalised first (0: one cone, 90: two).

    As loops:
        a = sum(v[n] / norm(v[n]) for n in range(N)); b = sum(t[m] / norm(t[m]) for m in range(M))
        return degrees(acos(dot(a, b) / (norm(a) * norm(b))))
    """
    with torch.autocast(image.device.type, enabled=False):
        a, b = unit_rows(unit_rows(image).mean(0)), unit_rows(unit_rows(text).mean(0))
        # 2·atan2(|a-b|, |a+b|) rather than acos(a·b), which loses half of the digits near 0 and 180 degrees
        return torch.rad2deg(2 * torch.atan2((a - b).norm(), (a + b).norm()))
