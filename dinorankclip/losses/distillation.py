"""Computes distillation losses (D14–D16) between a student and its frozen teacher, as pure functions.

    gram_loss            how tokens of one image relate to each other      (needs no common coordinates)
    rkd_loss             how items of a batch relate to each other         (needs no common coordinates)
    mse_loss cosine_loss token by token, after a projector to the teacher's width
    crd_loss             item by item against the other items of the batch, after a projector

Shapes: B images (or captions) of a batch, L tokens, d and d2 widths of student and teacher, N items.
No gradient reaches a teacher. All losses are computed in at least single precision.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dinorankclip.losses.contrastive import SHORTEST, single

Reduction = Literal["mean", "sum"]

RKD_ITEMS = 128  # 128³ angles are two million numbers; more items make the angle term the slowest part of a step
RKD_DISTANCE_WEIGHT, RKD_ANGLE_WEIGHT = 1.0, 2.0
CRD_TEMPERATURE = 0.07
_SAME_ITEM = 1e-6  # squared distance, relative to the mean, below which two items count as the same point


def cosine_gram(tokens: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the cosines [B, L, L] of tokens [B, L, d]: entry (i, j) = cos(token i, token j).

    Rows and columns of tokens that are zero or not in `mask` [B, L] are zero.
    """
    tokens = _unit(_masked(single(tokens), mask))
    return tokens @ tokens.transpose(-1, -2)


def normalise_gram(gram: Tensor) -> Tensor:
    """Turn an unnormalised Gram V·Vᵀ [B, L, L] into the cosine Gram: entry (i, j) divided by √(G_ii·G_jj).

    A cached Gram is unnormalised: a crop acts on V linearly, so it acts on V·Vᵀ, and cosines are taken last.
    """
    gram = single(gram)
    lengths = gram.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
    inverse = torch.where(lengths > SHORTEST, 1 / lengths.clamp_min(SHORTEST), 0.0)
    return gram * inverse[..., :, None] * inverse[..., None, :]


def gram_loss(student: Tensor, teacher: Tensor, mask: Tensor | None = None, reduction: Reduction = "mean") -> Tensor:
    """Return the mean squared difference of the cosine Grams of student [B, L, d] and teacher [B, L, d2], a scalar.

        L = 1/B Σ_b 1/n_b² Σ_ij (cos(s_bi, s_bj) - cos(t_bi, t_bj))²,   i and j over the n_b tokens in `mask` [B, L]

    `reduction="sum"` leaves out the 1/n_b²: the paper's ‖G_S - G_T‖_F², 38,416 times larger at L = 196.

    As loops:
        for b in range(B):
            tokens = [i for i in range(L) if mask[b, i]]
            if len(tokens) < 2: continue                  # one token has no relations: zero
            for i in tokens:
                for j in tokens:
                    total += (cos(s[b, i], s[b, j]) - cos(t[b, i], t[b, j])) ** 2 / len(tokens) ** 2
        return total / B
    """
    with torch.autocast(student.device.type, enabled=False):
        with torch.no_grad():
            target = cosine_gram(teacher, mask)
        return _gram_error(cosine_gram(student, mask), target, mask, reduction)


def gram_loss_to(student: Tensor, gram: Tensor, mask: Tensor | None = None, reduction: Reduction = "mean") -> Tensor:
    """Return `gram_loss` for a cached teacher, of which only the unnormalised Gram V·Vᵀ [B, L, L] is known."""
    with torch.autocast(student.device.type, enabled=False):
        with torch.no_grad():
            target = normalise_gram(gram)
        return _gram_error(cosine_gram(student, mask), target, mask, reduction)


def gram_distance(student_gram: Tensor, teacher_gram: Tensor) -> Tensor:
    """Return ‖G_S - G_T‖_F / ‖G_T‖_F of cosine Grams [B, L, L], for reports: [B].

    Both must be on the same grid; entries that are zero in both (masked tokens) do not count. The distance is NaN where
    the teacher's Gram is zero.

    As loops:
        for b in range(B):
            squares = sum((student[b, i, j] - teacher[b, i, j]) ** 2 for i in range(L) for j in range(L))
            distance[b] = sqrt(squares) / sqrt(sum(teacher[b, i, j] ** 2 for i in range(L) for j in range(L)))
    """
    student_gram, teacher_gram = single(student_gram), single(teacher_gram)
    scale: Tensor = torch.linalg.matrix_norm(teacher_gram)
    distance: Tensor = torch.linalg.matrix_norm(student_gram - teacher_gram) / scale
    return distance.masked_fill(scale <= SHORTEST, torch.nan)


