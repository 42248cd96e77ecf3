"""Computes when lists and their orders act: the ramp of the ranking weights (D12) and the stages of orders (D11)."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import replace

from dinorankclip.types import Progress

RAMP_SLOPE, RAMP_TOP = 3.0, 2.0  # μ = clip(3i/(n-1), 0, 2): RankCLIP's public schedule (D12)
SHORT_RUN = 8  # epochs; in shorter runs the ramp counts steps instead of whole epochs (D12)
STAGE_EPOCHS, STAGE_RUN = 3.0, 64.0  # order r starts at epoch 3(r-1) of a run of 64 epochs or more (D11)


def ranking_weight(progress: Progress, ramp: str = "rankclip") -> float:
    """Return μ₁ = μ₂ at this step: clip(3i/(n-1), 0, 2) with i the epoch, counted from 0.

    `ramp="paper"` is the schedule that the paper prints, clip((3i-1)/(n-1), 0, 2).
    Runs under 8 epochs count i in steps; a single epoch, where n-1 = 0, climbs linearly from 0 to the top. Between one
    and two epochs the line turns from 2i to 3i, the line of two epochs: 3i/(n-1) would jump to the top at once.
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


def first_weighted_step(progress: Progress, ramp: str = "rankclip") -> int:
    """Return the first step of the run with μ > 0; `total_steps` if there is none."""
    return bisect_left(
        range(progress.total_steps), True, key=lambda step: ranking_weight(replace(progress, step=step), ramp) > 0
    )


def stage_steps(order: int, progress: Progress, ramp: str = "rankclip") -> dict[int, int]:
    """Return the step at which each order 2 … `order` starts: epoch 3(r-1)·min(1, epochs/64), at least a step apart.

    No order starts while μ = 0, as in the first epoch of a run of 8 epochs or more: only its L1 and weight decay would
    move it.
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
    """Return the orders above 1 that act at this step. Without stages, all of them act as soon as μ > 0."""
    if not staged:
        return tuple(range(2, order + 1)) if ranking_weight(progress, ramp) > 0 else ()
    return tuple(r for r, start in stage_steps(order, progress, ramp).items() if progress.step >= start)
