"""Every weight, ramp and constant of the objective, by name and with its source."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace

from dinorankclip.types import Progress

# RankCLIP divides the sum of its two lists by 32; equation 8 takes their half-sum, which leaves 1/16. The division
# by the number of positions K is RankCLIP's /N. (D2)
RANKCLIP_SIZE = 1 / 16
RAMP_SLOPE, RAMP_TOP = 3.0, 2.0  # μ = clip(3i/(n-1), 0, 2): RankCLIP's public schedule (D12)
SHORT_RUN = 8  # epochs; below, the ramp counts steps instead of whole epochs (D12)

GATE_L1 = {2: 1e-4, 3: 1e-3}  # η_r, the paper's table; ×10 for each order above 3 (D11)
STAGE_EPOCHS, STAGE_RUN = 3.0, 64.0  # order r starts at epoch 3(r-1) of a run of 64 epochs or more (D11)

CYCLIP_IN, CYCLIP_CROSS = 0.25, 0.25  # CyCLIP's recipe
ALIP_MOMENTUM = 0.99  # ALIP: H ← 0.99·H + 0.01·mean
ALIP_SHARPNESS = 2.0  # ALIP: weights are exp(2(s - H))
ALIP_START = 1.0  # ALIP: H at the start


def ranking_weight(progress: Progress, ramp: str = "rankclip") -> float:
    """μ₁ = μ₂ at this step: clip(3i/(n-1), 0, 2) with i the epoch from 0.

    `ramp="paper"` is the schedule the paper prints, clip((3i-1)/(n-1), 0, 2).
    Runs under 8 epochs count i in steps; a single epoch, where n-1 = 0, climbs linearly from 0 to the top. Between one
    and two epochs the line turns from that, 2i, to that of two epochs, 3i: 3i/(n-1) would jump to the top at once.
    """
    n = progress.epochs
    late = 1.0 if ramp == "paper" else 0.0
    if n <= 1:
        rise = RAMP_TOP * progress.step / max(1, progress.total_steps)
    elif n < 2:
        rise = (2 - n) * RAMP_TOP * progress.epoch + (n - 1) * (RAMP_SLOPE * progress.epoch - late)
    else:
        i = progress.epoch if n < SHORT_RUN else math.floor(progress.epoch + 1e-9)
        rise = (RAMP_SLOPE * i - late) / (n - 1)
    return min(max(rise, 0.0), RAMP_TOP)


def gate_l1(order: int) -> float:
    """η_r"""
    return GATE_L1[order] if order <= 3 else GATE_L1[3] * 10.0 ** (order - 3)


def first_weighted_step(progress: Progress, ramp: str = "rankclip") -> int:
    """The first step of the run with μ > 0; `total_steps` if there is none."""
    return bisect_left(
        range(progress.total_steps), True, key=lambda step: ranking_weight(replace(progress, step=step), ramp) > 0
    )


def stage_steps(order: int, progress: Progress, ramp: str = "rankclip") -> dict[int, int]:
    """The step at which each order 2 … `order` begins to act: epoch 3(r-1)·min(1, epochs/64), at least a step apart.

    None begins while μ = 0, as in the first epoch of a run of 8 epochs or more: nothing but its L1 and weight decay
    would move it.
    """
    steps_per_epoch = progress.total_steps / max(progress.epochs, 1e-9)
    shrink = min(1.0, progress.epochs / STAGE_RUN)
    starts: dict[int, int] = {}
    previous = first_weighted_step(progress, ramp) - 1
    for r in range(2, order + 1):
        previous = max(previous + 1, round(STAGE_EPOCHS * (r - 1) * shrink * steps_per_epoch))
        starts[r] = previous
    return starts


def active_orders(order: int, progress: Progress, staged: bool = True, ramp: str = "rankclip") -> tuple[int, ...]:
    """Orders above 1 that act at this step; not staged, all of them as soon as the lists have weight."""
    if not staged:
        return tuple(range(2, order + 1)) if ranking_weight(progress, ramp) > 0 else ()
    return tuple(r for r, start in stage_steps(order, progress, ramp).items() if progress.step >= start)


def uniform_nll(items: int, length: int) -> float:
    """Order 0: every remaining item is as likely, so a list costs log(M!/(M-K)!) whatever the model says."""
    return math.lgamma(items + 1) - math.lgamma(items - length + 1)


def total(terms: Iterable):
    """The sum of the terms, keeping a single one bit for bit."""
    terms = list(terms)
    out = terms[0]
    for term in terms[1:]:
        out = out + term
    return out
