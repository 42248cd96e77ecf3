"""Computes clustered bootstrap intervals of scores, and paired differences of two models on the same items.

All items of one image form a cluster and are drawn, or left out, together. Five captions of an image are not five
independent queries; drawing items alone would make intervals too narrow. The difference of two models is taken item by
item, which has a much smaller error than comparing two intervals.

Shapes: N items, C clusters, b draws of a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

NUMBERS_AT_ONCE = 1 << 21  # size of a block of draws: 16 MB of float64
ALIKE_SHARE = 16  # equal clusters are grouped if there are this many times fewer groups
POWER = 0.8  # probability that a difference of `Difference.detectable` is shown
ROUNDING = 2.0**-23  # rounding error of two sums in single precision, half a last digit each


def interval(
    values: np.ndarray,
    clusters: np.ndarray | None = None,
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
    weights: np.ndarray | None = None,
) -> tuple[float, float]:
    """Return (low, high) of the mean of `values` [N], or of the weighted mean Σ w·v / Σ w.

    `clusters` [N] are any labels; without them items are drawn one by one. Mean per class recall is the mean of hits
    weighted by 1 / (items of the class).

    As loops:
        for b in range(draws):
            drawn = [random cluster for _ in range(C)]
            means[b] = sum(w[i] * v[i] for c in drawn for i in c) / sum(w[i] for c in drawn for i in c)
        return quantile(means, (1 - level) / 2), quantile(means, (1 + level) / 2)
    """
    sums, sizes = cluster_sums(values, clusters, weights)
    means = np.concatenate(list(_drawn_means(sums, sizes, draws, np.random.default_rng(seed))))
    return _quantiles(means, level)


def interval_of(
    statistic: Callable[[np.ndarray], np.ndarray], n_items: int, clusters: np.ndarray | None = None, draws: int = 1000
) -> tuple[np.ndarray, np.ndarray]:
    """Return (low, high) at 95 % of any statistic that can be computed from how often each item was drawn.

    `statistic` gets counts, float32 [b, N], and returns [b] or, for several numbers at once, [b, …]; low and high have
    the shape of one draw. Draws are moved so that their mean is the statistic of all items: an angle or a distance
    between means grows with noise, and the draws carry the noise of the sample twice.
    """
    labels = np.arange(n_items) if clusters is None else np.unique(clusters, return_inverse=True)[1]
    whole = np.asarray(statistic(np.ones((1, n_items), np.float32)))[0]
    counts = _counts(labels.max() + 1, draws, np.random.default_rng(0))
    drawn = np.concatenate([np.asarray(statistic(block[:, labels])) for block in counts])
    return _quantiles(drawn - drawn.mean(0) + whole, level=0.95)


def cluster_sums(
    values: np.ndarray, clusters: np.ndarray | None = None, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return Σ w·v and Σ w of each cluster, float64 [C] both; the mean of all items is the ratio of their sums."""
    values = np.asarray(values, np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"expected one value an item, got shape {values.shape}")
    weights = np.ones(len(values)) if weights is None else np.asarray(weights, np.float64)
    if clusters is None:
        return values * weights, weights
    labels = np.unique(np.asarray(clusters), return_inverse=True)[1]
    if len(labels) != len(values):
        raise ValueError(f"{len(values)} values but {len(labels)} clusters")
    return np.bincount(labels, values * weights), np.bincount(labels, weights)


