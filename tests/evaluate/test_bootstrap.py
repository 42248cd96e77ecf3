import numpy as np
import pytest

from dinorankclip.evaluate.intervals import cluster_sums, interval, interval_of


def slow_means(values, clusters, weights, draws, seed):
    """Whole clusters drawn with replacement, one after another."""
    rng = np.random.default_rng(seed)
    members = [np.flatnonzero(clusters == label) for label in np.unique(clusters)]
    found = []
    for _ in range(draws):
        drawn = np.concatenate([members[c] for c in rng.integers(0, len(members), len(members))])
        found.append((values[drawn] * weights[drawn]).sum() / weights[drawn].sum())
    return np.array(found)


def clustered(seed=0, count=60, hits=False):
    """Clusters of one to five items that share a level."""
    rng = np.random.default_rng(seed)
    clusters = np.repeat(np.arange(count), rng.integers(1, 6, count))
    values = rng.normal(size=count)[clusters] + 0.3 * rng.normal(size=len(clusters))
    return (values > 0).astype(float) if hits else values, clusters, rng.uniform(0.5, 2, len(clusters))


@pytest.mark.parametrize("hits", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_clusters_are_drawn_whole(hits, weighted):
    values, clusters, weights = clustered(hits=hits)
    weights = weights if weighted else np.ones(len(values))
    slow = np.quantile(slow_means(values, clusters, weights, 4000, 1), [0.025, 0.975])
    width = slow[1] - slow[0]
    assert np.abs(interval(values, clusters, draws=4000, seed=2, weights=weights) - slow).max() < 0.06 * width


def test_clusters_that_look_alike_are_drawn_by_counts_with_the_same_spread():
    rng = np.random.default_rng(0)
    hits = (rng.random(3000) < 0.2).astype(float)
    by_counts = np.array(interval(hits, draws=4000))
    # A hair's breadth of difference keeps the clusters apart, so that they are drawn one by one.
    by_index = np.array(interval(hits + 1e-9 * rng.random(3000), draws=4000))
    assert np.abs(by_counts - by_index).max() < 0.06 * np.ptp(by_index)


def test_many_captions_of_few_images_widen_the_interval():
    per_image = np.random.default_rng(0).integers(0, 2, 200).astype(float)
    values, clusters = np.repeat(per_image, 25), np.repeat(np.arange(200), 25)
    ratio = np.ptp(interval(values, clusters)) / np.ptp(interval(values))
    assert ratio == pytest.approx(5, rel=0.1)  # √25: captions of one image say the same


def test_coverage_on_normal_data():
    rng = np.random.default_rng(0)
    covered = [low <= 0 <= high for low, high in (interval(rng.normal(size=80), draws=400, seed=s) for s in range(400))]
    assert 0.91 <= np.mean(covered) <= 0.98


def test_a_seed_fixes_the_interval_and_a_constant_has_none():
    values = np.random.default_rng(0).normal(size=500)
    assert interval(values, seed=3) == interval(values, seed=3) != interval(values, seed=4)
    assert interval(np.full(50, 0.25)) == (0.25, 0.25)
    low, high = interval(values, level=0.5)
    assert np.ptp(interval(values)) == pytest.approx(2.9 * (high - low), rel=0.15)  # 1.96 / 0.674


def test_weights_make_a_mean_per_class():
    labels, hits = np.array([0, 0, 0, 1]), np.array([1.0, 1.0, 1.0, 0.0])
    sums, sizes = cluster_sums(hits, weights=1 / np.bincount(labels)[labels])
    assert sums.sum() / sizes.sum() == pytest.approx(0.5)


def test_any_statistic_of_counts():
    values, clusters, _ = clustered(count=80)

    def mean_and_spread(counts):
        mean = counts @ values / counts.sum(1)
        return np.stack([mean, np.sqrt(counts @ values**2 / counts.sum(1) - mean**2)], 1)

    low, high = interval_of(mean_and_spread, len(values), clusters, draws=3000)
    plain = interval(values, clusters, draws=3000, seed=5)
    assert low[0] == pytest.approx(plain[0], abs=0.06 * np.ptp(plain))
    assert high[0] == pytest.approx(plain[1], abs=0.06 * np.ptp(plain))
    assert low[1] < values.std() < high[1]


def test_noise_does_not_push_an_interval_above_its_statistic():
    """The length of a mean of random vectors: every draw is longer than the sample's own, the interval is not."""
    rows = np.random.default_rng(0).normal(size=(60, 200)).astype(np.float32)

    def length(counts):
        return np.linalg.norm(counts @ rows / counts.sum(1, keepdims=True), axis=1)

    low, high = interval_of(length, 60)
    assert low < length(np.ones((1, 60), np.float32))[0] < high


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="shape"):
        interval(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="3 values but 2 clusters"):
        interval(np.zeros(3), np.zeros(2))