def _gram_error(student: Tensor, teacher: Tensor, mask: Tensor | None, reduction: Reduction) -> Tensor:
    if student.shape != teacher.shape:
        raise ValueError(f"Grams differ in shape: student {tuple(student.shape)}, teacher {tuple(teacher.shape)}")
    difference = student - teacher
    if mask is None:
        squares = difference.square()
        return (squares.mean((-2, -1)) if reduction == "mean" else squares.sum((-2, -1))).mean()
    both = mask[..., :, None] & mask[..., None, :]
    each = difference.masked_fill(~both, 0.0).square().sum((-2, -1))
    count = mask.sum(-1)
    if reduction == "mean":
        each = each / count.clamp_min(1).square()
    # Divided by B, not by the number of captions that count, so that the mean over processes is that of the batch.
    return torch.where(count >= 2, each, 0.0).mean()


def rkd_items(count: int, seed: int, step: int, most: int = RKD_ITEMS) -> Tensor:
    """Choose the items of the global batch for the relational loss: at most `most` of `count`, in rising order.

    The choice depends on (seed, step) alone, so that every process makes the same choice.
    """
    if count <= most:
        return torch.arange(count)
    chosen = np.random.default_rng([seed, step]).permutation(count)[:most]
    return torch.from_numpy(np.sort(chosen))


def rkd_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the relational loss (Park et al. 2019) of items [N, d] and [N, d2]: 1·distances + 2·angles, a scalar.

        D = mean over i ≠ j       of huber(‖s_i - s_j‖/μ_s, ‖t_i - t_j‖/μ_t),  μ the mean distance over i ≠ j
        A = mean over i, j, k     of huber(cos ∠s_i s_j s_k, cos ∠t_i t_j t_k), i, j, k all different
        huber(a, b) = (a - b)²/2 if |a - b| < 1 else |a - b| - 1/2

    As loops:
        for i, j in permutations(range(N), 2):
            distances += huber(norm(s[i] - s[j]) / mean_s, norm(t[i] - t[j]) / mean_t)
        for i, j, k in permutations(range(N), 3):
            angles += huber(cos(s[i] - s[j], s[k] - s[j]), cos(t[i] - t[j], t[k] - t[j]))
        return 1 * distances / (N * (N - 1)) + 2 * angles / (N * (N - 1) * (N - 2))

    Neither term changes if the student's space is moved, turned or scaled. An angle has cosine 0 if two of its items
    coincide.
    """
    with torch.autocast(student.device.type, enabled=False):
        with torch.no_grad():
            teacher_distances, teacher_angles = _relations(teacher)
        distances, angles = _relations(student)
        n = len(student)
        distance = _mean_huber(distances, teacher_distances, n * (n - 1))
        angle = _mean_huber(angles, teacher_angles, n * (n - 1) * (n - 2))
        return RKD_DISTANCE_WEIGHT * distance + RKD_ANGLE_WEIGHT * angle


def _relations(items: Tensor) -> tuple[Tensor, Tensor]:
    """Return relative distances [N, N] of items [N, d], and cosines [N, N, N] at item j (first) between items i and k.

    Entries whose items are not all different are 0. Inner products, which are few, replace differences [N, N, d].
    Centring first changes no relation and keeps the products exact, since class tokens share a large part.
    """
    items = single(items)
    n = len(items)
    items = items - items.mean(0, keepdim=True)
    products = items @ items.T
    squared = products.diagonal()
    squares = (squared[:, None] + squared[None, :] - 2 * products).clamp_min(0)
    apart = squares > _SAME_ITEM * squares.detach().sum() / max(1, n * (n - 1))
    apart.fill_diagonal_(False)
    # sqrt has an infinite slope at 0: coinciding items get the constants 0 instead.
    lengths = torch.where(apart, squares, 1.0).sqrt()
    distances = lengths * apart
    mean = distances.sum() / max(1, n * (n - 1))
    distances = distances / torch.where(mean > 0, mean, 1.0)
    # (x_i - x_j)·(x_k - x_j) = x_i·x_k - u_ji - u_jk with u_ji = x_j·x_i - x_j·x_j/2
    u = products - squared[:, None] / 2
    inverse = apart / lengths
    cosines = (products - u[:, :, None] - u[:, None, :]) * (inverse[:, :, None] * inverse[:, None, :])
    # i = k is no triple: its cosine is 1 on both sides (up to rounding) and must not count.
    return distances, cosines * (1 - torch.eye(n, dtype=cosines.dtype, device=cosines.device))


def _mean_huber(student: Tensor, teacher: Tensor, count: int) -> Tensor:
    """Return the mean over the `count` entries that are relations; the others are 0 on both sides and add nothing."""
    return F.smooth_l1_loss(student, teacher.to(student.dtype), reduction="sum") / max(1, count)


def mse_loss(student: Tensor, teacher: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the squared difference, mean over channels, tokens and items; both [B, L, d], `mask` [B, L]. A scalar.

    As loops:
        for b in range(B):
            tokens = [i for i in range(L) if mask[b, i]]
            for i in tokens:
                total += mean((s[b, i, c] - t[b, i, c]) ** 2 for c in range(d)) / len(tokens)
        return total / B
    """
    with torch.autocast(student.device.type, enabled=False):
        student, teacher = _masked(single(student), mask), _masked(single(teacher).detach(), mask)
        return _mean_of_tokens((student - teacher).square().mean(-1), mask)


