"""The learning rate as a function of the step alone."""

from __future__ import annotations

import math

MOST_WARMUP_STEPS = 10_000  # RankCLIP's and the paper's
WARMUP_SHARE = 0.05  # short runs warm up over this share of their steps instead


def warmup_length(total_steps: int, asked: int | None = None) -> int:
    return asked if asked is not None else max(1, min(MOST_WARMUP_STEPS, round(WARMUP_SHARE * total_steps)))


def learning_rate(step: int, total_steps: int, peak: float, warmup: int) -> float:
    """Rate of the update that follows `step` finished ones: linear up over `warmup`, then half a cosine to zero."""
    if step < warmup:
        return peak * (step + 1) / warmup
    share = (step - warmup) / max(1, total_steps - warmup)
    return 0.5 * peak * (1.0 + math.cos(math.pi * min(1.0, share)))