def _drawn_means(sums: np.ndarray, sizes: np.ndarray, draws: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield blocks of Σ sums / Σ sizes over as many clusters as there are, drawn with replacement."""
    pairs, members = np.unique(np.stack([sums, sizes], 1), axis=0, return_counts=True)
    if len(pairs) * ALIKE_SHARE <= len(sums):
        # Hits and misses give few distinct clusters. Drawing the counts as a multinomial is exact and fast.
        drawn = rng.multinomial(len(sums), members / len(sums), draws) @ pairs
        yield drawn[:, 0] / drawn[:, 1]
        return
    alike = np.ptp(sizes) == 0
    for block in _blocks(draws, len(sums)):
        chosen = rng.integers(0, len(sums), (block, len(sums)), dtype=np.int32)
        above = np.take(sums, chosen).sum(1)
        yield above / (sizes[0] * len(sums) if alike else np.take(sizes, chosen).sum(1))


def _counts(n: int, draws: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield blocks of counts: how often each of n items occurs in n draws with replacement, float32 [b, n]."""
    for block in _blocks(draws, n):
        chosen = rng.integers(0, n, (block, n)) + np.arange(block)[:, None] * n
        yield np.bincount(chosen.ravel(), minlength=block * n).reshape(block, n).astype(np.float32)


def _blocks(draws: int, width: int) -> list[int]:
    most = max(1, NUMBERS_AT_ONCE // width)
    return [min(most, draws - start) for start in range(0, draws, most)]


def _quantiles(draws: np.ndarray, level: float):
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return (float(low), float(high)) if draws.ndim == 1 else (low, high)


@dataclass(frozen=True)
class Difference:
    """Holds the `mean` of b - a with its interval, and `p` of a sign-flip test that there is no difference.
    `detectable` is the smallest true difference that these items would show (interval without 0) in 80 % of samples."""

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
        """Tell if b is higher or lower than a, where interval and test agree. Five hits more and none lost look certain
        to a bootstrap, which draws only from the sample, but five coins fall alike once in sixteen times."""
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
    """Return the paired difference b - a of two models' contributions [N] to one score, items in the same order.

    If the models were alike, the score of either on an image could as well be the other's. So for `p` the signs of
    whole clusters are flipped at random:

        p = (1 + #{ |Σ ±s_c| ≥ |Σ s_c| }) / (1 + draws),   s_c = Σ of w·(b - a) over cluster c
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.shape != b.shape:
        raise ValueError(f"{a.shape} against {b.shape}: the items are not the same")
    sums, sizes = cluster_sums(b - a, clusters, weights)
    sizes_of_items, _ = cluster_sums(np.abs(a) + np.abs(b), clusters, weights)
    low, high = interval(b - a, clusters, level, draws, seed, weights)
    p = _sign_flips(sums, ROUNDING * float(sizes_of_items.sum()), draws, np.random.default_rng(seed))
    reach = NormalDist().inv_cdf((1 + level) / 2) + NormalDist().inv_cdf(POWER)
    detectable = reach * _standard_error(sums, sizes)
    return Difference(float(sums.sum() / sizes.sum()), low, high, len(a), len(sums), p, detectable, level)


def fewest_draws(level: float) -> int:
    """Return the fewest draws with which p can fall to 1 - level, so that a difference can be shown."""
    return math.ceil(1 / (1 - level) - 1e-9) - 1


def _standard_error(sums: np.ndarray, sizes: np.ndarray) -> float:
    """Return the linearised standard error of a ratio of sums over independent clusters; infinite for one cluster."""
    count = len(sums)
    if count < 2:
        return float("inf")
    residual = sums - sums.sum() / sizes.sum() * sizes
    return float(np.sqrt(count / (count - 1) * (residual**2).sum()) / sizes.sum())


def _sign_flips(sums: np.ndarray, slack: float, draws: int, rng: np.random.Generator) -> float:
    """Return the p-value of the sum against random signs. Clusters with equal absolute sums share a binomial draw.
    Sums that are equal in theory may differ by `slack`, since items are stored in single precision."""
    sizes, members = np.unique(np.abs(sums[sums != 0]), return_counts=True)
    if not len(sizes):
        return 1.0
    reached, bar = 0, abs(sums.sum()) - slack
    for block in _blocks(draws, len(sizes)):
        positive = rng.binomial(members, 0.5, (block, len(sizes)))
        reached += int((np.abs((2 * positive - members) @ sizes) >= bar).sum())
    return (1 + reached) / (1 + draws)
