"""What equations ask of their inputs: at least single precision, and a length that has a direction."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SHORTEST = 1e-8  # a row shorter than this has no direction; dividing by its length would blow up its gradient


def single(x: Tensor) -> Tensor:
    """Halves become fp32; fp32 stays, and so does fp64, which tests and oracles compute in."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


# -------- contrastive
# Equation 1: the symmetric contrastive loss of CLIP.
#
# Shapes: N own rows, M items they are compared with (N = M on one process), D embedding width.


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


# -------- cyclip
# CyCLIP's two consistencies (Goel et al. 2022), a baseline of the paper without an equation number there.
#
# Shapes: N own rows, M items (N = M on one process), D embedding width.


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


# -------- alip
# ALIP's weights (Yang et al. 2023): pairs whose captions or images disagree count less.
#
# Shapes: N pairs; t their captions, c second (synthetic or other) captions, i images.


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


# -------- geometry
# How far apart the two modalities lie.
#
# Shapes: N images, M texts, D embedding width.


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
