"""Two models on the same items: the difference item by item, which is far surer than two intervals side by side.

Shapes: N items, C clusters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from dinorankclip.scoring.bootstrap import cluster_sums, interval

FLIPS_AT_ONCE = 1 << 22
POWER = 0.8
KEPT_DIGITS = 2.0**-23  # half a last digit of single precision, twice: either of two sums may be off


@dataclass(frozen=True)
class Difference:
    """`mean` of b - a with its interval; `p` of a sign-flip test that there is none.

    `detectable`: the smallest true difference that these items would show (interval free of 0) in 80 % of samples.
    """

    mean: float
    low: float
    high: float
    n: int
    clusters: int
    p: float
    detectable: float
    level: float

    @property
    def verdict(self) -> str:
        """What b is, beside a. Interval and test must agree: five hits more and none lost look sure to a bootstrap,
        which can only draw what it has seen, while five coins fall alike once in sixteen times."""
        if self.low <= 0 <= self.high or self.p > (1 - self.level) * (1 + 1e-9):
            return "no difference shown"
        return "higher" if self.low > 0 else "lower"


def compare(
    a: np.ndarray,
    b: np.ndarray,
    clusters: np.ndarray | None = None,
    *,
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
    weights: np.ndarray | None = None,
) -> Difference:
    """The paired difference b - a of two models' contributions [N] to one score, items in the same order.

    `p`: if the models were alike, what either scored on an image could as well be the other's. So the signs of whole
    clusters are flipped at random:

        p = (1 + #{ |Σ ±s_c| ≥ |Σ s_c| }) / (1 + draws),   s_c = Σ of w·(b - a) over cluster c
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.shape != b.shape:
        raise ValueError(f"{a.shape} against {b.shape}: the items are not the same")
    sums, sizes = cluster_sums(b - a, clusters, weights)
    held, _ = cluster_sums(np.abs(a) + np.abs(b), clusters, weights)
    mean = sums.sum() / sizes.sum()
    low, high = interval(b - a, clusters, level, draws, seed, weights)
    normal = NormalDist()
    reach = normal.inv_cdf((1 + level) / 2) + normal.inv_cdf(POWER)
    return Difference(
        mean=float(mean),
        low=low,
        high=high,
        n=len(a),
        clusters=len(sums),
        p=_sign_flips(sums, KEPT_DIGITS * float(held.sum()), draws, np.random.default_rng(seed)),
        detectable=reach * _standard_error(sums, sizes),
        level=level,
    )


def fewest_draws(level: float) -> int:
    """With fewer, p cannot fall to 1 - level, and no difference could be shown."""
    return math.ceil(1 / (1 - level) - 1e-9) - 1


def _standard_error(sums: np.ndarray, sizes: np.ndarray) -> float:
    """Of a ratio of sums over independent clusters (linearised); infinite for one cluster, which shows nothing."""
    count = len(sums)
    if count < 2:
        return float("inf")
    residual = sums - sums.sum() / sizes.sum() * sizes
    return float(np.sqrt(count / (count - 1) * (residual**2).sum()) / sizes.sum())


def _sign_flips(sums: np.ndarray, slack: float, draws: int, rng: np.random.Generator) -> float:
    """p of the sum against random signs. Clusters of the same size of difference share one binomial draw.

    `slack`: sums that are equal on paper differ by as much, since items are kept in single precision."""
    sizes, members = np.unique(np.abs(sums[sums != 0]), return_counts=True)
    if not len(sizes):
        return 1.0
    reached = 0
    bar = abs(sums.sum()) - slack
    most = max(1, FLIPS_AT_ONCE // len(sizes))
    for start in range(0, draws, most):
        positive = rng.binomial(members, 0.5, (min(most, draws - start), len(sizes)))
        reached += int((np.abs((2 * positive - members) @ sizes) >= bar).sum())
    return (1 + reached) / (1 + draws)
