"""Means over seeds and differences paired by seed, with t-intervals and the smallest effect a study could have found.

The t distributions are integrated here: a core install has no scipy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

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


# -------- verdicts
# From measured effects to verdicts.
#
# The rules were written before any result was looked at, but for those marked † below, which came after a first look at
# the scenes study. All of these take verdicts away; none can make one "supported" or "contradicted".
#
# One comparison, B - A paired by seed, with a claimed direction and, where the paper prints one, a claimed size:
#
#     supported      its 95 % interval excludes 0 in the claimed direction
#     contradicted   it excludes 0 in the other direction
#     inconclusive   it contains 0, and so few seeds could not have shown the claimed effect (the smallest detectable
#                    one is larger; where the paper gives no size, larger than the smallest effect of interest); or the
#                    claimed effect lies inside the interval as well †; or n < 3 †
#     not supported  it contains 0, although the claimed effect would have been detected, and leaves that one out
#
# Several comparisons that must all hold (a monotone hierarchy, "best of six", "on every benchmark"), `all_hold`: each
# gets a two-sided p-value, Holm's correction is applied over the family, and "excludes 0" becomes "p ≤ 5 % after Holm".
#
#     supported      every comparison is shown in the claimed direction
#     contradicted   at least one is shown in the other direction
#     not supported  neither, and some comparison is open although its claimed effect would have been detected and lies
#                    outside its interval (of 1 - 5 %/m)
#     inconclusive   neither, and nothing that is open says so much
#
# Holm is stricter than "all" needs (without a correction a conjunction already errs in at most 5 %), and it is what
# "contradicted" needs, which one of many comparisons can bring about. Detection in a family of m is at 5 %/m.
#
# Differences that are the same number for every seed leave a t-test nothing to divide by, and scores that count a few
# hundred images do that by chance. There the p-value is that of flipping signs, 2^(1-n): six seeds are needed, for
# equivalence and bounds, too, whose interval would have no width.
#
# Equivalence ("saturates", "equal shares", "additive"), `equivalent`: two one-sided tests at 5 % against a stated margin,
# that is, the 90 % interval lies inside (-margin, margin).
#
#     supported      it does
#     contradicted   the 95 % interval lies outside the margin; of m equalities that must all hold, that of 5 %/m †
#     not supported  the 95 % interval excludes 0, so that there is a difference, of open size
#     inconclusive   otherwise
#
# Nothing equals nothing: where a claim says that parts are equal, or add up, the parts must be there. They are judged
# as "all hold", and the worse of the two verdicts counts (`together`).
#
# A bound ("the angle is small"), `below`: supported if the 95 % interval lies below it, contradicted if above
# (of m bounds, if that of 5 %/m is †).
#
# "Supported" speaks of the direction. Where the interval leaves the claimed size out on the lower side, the claim is
# marked as smaller than claimed.
#
# D13: an order whose relative spread ends below 1e-3 does nothing. A claim that it helps cannot be supported, however
# the scores fell: "not supported", and marked as inert. Nor can it be said to saturate †: what does nothing equals what
# is without it, and that is inconclusive.
#
# † Where no cell of a comparison is shown to be a point above chance, models are compared at what none of them can do:
# the effect is told, and counts as if it had no interval.

Verdict = Literal["supported", "contradicted", "not supported", "inconclusive", "not run"]
VERDICTS: tuple[Verdict, ...] = ("supported", "contradicted", "not supported", "inconclusive", "not run")
Unit = Literal["points", "points a step", "degrees", "number", "times"]

ALPHA = 0.05
# Where the paper prints no size, and as the margin of "no difference": what a reader would call a difference at all.
SMALLEST: Mapping[str, float] = {"points": 0.01, "points a step": 0.01, "degrees": 1.0, "number": 0.01, "times": 0.05}


@dataclass(frozen=True)
class Comparison:
    """An effect and what is claimed of it. `size` is in the effect's own unit (a point is 0.01), not negative."""

    effect: Effect
    direction: Literal[1, -1]
    size: float | None = None
    unit: Unit = "points"

    @property
    def wanted(self) -> float:
        """The effect that must have been detectable before its absence says anything."""
        return SMALLEST[self.unit] if self.size is None else self.size


def all_hold(family: Sequence[Comparison]) -> Verdict:
    """The verdict on a claim that says all of these; of a single one, the plain rule."""
    return decided(family)[0]


