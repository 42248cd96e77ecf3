"""Computes statistics over seeds, and applies the rules that turn effects into verdicts.

`summary` and `paired` give means with 95 % t-intervals. `all_hold`, `equivalent` and `below` judge a claim:

    supported      the interval excludes zero in the claimed direction
    contradicted   the interval excludes zero in the other direction
    not supported  the interval contains zero, although the claimed effect would have been detected and lies outside it
    inconclusive   the data cannot tell
    not run        a run is missing

The rules were written before any result was known, except those marked † below, which followed a first look at the
scenes study. The † rules can only withdraw "supported" or "contradicted".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from dinorankclip.extras import naming_extras

with naming_extras("a study"):
    from scipy import optimize, stats

LEVEL = 0.95
ALPHA = 0.05
POWER = 0.8
# Results are stored with seven digits, so equal differences of a few images can differ by this share of the mean.
NO_SPREAD = 1e-4
# Two seeds give an interval of ±12.7 standard errors, whose width is chance.
FEWEST_SEEDS = 3

Verdict = Literal["supported", "contradicted", "not supported", "inconclusive", "not run"]
VERDICTS: tuple[Verdict, ...] = ("supported", "contradicted", "not supported", "inconclusive", "not run")
Unit = Literal["points", "points a step", "degrees", "number", "times"]
# The smallest effect of interest: the claimed size where the paper prints none, and the margin of "no difference".
SMALLEST: Mapping[str, float] = {"points": 0.01, "points a step": 0.01, "degrees": 1.0, "number": 0.01, "times": 0.05}


@dataclass(frozen=True)
class Summary:
    """Holds a mean over n seeds with its t-interval. Fewer than FEWEST_SEEDS have no interval and no spread (None)."""

    mean: float
    low: float | None
    high: float | None
    sd: float | None
    n: int

    @property
    def half(self) -> float | None:
        """Return half the width of the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


@dataclass(frozen=True)
class Effect(Summary):
    """Holds the difference B - A over the seeds that both have.

    `detectable` is the true effect that n such pairs would show (two-sided, at 5 %) in 80 % of studies, given their
    spread; None where n < FEWEST_SEEDS.
    """

    detectable: float | None

    @property
    def shown(self) -> bool:
        """Return whether the interval excludes zero or, for equal differences, the sign test is significant (n ≥ 6)."""
        if self.low is None or self.high is None:
            return False
        if self.constant:
            return self.mean != 0 and sign_test(self.n) <= 1 - LEVEL
        return self.low > 0 or self.high < 0

    @property
    def constant(self) -> bool:
        """Return whether all seeds have the same difference: a t-interval without width says nothing."""
        return self.sd is not None and self.sd <= NO_SPREAD * abs(self.mean)


def summary(values: Mapping[int, float]) -> Summary:
    """Return mean and 95 % t-interval of one value a seed; without values the mean is NaN and n is 0."""
    array = np.array(list(values.values()), dtype=np.float64)
    n = len(array)
    mean = float(array.mean()) if n else math.nan
    if n < FEWEST_SEEDS:
        return Summary(mean, None, None, None, n)
    sd = float(array.std(ddof=1))
    return Summary(mean, *_interval(mean, sd, n, LEVEL), sd, n)


def paired(a: Mapping[int, float], b: Mapping[int, float]) -> Effect:
    """Return the difference B - A over the seeds that both have."""
    pairs = summary({seed: b[seed] - a[seed] for seed in sorted(a.keys() & b.keys())})
    smallest = None if pairs.sd is None else detectable(pairs.sd, pairs.n)
    return Effect(pairs.mean, pairs.low, pairs.high, pairs.sd, pairs.n, smallest)


def level(values: Mapping[int, float]) -> Effect:
    """Return a mean over seeds as an effect against zero."""
    return paired(dict.fromkeys(values, 0.0), values)


def interval(effect: Effect, share: float) -> tuple[float, float]:
    """Return the t-interval that covers `share`; needs n ≥ FEWEST_SEEDS."""
    assert effect.sd is not None
    return _interval(effect.mean, effect.sd, effect.n, share)


def _interval(mean: float, sd: float, n: int, share: float) -> tuple[float, float]:
    half = t_quantile(0.5 + share / 2, n - 1) * sd / math.sqrt(n)
    return mean - half, mean + half


