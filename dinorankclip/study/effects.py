"""Means over seeds and differences paired by seed, with t-intervals and the smallest effect a study could have found.

The t distributions are integrated here: a core install has no scipy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

LEVEL = 0.95
POWER = 0.8
# Of the mean: results are kept to seven digits, so that equal differences of a few images in a thousand differ by this.
NO_SPREAD = 1e-4
# Two seeds give an interval of ±12.7 standard errors, whose width is chance: it shows nothing or, by luck, anything.
FEWEST_SEEDS = 3


@dataclass(frozen=True)
class Summary:
    """Over seeds. With fewer than FEWEST_SEEDS there is neither a spread nor an interval: None."""

    mean: float
    low: float | None
    high: float | None
    sd: float | None
    n: int

    @property
    def half(self) -> float | None:
        """Half the width of the interval."""
        return _half(self.low, self.high)


@dataclass(frozen=True)
class Effect:
    """B - A over the seeds that both have. `detectable`: the true effect that n such pairs would show (two-sided, at
    5 %) in 80 % of studies, given their spread; None where n < FEWEST_SEEDS."""

    mean: float
    low: float | None
    high: float | None
    sd: float | None
    n: int
    detectable: float | None

    @property
    def shown(self) -> bool:
        """Whether the interval leaves zero out; of constant differences, whether flipping signs would tell (n ≥ 6)."""
        if self.low is None or self.high is None:
            return False
        if self.constant:
            return self.mean != 0 and 2.0 ** (1 - self.n) <= 1 - LEVEL
        return self.low > 0 or self.high < 0

    @property
    def half(self) -> float | None:
        """Half the width of the interval."""
        return _half(self.low, self.high)

    @property
    def constant(self) -> bool:
        """The same difference for every seed, be it none: its interval of no width says nothing."""
        return self.sd is not None and self.sd <= NO_SPREAD * abs(self.mean)


def summary(values: Mapping[int, float]) -> Summary:
    """Mean and 95 % t-interval of one value a seed; NaN and n = 0 without any."""
    found = np.array(list(values.values()), dtype=np.float64)
    n = len(found)
    mean = float(found.mean()) if n else math.nan
    if n < FEWEST_SEEDS:
        return Summary(mean, None, None, None, n)
    sd = float(found.std(ddof=1))
    half = t_quantile(0.5 + LEVEL / 2, n - 1) * sd / math.sqrt(n)
    return Summary(mean, mean - half, mean + half, sd, n)


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> Effect:
    """B - A over the seeds both have."""
    found = summary({seed: b[seed] - a[seed] for seed in sorted(a.keys() & b.keys())})
    smallest = None if found.sd is None else detectable(found.sd, found.n)
    return Effect(found.mean, found.low, found.high, found.sd, found.n, smallest)


def detectable(sd: float, n: int, power: float = POWER, level: float = LEVEL) -> float:
    """The smallest true effect that n pairs of this spread show in a share `power` of studies; n ≥ 3."""
    return noncentrality(n, power, level) * sd / math.sqrt(n)


@lru_cache(maxsize=256)
def noncentrality(n: int, power: float = POWER, level: float = LEVEL) -> float:
    """The δ for which |t| exceeds its limit with probability `power`: noncentral t, n - 1 degrees."""
    limit = t_quantile(0.5 + level / 2, n - 1)
    # With few degrees of freedom t spreads as widely as δ itself: what is added to the limit must grow with it.
    most = 2 * limit + 10
    return _root(lambda delta: t_tail(limit, n - 1, delta) + t_tail(limit, n - 1, -delta) - power, 0.0, most)


@lru_cache(maxsize=256)
def t_quantile(share: float, freedom: int) -> float:
    """The value below which a share ≥ ½ of Student's t lies."""
    return _root(lambda limit: 1.0 - t_tail(limit, freedom) - share, 0.0, 1e4)


def t_tail(limit: float, freedom: int, shift: float = 0.0) -> float:
    """P(T > limit) of the t with noncentrality `shift`: T = (Z + shift)/S, S² = χ²/ν.

        ∫ Φ(shift - limit·s) f(s) ds,   f(s) = 2 (ν/2)^(ν/2)/Γ(ν/2) · s^(ν-1) · exp(-ν s²/2)

    Summed evenly over log s, where the integrand fades out on both sides and the trapezoid rule converges fast.
    """
    log_s = np.linspace(-36.0 / min(freedom, 12), 3.0, 4001)
    s = np.exp(log_s)
    half = freedom / 2
    log_density = math.log(2) + half * math.log(half) - math.lgamma(half) + freedom * log_s - half * s * s
    above = 0.5 * torch.erfc(torch.from_numpy((limit * s - shift) / math.sqrt(2))).numpy()  # numpy has none
    return float((np.exp(log_density) * above).sum() * (log_s[1] - log_s[0]))


def _half(low: float | None, high: float | None) -> float | None:
    return None if low is None or high is None else (high - low) / 2


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function crosses zero, by halving."""
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
        if high - low < 1e-10 * max(1.0, high):
            break
    return (low + high) / 2
