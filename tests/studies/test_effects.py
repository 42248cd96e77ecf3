import math

import pytest

from dinorankclip_studies.verdicts import detectable, noncentrality, paired, summary, t_quantile, t_tail


@pytest.mark.parametrize(  # printed tables of Student's t
    ("freedom", "value"), [(1, 12.7062), (2, 4.3027), (7, 2.3646), (30, 2.0423)]
)
def test_quantiles_are_those_of_the_tables(freedom, value):
    assert t_quantile(0.975, freedom) == pytest.approx(value, abs=5e-5)


def test_interval_of_a_known_sample():
    found = summary({0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0})
    # sd = √(5/3), t(0.975, 3) = 3.1824: 2.5 ± 3.1824·1.29099/2
    assert (found.mean, found.n) == (2.5, 4)
    assert found.sd == pytest.approx(math.sqrt(5 / 3))
    assert (found.low, found.high) == pytest.approx((0.44574, 4.55426), abs=1e-4)


def test_fewer_than_three_values_have_no_interval_and_none_has_no_mean():
    for few, mean in (({3: 0.5}, 0.5), ({0: 0.25, 1: 0.75}, 0.5)):
        found = summary(few)
        assert (found.mean, found.low, found.high, found.sd, found.n) == (mean, None, None, None, len(few))
    assert summary({}).n == 0 and math.isnan(summary({}).mean)


def test_differences_are_paired_by_seed():
    a, b = {0: 1.0, 1: 5.0, 2: 9.0, 7: 0.0}, {0: 1.5, 1: 5.7, 2: 9.6, 8: 100.0}
    found = paired(a, b)
    assert found.n == 3
    assert found.mean == pytest.approx(0.6)
    assert found.sd == pytest.approx(0.1)
    assert found.low > 0 and found.shown
    assert paired(a, {0: 2.0}).detectable is None


def test_constant_differences_are_shown_by_six_seeds_only():
    for n, shown in ((3, False), (5, False), (6, True)):
        effect = paired(dict.fromkeys(range(n), 0.25), dict.fromkeys(range(n), 0.5))
        assert effect.constant and effect.sd == 0 and effect.shown == shown
    nothing = paired({0: 0.5, 1: 0.25, 2: 0.75}, {0: 0.5, 1: 0.25, 2: 0.75})
    assert nothing.constant and not nothing.shown


def test_differences_of_counts_that_were_kept_to_seven_digits_are_constant():
    # Two images of 670 more in every seed; rounding alone would make an interval of ±0.00001.
    counts = (51, 67, 83)
    before, after = ({seed: float(f"{(k + more) / 670:.7g}") for seed, k in enumerate(counts)} for more in (0, 2))
    effect = paired(before, after)
    assert effect.sd > 0 and effect.constant and not effect.shown


def test_power_of_an_effect_of_one_sd():
    # One-sample t, two-sided 5 %, d = 1, n = 10: power 0.803 (the usual tables); and with no effect just 5 %.
    limit, shift = t_quantile(0.975, 9), math.sqrt(10)
    assert t_tail(limit, 9, shift) + t_tail(limit, 9, -shift) == pytest.approx(0.8031, abs=2e-4)
    assert 2 * t_tail(limit, 9) == pytest.approx(0.05, abs=1e-9)


def test_the_detectable_effect_has_the_power_it_should(n=8):
    # n = 8 needs 1.156 sd (G*Power); twice the spread, twice the effect.
    assert detectable(1.0, 8) == pytest.approx(1.156, abs=1e-3)
    assert detectable(2.0, 8) == pytest.approx(2 * detectable(1.0, 8))


@pytest.mark.parametrize("n", [3, 4, 8])
@pytest.mark.parametrize("family", [1, 20, 100, 200])
def test_the_detectable_effect_has_the_power_it_should_in_large_families(n, family):
    """Holm's first step compares with 5 % over the number of claims."""
    level = 1 - 0.05 / family
    limit, shift = t_quantile(0.5 + level / 2, n - 1), noncentrality(n, level=level)
    assert t_tail(limit, n - 1, shift) + t_tail(limit, n - 1, -shift) == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize(  # closed forms: ½ - arctan(t)/π with one degree of freedom, ½ - t/(2√(2 + t²)) with two
    ("freedom", "exact"),
    [(1, lambda t: 0.5 - math.atan(t) / math.pi), (2, lambda t: 0.5 - t / (2 * math.sqrt(2 + t * t)))],
)
def test_tails_are_those_of_the_closed_forms(freedom, exact):
    for t in (0.0, 0.3, 1.0, 4.3, 12.7, 100.0):
        assert t_tail(t, freedom) == pytest.approx(exact(t), abs=1e-8)


def test_the_fewest_seeds_agree_with_a_simulation():
    import numpy as np

    draws = np.random.default_rng(0).normal(detectable(1.0, 3), 1.0, (400_000, 3))
    t = draws.mean(1) / (draws.std(1, ddof=1) / math.sqrt(3))
    assert (np.abs(t) > 4.3027).mean() == pytest.approx(0.8, abs=0.003)