def detectable(sd: float, n: int, power: float = POWER, level: float = LEVEL) -> float:
    """Return the smallest true effect that n pairs of this spread show in a share `power` of studies; n ≥ 3."""
    return noncentrality(n, power, level) * sd / math.sqrt(n)


def detectable_at(effect: Effect, alpha: float) -> float | None:
    """Return the smallest true effect that n such pairs would show at a two-sided `alpha` in 80 % of studies.

    None where the spread does not tell; 0 if enough seeds show no difference, since any effect would be detected.
    """
    if effect.sd is None:
        return None
    if effect.constant:
        return 0.0 if effect.mean == 0 and sign_test(effect.n) <= alpha else None
    return detectable(effect.sd, effect.n, level=1 - alpha)


def seeds_needed(sd: float, size: float, alpha: float = ALPHA) -> int:
    """Return the number of pairs of this spread that would show an effect of this size in 80 % of studies; at least
    FEWEST_SEEDS. Far above the number that is there the normal quantiles are exact enough."""
    normal = (stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(POWER)) ** 2 * (sd / size) ** 2
    if normal > 200:
        return math.ceil(normal)
    n = max(FEWEST_SEEDS, math.floor(normal))
    while detectable(sd, n, level=1 - alpha) > size:
        n += 1
    return n


@lru_cache(maxsize=256)
def noncentrality(n: int, power: float = POWER, level: float = LEVEL) -> float:
    """Return the δ for which |t| with n - 1 degrees of freedom exceeds its limit with probability `power`."""
    limit = t_quantile(0.5 + level / 2, n - 1)

    def excess(delta: float) -> float:
        return t_tail(limit, n - 1, delta) + t_tail(limit, n - 1, -delta) - power

    # With few degrees of freedom t spreads as widely as δ itself, so the bracket grows with the limit.
    return float(optimize.brentq(excess, 0.0, 2 * limit + 10, xtol=1e-12, rtol=1e-13))


@lru_cache(maxsize=256)
def t_quantile(share: float, freedom: int) -> float:
    """Return the value below which `share` of Student's t lies."""
    return float(stats.t.ppf(share, freedom))


def t_tail(limit: float, freedom: int, shift: float = 0.0) -> float:
    """Return P(T > limit) for Student's t with noncentrality `shift`."""
    return float(stats.nct.sf(limit, freedom, shift) if shift else stats.t.sf(limit, freedom))


def sign_test(n: int) -> float:
    """Return the two-sided p-value of n differences of the same sign."""
    return 2.0 ** (1 - n)


