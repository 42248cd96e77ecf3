"""Bootstrap intervals and paired differences against loops and known cases."""

import itertools

import numpy as np
import pytest

from dinorankclip.evaluate.intervals import cluster_sums, compare, fewest_draws, interval, interval_of


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


def hits(seed, rate, count=2000):
    return (np.random.default_rng(seed).random(count) < rate).astype(float)


def test_a_model_beside_itself_differs_by_exactly_nothing():
    found = compare(hits(0, 0.3), hits(0, 0.3), np.repeat(np.arange(400), 5))
    assert (found.mean, found.low, found.high, found.p) == (0, 0, 0, 1)
    assert (found.n, found.clusters, found.verdict) == (2000, 400, "no difference shown")


def test_a_known_shift_is_found_where_two_intervals_would_overlap():
    easy = np.random.default_rng(0).random(2000)  # both models find the same items easy
    a, b = (easy < 0.30).astype(float), (easy < 0.32).astype(float)
    found = compare(a, b)
    assert found.mean == pytest.approx(b.mean() - a.mean()) and found.verdict == "higher"
    assert found.low > 0 and found.p < 0.01
    assert found.low < 0.02 < found.high
    assert compare(b, a).verdict == "lower"
    # Unpaired, such a difference is lost: the same rates on items that have nothing in common.
    assert compare(a, np.random.default_rng(1).permutation(b)).verdict == "no difference shown"


def test_a_few_hits_more_and_none_lost_are_not_enough():
    b = np.zeros(1000)
    b[:5] = 1
    found = compare(np.zeros(1000), b)
    assert found.low > 0 and found.p > 0.05 and found.verdict == "no difference shown"
    b[:12] = 1
    assert compare(np.zeros(1000), b).verdict == "higher"


def test_p_is_that_of_all_sign_flips():
    sums = np.array([0.5, 1.0, -0.25, 2.0, 0.75, 1.5, -0.5, 1.0])
    signs = np.array(list(itertools.product((-1, 1), repeat=8)))
    exact = (np.abs(signs @ sums) >= abs(sums.sum()) - 1e-12).mean()
    assert compare(np.zeros(8), sums, draws=20_000).p == pytest.approx(exact, abs=0.01)


def test_p_is_uniform_without_a_difference():
    rng = np.random.default_rng(0)
    small = [compare(rng.normal(size=60), rng.normal(size=60), draws=200, seed=s).p < 0.1 for s in range(400)]
    assert 0.06 <= np.mean(small) <= 0.14


def test_what_is_called_detectable_is_detected_four_times_in_five():
    rng = np.random.default_rng(0)
    effect = compare(np.zeros(100), rng.normal(size=100)).detectable
    assert effect == pytest.approx(2.8 / 10, rel=0.2)  # (1.96 + 0.84) / √100
    found = [compare(np.zeros(100), rng.normal(0.28, 1, 100), draws=300, seed=s).verdict for s in range(300)]
    assert 0.73 <= np.mean([word == "higher" for word in found]) <= 0.87


def test_clusters_count_not_items():
    a, b = np.zeros(40), np.ones(40)
    assert compare(a, b, np.zeros(40)).detectable == np.inf  # one image shows nothing
    per_image = np.random.default_rng(0).normal(size=50)
    one, many = compare(np.zeros(50), per_image), compare(np.zeros(500), per_image.repeat(10), np.arange(50).repeat(10))
    assert many.detectable == pytest.approx(one.detectable)
    assert many.p == pytest.approx(one.p, abs=0.05)


def test_other_items_are_refused():
    with pytest.raises(ValueError, match="not the same"):
        compare(np.zeros(3), np.zeros(4))


def test_items_kept_in_single_precision_have_the_p_of_exact_ones():
    """Sums of tenths and of hundredths tie often, and in single precision only nearly."""
    for parts, seed in itertools.product((10, 100), range(12)):
        rng = np.random.default_rng(seed)
        a = rng.integers(0, parts + 1, 400)
        b = np.where(np.arange(400) < 394, a, rng.integers(0, parts + 1, 400))  # six images differ: many ties
        want = compare(a, b, draws=20_000).p
        kept = compare((a / parts).astype(np.float32), (b / parts).astype(np.float32), draws=20_000).p
        assert kept == pytest.approx(want, abs=0.015), (parts, seed)


def test_so_many_draws_are_needed_for_a_level():
    assert [fewest_draws(level) for level in (0.95, 0.99, 0.9995)] == [19, 99, 1999]
    sure = compare(np.zeros(200), np.ones(200), level=0.9995, draws=1999)
    assert sure.verdict == "higher"
    assert compare(np.zeros(200), np.ones(200), level=0.9995, draws=1998).verdict == "no difference shown"