def cosine_loss(student: Tensor, teacher: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean of 1 - cos(student token, teacher token) over tokens and items; both [B, L, d], `mask` [B, L].

    As loops:
        for b in range(B):
            tokens = [i for i in range(L) if mask[b, i]]
            for i in tokens:
                total += (1 - dot(s[b, i], t[b, i]) / (norm(s[b, i]) * norm(t[b, i]))) / len(tokens)
        return total / B
    """
    with torch.autocast(student.device.type, enabled=False):
        student, teacher = _masked(single(student), mask), _masked(single(teacher).detach(), mask)
        return _mean_of_tokens(1 - (_unit(student) * _unit(teacher)).sum(-1), mask)


def crd_loss(student: Tensor, teacher: Tensor, temperature: float = CRD_TEMPERATURE) -> Tensor:
    """Return the contrastive loss (Tian et al. 2020) with the batch as negatives; both [N, d]. A scalar.

        L = 1/2N Σ_i [ -log softmax_j(cos(s_i, t_j)/τ)[i] - log softmax_j(cos(t_i, s_j)/τ)[i] ]

    As loops:
        for i in range(N):
            total += log(sum(exp(cos(s[i], t[j]) / τ) for j in range(N))) - cos(s[i], t[i]) / τ
            total += log(sum(exp(cos(s[j], t[i]) / τ) for j in range(N))) - cos(s[i], t[i]) / τ
        return total / (2 * N)
    """
    with torch.autocast(student.device.type, enabled=False):
        logits = _unit(single(student)) @ _unit(single(teacher).detach()).T / temperature
        own = torch.arange(len(logits), device=logits.device)
        return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


def _unit(x: Tensor) -> Tensor:
    """Return `unit_rows` up to rounding, with gradients 1.5 to 3 times as fast, since tokens are many."""
    squares = x.square().sum(-1, keepdim=True)
    long_enough = squares > SHORTEST**2
    return x * torch.where(long_enough, torch.where(long_enough, squares, 1.0).rsqrt(), 0.0)


def _masked(tokens: Tensor, mask: Tensor | None) -> Tensor:
    """Set padding, which may hold anything, to zero, so that it has neither a value nor a gradient."""
    return tokens if mask is None else tokens.masked_fill(~mask[..., None], 0.0)


def _mean_of_tokens(values: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return values.mean()
    # The mean is over each item first, then over all B items, so that the mean over processes is that of the batch.
    return (values.masked_fill(~mask, 0.0).sum(-1) / mask.sum(-1).clamp_min(1)).mean()
