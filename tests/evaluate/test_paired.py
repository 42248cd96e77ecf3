import itertools

import numpy as np
import pytest

from dinorankclip.evaluate.intervals import compare, fewest_draws


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
