"""Computes equation 1, CLIP's symmetric contrastive loss, and the baselines CyCLIP and ALIP that build on it.

Row functions serve training: they take unit-norm embeddings [M, D] of the pairs of all processes and the slice `own` of
a process's N rows, and return one value for each own row. On one process N = M, and `own` can be left out.
`groups` [M, C] are ids of the pairs (groups.py): pairs that share an id are not each other's negatives.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dinorankclip.losses.groups import other_positives

SHORTEST = 1e-8  # a row shorter than this has no direction; dividing by its length would blow up its gradient
EVERY_ROW = slice(None)

CYCLIP_IN, CYCLIP_CROSS = 0.25, 0.25  # weights of CyCLIP's recipe
ALIP_SHARPNESS = 2.0  # ALIP: weights are exp(2(s - H))


def single(x: Tensor) -> Tensor:
    """Convert half precision to fp32. fp32 and fp64, which tests and oracles use, stay as they are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def unit_rows(rows: Tensor) -> Tensor:
    """Scale rows to length one, in at least single precision: at s = 100 half precision would move a logit by 0.4.

    A row without a direction becomes zero and gets no gradient.

    As loops:
        for n in range(N):
            unit[n] = rows[n] / norm(rows[n]) if norm(rows[n]) > 1e-8 else 0
    """
    rows = single(rows)
    length: Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    too_short = length <= SHORTEST
    return (rows / length.masked_fill(too_short, 1.0)).masked_fill(too_short, 0.0)


def info_nce_rows(
    image: Tensor, text: Tensor, scale: Tensor | float, own: slice = EVERY_ROW, groups: Tensor | None = None
) -> Tensor:
    """Return equation 1 by rows, with 1/τ = `scale`: [N]. `info_nce` is their mean over a whole batch.

        L_i = -½ log( exp(s·v_i·t_i) / Σ_j exp(s·v_i·t_j) ) - ½ log( exp(s·v_i·t_i) / Σ_j exp(s·v_j·t_i) )

    j runs over i and the pairs that do not belong together with i: over all pairs, without `groups`. The own partner
    stays the target: sharing a group says that a pair is no negative, but not that it matches as well.

    As loops:
        for i in range(M)[own]:
            others = [j for j in range(M) if j == i or not set(groups[i]) & set(groups[j])]
            image_to_text = log(sum(exp(s * dot(v[i], t[j])) for j in others)) - s * dot(v[i], t[i])
            text_to_image = log(sum(exp(s * dot(v[j], t[i])) for j in others)) - s * dot(v[i], t[i])
            rows.append((image_to_text + text_to_image) / 2)
    """
    partner = torch.arange(len(image), device=image.device)[own]
    texts, images = scale * image[own] @ text.T, scale * text[own] @ image.T
    if groups is not None:
        removed = other_positives(groups.to(image.device, non_blocking=True), partner)
        texts, images = (logits.masked_fill(removed, float("-inf")) for logits in (texts, images))
    image_to_text = F.cross_entropy(texts, partner, reduction="none")
    text_to_image = F.cross_entropy(images, partner, reduction="none")
    return (image_to_text + text_to_image) / 2


def info_nce(image: Tensor, text: Tensor, scale: Tensor | float, groups: Tensor | None = None) -> Tensor:
    """Return equation 1 of a batch [N, D], whose rows are normalised here: the mean of `info_nce_rows`, a scalar."""
    with torch.autocast(image.device.type, enabled=False):
        return info_nce_rows(unit_rows(image), unit_rows(text), scale, groups=groups).mean()


def cyclip_rows(image: Tensor, text: Tensor, own: slice = EVERY_ROW) -> tuple[Tensor, Tensor]:
    """Return CyCLIP's in-modal and cross-modal consistency (Goel et al. 2022) by rows, [N] each.

        in_i = Σ_j (v_i·v_j - t_i·t_j)²        cross_i = Σ_j (v_i·t_j - t_i·v_j)²

    As loops:
        for i in range(M)[own]:
            in_modal.append(sum((dot(v[i], v[j]) - dot(t[i], t[j])) ** 2 for j in range(M)))
            cross.append(sum((dot(v[i], t[j]) - dot(t[i], v[j])) ** 2 for j in range(M)))

    The public code writes N·mean(·)/s² over logits s·cos, which is the same.
    """
    in_modal = image[own] @ image.T - text[own] @ text.T
    cross = image[own] @ text.T - text[own] @ image.T
    return in_modal.square().sum(1), cross.square().sum(1)


def cyclip_consistency(image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means of `cyclip_rows` over a whole batch [N, D], whose rows are normalised here."""
    with torch.autocast(image.device.type, enabled=False):
        in_modal, cross = cyclip_rows(unit_rows(image), unit_rows(text))
        return in_modal.mean(), cross.mean()


def alip_weights(
    text_second: Tensor, text_image: Tensor, second_image: Tensor, thresholds: Tensor, sharpness: float = ALIP_SHARPNESS
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ALIP's weights (Yang et al. 2023), without gradient: pairs whose captions or image disagree count less.

    The first three arguments [N] are cosines t·c, t·i and c·i of caption t, second caption c and image i of a sample;
    `thresholds` [3] are their running means H in that order. Returns weights of the sample, of image–caption and of
    image–second caption, [N] each.

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


def cone_separation(image: Tensor, text: Tensor) -> Tensor:
    """Return degrees between the mean image and mean text embedding, [N, D] and [M, D]; rows are normalised here.

    0 means one cone for both modalities, 90 two.

    As loops:
        a = sum(v[n] / norm(v[n]) for n in range(N)); b = sum(t[m] / norm(t[m]) for m in range(M))
        return degrees(acos(dot(a, b) / (norm(a) * norm(b))))
    """
    with torch.autocast(image.device.type, enabled=False):
        a, b = unit_rows(unit_rows(image).mean(0)), unit_rows(unit_rows(text).mean(0))
        # 2·atan2(|a-b|, |a+b|) rather than acos(a·b), which loses half of the digits near 0 and 180 degrees
        return torch.rad2deg(2 * torch.atan2((a - b).norm(), (a + b).norm()))