def p_value(effect: Effect) -> float:
    """Return the two-sided p-value of the paired t-test; 1 where there are too few seeds.

    Differences that are equal for every seed leave a t-test nothing to divide by, which happens by chance to scores
    that count a few hundred images. Such differences get the sign test, which needs six seeds.
    """
    if effect.sd is None or effect.mean == 0:
        return 1.0
    if effect.constant:
        return sign_test(effect.n)
    return min(1.0, 2 * t_tail(abs(effect.mean) * math.sqrt(effect.n) / effect.sd, effect.n - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values: the k-th smallest of m times (m - k + 1), never falling, at most 1."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = highest
    return adjusted


@dataclass(frozen=True)
class Comparison:
    """Holds an effect and the claim about it. `size` is in the effect's own unit (a point is 0.01) and not negative."""

    effect: Effect
    direction: Literal[1, -1]
    size: float | None = None
    unit: Unit = "points"

    @property
    def claimed(self) -> float:
        """Return the effect that must have been detectable before its absence means anything."""
        return SMALLEST[self.unit] if self.size is None else self.size


def all_hold(family: Sequence[Comparison]) -> Verdict:
    """Judge a claim that says all of these comparisons, such as a hierarchy or "best of six".

    Each comparison gets a two-sided p-value, and Holm's correction is applied over the family of m. "Shown" means
    p ≤ 5 % after Holm; detection is at 5 %/m. Holm is stricter than a conjunction needs, but "contradicted" needs it,
    since one of many comparisons can bring it about.

        supported      every comparison is shown in the claimed direction
        contradicted   at least one is shown in the other direction
        not supported  neither; for some open comparison the claimed effect would have been detected, and lies outside
                       its interval (of 1 - 5 %/m) †
        inconclusive   neither, and no open comparison says that much; or n < 3 †

    "Supported" concerns the direction; `smaller_than_claimed` compares the size.
    """
    return decided(family)[0]


def decided(family: Sequence[Comparison]) -> tuple[Verdict, int | None]:
    """Return the verdict and the index of the comparison that decided it: of several, the weakest for the claim."""
    if not family or any(part.effect.n == 0 for part in family):
        return "not run", None
    shown = [p <= ALPHA for p in holm([p_value(part.effect) for part in family])]
    ahead = [part.effect.mean * part.direction for part in family]
    groups: tuple[tuple[Verdict, list[int]], ...] = (
        ("contradicted", [at for at in range(len(family)) if shown[at] and ahead[at] <= 0]),
        ("not supported", [at for at in range(len(family)) if not shown[at] and _excluded(family[at], len(family))]),
        ("inconclusive", [at for at in range(len(family)) if not shown[at]]),
        ("supported", list(range(len(family)))),
    )
    verdict, deciding = next(group for group in groups if group[1])
    return verdict, min(deciding, key=lambda at: _strength(family[at]))


def _excluded(part: Comparison, family: int) -> bool:
    """Return whether the claimed effect would have been detected and lies outside the interval."""
    alpha = ALPHA / family
    smallest = detectable_at(part.effect, alpha)
    if smallest is None or smallest > part.claimed:
        return False
    low, high = interval(part.effect, 1 - alpha)
    return (high if part.direction > 0 else -low) < part.claimed


def _strength(part: Comparison) -> tuple[float, float]:
    """Rank from surely the other way to surely as claimed; equally sure comparisons by size."""
    ahead = part.direction * part.effect.mean
    return math.copysign(1 - p_value(part.effect), ahead), ahead


def smaller_than_claimed(part: Comparison) -> bool:
    """Return whether the 95 % interval lies below the claimed size."""
    low, high = part.effect.low, part.effect.high
    if part.size is None or low is None or high is None or part.effect.constant:
        return False
    return (high if part.direction > 0 else -low) < part.size


def equivalent(effect: Effect, margin: float, family: int = 1) -> Verdict:
    """Judge "equal", "saturates" or "additive" by two one-sided tests at 5 % against a margin.

        supported      the 90 % interval lies inside (-margin, margin)
        contradicted   the 95 % interval lies outside the margin; of m equalities that must all hold, that of 5 %/m †
        not supported  the 95 % interval excludes zero: there is a difference of unknown size
        inconclusive   otherwise

    Parts that are said to be equal, or to add up, must first be shown to exist: `together` joins both verdicts.
    """
    if effect.n == 0:
        return "not run"
    if not _has_interval(effect):
        return "inconclusive"
    low, high = interval(effect, 1 - 2 * ALPHA)
    if -margin < low and high < margin:
        return "supported"
    lowest, highest = interval(effect, 1 - ALPHA / family)
    if lowest >= margin or highest <= -margin:
        return "contradicted"
    return "not supported" if effect.shown else "inconclusive"


def below(level: Effect, bound: float, family: int = 1) -> Verdict:
    """Judge a bound on a mean over seeds: supported if the 95 % interval lies below it, contradicted if above.

    Of m bounds that must all hold, one contradicts at 5 %/m †.
    """
    if level.n == 0:
        return "not run"
    if level.high is None or not _has_interval(level):
        return "inconclusive"
    if level.high < bound:
        return "supported"
    return "contradicted" if interval(level, 1 - ALPHA / family)[0] > bound else "inconclusive"


def _has_interval(effect: Effect) -> bool:
    """Return whether the interval means anything: enough seeds, and six where all differences are equal."""
    if effect.sd is None or effect.low is None:
        return False
    return not effect.constant or sign_test(effect.n) <= ALPHA


def unless_inert(verdict: Verdict, inert: bool) -> Verdict:
    """Withdraw "supported" from an order whose relative spread ends below 1e-3: it cannot have helped (D13)."""
    return "not supported" if inert and verdict == "supported" else verdict


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the worst of verdicts on parts that must all hold and were judged separately."""
    for verdict in ("not run", "contradicted", "not supported", "inconclusive"):
        if verdict in verdicts:
            return verdict
    return "supported" if verdicts else "not run"
