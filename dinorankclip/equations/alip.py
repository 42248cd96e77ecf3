"""ALIP's weights (Yang et al. 2023): pairs whose captions or images disagree count less.

Shapes: N pairs; t their captions, c second (synthetic or other) captions, i images.
"""

from __future__ import annotations

import torch
from torch import Tensor


def alip_weights(
    text_second: Tensor, text_image: Tensor, second_image: Tensor, thresholds: Tensor, sharpness: float = 2.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (sample, image–caption, image–second caption), each [N], without gradient.

    The first three arguments [N] are cosines t·c, t·i and c·i of the same sample; `thresholds` [3] are their running
    means H in that order.

        w_s = min(1, exp(a(s_tc - H_tc)))
        w_t = exp(a(s_ti - H_ti)), w_c = exp(a(s_ci - H_ci))  where exp(a(s_tc - H_tc)) < 1, else 1

    As loops:
        for n in range(N):
            agreement = exp(a * (tc[n] - H_tc))
            w_s[n] = min(1, agreement)
            w_t[n] = exp(a * (ti[n] - H_ti)) if agreement < 1 else 1
            w_c[n] = exp(a * (ci[n] - H_ci)) if agreement < 1 else 1
    """
    cosines = torch.stack([text_second, text_image, second_image]).detach()
    agreement, text, second = (sharpness * (cosines - thresholds[:, None])).exp()
    doubtful = agreement < 1
    one = torch.ones_like(agreement)
    return agreement.clamp(max=1), torch.where(doubtful, text, one), torch.where(doubtful, second, one)