def decided(family: Sequence[Comparison]) -> tuple[Verdict, int | None]:
    """The verdict, and which of the comparisons brought it about: of several the weakest, seen from the claim."""
    if not family or any(part.effect.n == 0 for part in family):
        return "not run", None
    shown = [p <= ALPHA for p in holm([p_value(part.effect) for part in family])]
    ahead = [part.effect.mean * part.direction for part in family]
    groups: tuple[tuple[Verdict, list[int]], ...] = (
        ("contradicted", [at for at in range(len(family)) if shown[at] and ahead[at] <= 0]),
        ("not supported", [at for at in range(len(family)) if not shown[at] and _left_out(family[at], len(family))]),
        ("inconclusive", [at for at in range(len(family)) if not shown[at]]),
        ("supported", list(range(len(family)))),
    )
    verdict, deciding = next(group for group in groups if group[1])
    return verdict, min(deciding, key=lambda at: _strength(family[at]))


def _left_out(part: Comparison, family: int) -> bool:
    """Whether the claimed effect would have been detected, and is not what was found."""
    alpha = ALPHA / family
    smallest = detectable_at(part.effect, alpha)
    if smallest is None or smallest > part.wanted:
        return False
    low, high = interval(part.effect, 1 - alpha)
    return (high if part.direction > 0 else -low) < part.wanted


def _strength(part: Comparison) -> tuple[float, float]:
    """Surely the other way, undecided, surely as claimed; of equally sure ones by size."""
    ahead = part.direction * part.effect.mean
    return math.copysign(1 - p_value(part.effect), ahead), ahead


def smaller_than_claimed(part: Comparison) -> bool:
    """Whether the 95 % interval leaves the claimed size out on the lower side."""
    low, high = part.effect.low, part.effect.high
    if part.size is None or low is None or high is None or part.effect.constant:
        return False
    return (high if part.direction > 0 else -low) < part.size


def equivalent(effect: Effect, margin: float, family: int = 1) -> Verdict:
    """Of one of `family` parts that must all be equal: any of them can contradict, at 5 % over their number."""
    if effect.n == 0:
        return "not run"
    if effect.low is None or effect.high is None or not _has_interval(effect):
        return "inconclusive"
    low, high = interval(effect, 1 - 2 * ALPHA)
    if -margin < low and high < margin:
        return "supported"
    lowest, highest = interval(effect, 1 - ALPHA / family)
    if lowest >= margin or highest <= -margin:
        return "contradicted"
    return "not supported" if effect.shown else "inconclusive"


def below(level: Effect, bound: float, family: int = 1) -> Verdict:
    """Of a mean over seeds (an effect against zero), one of `family` that must all lie there."""
    if level.n == 0:
        return "not run"
    if level.low is None or level.high is None or not _has_interval(level):
        return "inconclusive"
    if level.high < bound:
        return "supported"
    return "contradicted" if interval(level, 1 - ALPHA / family)[0] > bound else "inconclusive"


def unless_inert(verdict: Verdict, inert: bool) -> Verdict:
    """D13: what does nothing cannot have helped."""
    return "not supported" if inert and verdict == "supported" else verdict


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Of parts that must all hold and were judged apart: the worst that is known of them."""
    for verdict in ("not run", "contradicted", "not supported", "inconclusive"):
        if verdict in verdicts:
            return verdict
    return "supported" if verdicts else "not run"


def level(values: Mapping[int, float]) -> Effect:
    """A mean over seeds, as an effect against zero."""
    return paired(dict.fromkeys(values, 0.0), values)


def p_value(effect: Effect) -> float:
    """Two-sided, of the paired t-test; 1 where there are too few seeds to say anything."""
    if effect.sd is None:
        return 1.0
    if effect.mean == 0:
        return 1.0
    if effect.constant:
        return 2.0 ** (1 - effect.n)
    return min(1.0, 2 * t_tail(abs(effect.mean) * math.sqrt(effect.n) / effect.sd, effect.n - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: the k-th smallest of m times (m - k + 1), never falling, at most 1."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def interval(effect: Effect, share: float) -> tuple[float, float]:
    """The t-interval of another level; n ≥ 3."""
    assert effect.sd is not None
    half = t_quantile(0.5 + share / 2, effect.n - 1) * effect.sd / math.sqrt(effect.n)
    return effect.mean - half, effect.mean + half


def detectable_at(effect: Effect, alpha: float) -> float | None:
    """The smallest true effect that n such pairs would show at a two-sided `alpha` in 80 % of studies; None where
    their spread does not tell."""
    if effect.sd is None:
        return None
    if effect.constant:  # nothing in every one of enough seeds: any effect would have been seen
        return 0.0 if effect.mean == 0 and 2.0 ** (1 - effect.n) <= alpha else None
    return detectable(effect.sd, effect.n, level=1 - alpha)


def _has_interval(effect: Effect) -> bool:
    """Whether the interval is worth something: several seeds, and if all agree to the last digit, enough of them."""
    if effect.sd is None:
        return False
    return not effect.constant or 2.0 ** (1 - effect.n) <= ALPHA
