"""Intervals, detectable effects, and the rules that turn effects into verdicts."""

import math

import pytest

from dinorankclip_studies.verdicts import (
    Comparison,
    all_hold,
    below,
    decided,
    detectable,
    detectable_at,
    equivalent,
    holm,
    interval,
    level,
    noncentrality,
    p_value,
    paired,
    seeds_needed,
    smaller_than_claimed,
    summary,
    t_quantile,
    t_tail,
    together,
    unless_inert,
)


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


def effect(mean: float, sd: float, n: int = 8):
    """Values with exactly this mean and standard deviation."""
    pattern = [(-1) ** seed for seed in range(n)]
    centre = sum(pattern) / n
    spread = math.sqrt(sum((value - centre) ** 2 for value in pattern) / (n - 1)) if n > 1 else 1.0
    return level({seed: mean + sd * (value - centre) / spread for seed, value in enumerate(pattern)})


def one(comparison: Comparison):
    return all_hold([comparison])


def test_the_constructed_effects_are_what_they_say():
    found = effect(0.02, 0.01, 8)
    assert (found.mean, found.sd, found.n) == pytest.approx((0.02, 0.01, 8))
    # t(0.975, 7) = 2.364624; half width 2.364624 · 0.01/√8
    assert (found.low, found.high) == pytest.approx((0.02 - 0.0083602, 0.02 + 0.0083602), abs=1e-6)


@pytest.mark.parametrize(
    ("mean", "sd", "size", "verdict"),
    [
        (0.02, 0.01, 0.01, "supported"),
        (-0.02, 0.01, 0.01, "contradicted"),
        (0.002, 0.01, 0.02, "not supported"),  # 0.0116 would have been detected
        (0.002, 0.01, 0.01, "inconclusive"),
        (0.002, 0.01, None, "inconclusive"),  # a point is asked for
        (0.002, 0.005, None, "not supported"),
        (0.0, 0.0, 0.01, "not supported"),  # exactly nothing, every time
        (0.01, 0.0, 0.01, "supported"),
    ],
)
def test_one_comparison(mean, sd, size, verdict):
    assert one(Comparison(effect(mean, sd), 1, size)) == verdict


@pytest.mark.parametrize(("n", "verdict"), [(3, "inconclusive"), (6, "not supported")])
def test_no_difference_in_any_seed_needs_six_of_them(n, verdict):
    assert one(Comparison(level(dict.fromkeys(range(n), 0.0)), 1, 0.01)) == verdict


def test_a_claimed_size_inside_the_interval_is_not_refuted():
    # Three seeds that happen to lie close; at 1.25 % the interval is [-0.0019, 0.0159].
    near = effect(0.007, 0.00173, 3)
    others = [effect(0.001, 0.02, 3)] * 3
    assert detectable_at(near, 0.0125) == pytest.approx(0.0113, abs=1e-4)
    assert all_hold([Comparison(near, 1, 0.0155), *(Comparison(other, 1, 0.01) for other in others)]) == "inconclusive"
    assert all_hold([Comparison(near, 1, 0.0170), *(Comparison(other, 1, 0.01) for other in others)]) == "not supported"


def test_the_deciding_comparison_is_named():
    shown, open_, far, against = effect(0.02, 0.01), effect(0.0, 0.05), effect(0.0, 0.005), effect(-0.02, 0.01)
    compared = {name: Comparison(value, 1, 0.01) for name, value in
                {"shown": shown, "open": open_, "far": far, "against": against}.items()}  # fmt: skip

    def by(*names: str):
        verdict, deciding = decided([compared[name] for name in names])
        return verdict, names[deciding]

    assert by("shown") == ("supported", "shown")
    assert by("shown", "open") == ("inconclusive", "open")
    assert by("open", "far", "shown") == ("not supported", "far")
    assert by("open", "against", "far") == ("contradicted", "against")


def test_supported_may_be_smaller_than_claimed():
    assert smaller_than_claimed(Comparison(effect(0.0139, 0.0124), 1, 0.031))
    assert not smaller_than_claimed(Comparison(effect(0.0139, 0.0124), 1, 0.02))
    assert not smaller_than_claimed(Comparison(effect(0.0139, 0.0124), 1))
    assert smaller_than_claimed(Comparison(effect(-0.5, 0.1), -1, 1.4, "degrees"))


def test_the_claimed_direction_may_be_down():
    assert one(Comparison(effect(-2.0, 0.5), -1, 1.4, "degrees")) == "supported"
    assert one(Comparison(effect(2.0, 0.5), -1, 1.4, "degrees")) == "contradicted"


@pytest.mark.parametrize(("n", "verdict"), [(3, "inconclusive"), (6, "supported")])
def test_the_same_difference_for_every_seed_needs_six_of_them(n, verdict):
    # Scores that count images repeat by chance. Of n signs, all are alike in 2^(1-n) of cases.
    same = level({seed: (0.31 + 0.01 * seed) - (0.30 + 0.01 * seed) for seed in range(n)})
    assert p_value(same) == 2.0 ** (1 - n)
    assert one(Comparison(same, 1, 0.01)) == verdict
    assert one(Comparison(same, -1, 0.01)) == ("contradicted" if verdict == "supported" else verdict)
    assert detectable_at(same, 0.05) is None


def test_differences_without_any_spread_need_six_seeds_for_equivalence_too():
    assert p_value(level(dict.fromkeys(range(3), 0.0))) == 1.0
    for same in (0.0, 0.005):
        assert equivalent(level(dict.fromkeys(range(3), same)), 0.01) == "inconclusive"
        assert equivalent(level(dict.fromkeys(range(6), same)), 0.01) == "supported"
        assert below(level(dict.fromkeys(range(3), same)), 0.01) == "inconclusive"
        assert below(level(dict.fromkeys(range(6), same)), 0.01) == "supported"


def test_one_seed_or_none_decides_nothing():
    assert one(Comparison(effect(1.0, 0.0, 1), 1, 0.01)) == "inconclusive"
    assert one(Comparison(paired({0: 1.0}, {1: 2.0}), 1, 0.01)) == "not run"
    assert equivalent(effect(0.0, 0.0, 1), 0.01) == "inconclusive"
    assert below(effect(0.0, 0.0, 1), 0.01) == "inconclusive"
    assert all_hold([]) == "not run"
    assert equivalent(level({}), 1.0) == below(level({}), 1.0) == "not run"


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_p_value_of_a_t_test():
    # Differences 1, 0.5, 1.2: t = 4.32346, p = 0.0495550 (scipy.stats.ttest_1samp)
    assert p_value(level({0: 1.0, 1: 0.5, 2: 1.2})) == pytest.approx(0.0495550, abs=1e-6)


def test_a_family_needs_all_and_is_corrected():
    strong, weak = effect(0.02, 0.01), effect(0.011, 0.0115)
    assert p_value(weak) == pytest.approx(0.0308, abs=5e-4)
    assert all_hold([Comparison(weak, 1, 0.01)]) == "supported"
    # The same comparison twice: p doubles to 0.06.
    assert all_hold([Comparison(weak, 1, 0.01), Comparison(weak, 1, 0.01)]) == "inconclusive"
    assert all_hold([Comparison(strong, 1, 0.01)] * 4) == "supported"


def test_one_link_the_other_way_contradicts_a_hierarchy():
    up, down = Comparison(effect(0.02, 0.01), 1, 0.01), Comparison(effect(-0.03, 0.01), 1, 0.01)
    assert all_hold([up, up, down]) == "contradicted"


def test_one_link_that_is_surely_absent_fails_a_hierarchy():
    up, absent = Comparison(effect(0.02, 0.01), 1, 0.01), Comparison(effect(0.0, 0.001), 1, 0.01)
    blurred = Comparison(effect(0.0, 0.05), 1, 0.01)
    assert all_hold([up, absent]) == "not supported"
    assert all_hold([up, blurred]) == "inconclusive"
    assert all_hold([up, absent, blurred]) == "not supported"


def test_a_family_can_detect_less():
    found = effect(0.0, 0.01)
    assert detectable_at(found, 0.05) == pytest.approx(detectable(0.01, 8))
    assert detectable_at(found, 0.05 / 6) > 1.2 * detectable_at(found, 0.05)
    # Detectable alone (0.0116), not among six.
    assert one(Comparison(found, 1, 0.013)) == "not supported"
    assert all_hold([Comparison(found, 1, 0.013)] * 6) == "inconclusive"


@pytest.mark.parametrize(
    ("mean", "sd", "verdict"),
    [
        (0.001, 0.005, "supported"),
        (0.03, 0.005, "contradicted"),
        (-0.03, 0.005, "contradicted"),
        (0.009, 0.005, "not supported"),  # a difference, and perhaps within the margin
        (0.0, 0.03, "inconclusive"),
    ],
)
def test_equivalence_within_a_point(mean, sd, verdict):
    assert equivalent(effect(mean, sd), 0.01) == verdict


def test_equivalence_uses_the_90_percent_interval():
    found = effect(0.0, 0.014)
    low, high = interval(found, 0.9)
    assert found.high > 0.01 > high and low > -0.01
    assert equivalent(found, 0.01) == "supported"


def test_a_bound():
    assert below(effect(5.0, 1.0), 10.0) == "supported"
    assert below(effect(15.0, 1.0), 10.0) == "contradicted"
    assert below(effect(9.8, 1.0), 10.0) == "inconclusive"


def test_one_of_several_bounds_or_equalities_contradicts_at_a_share_of_the_level():
    near = effect(10.9, 1.0)  # its 95 % interval is above 10, that of 99 % is not
    assert interval(near, 0.95)[0] > 10.0 > interval(near, 0.99)[0]
    assert (below(near, 10.0), below(near, 10.0, family=5)) == ("contradicted", "inconclusive")
    shifted = effect(1.9, 1.0)
    assert (equivalent(shifted, 1.0), equivalent(shifted, 1.0, family=5)) == ("contradicted", "not supported")


def test_an_inert_order_has_not_helped():
    assert unless_inert("supported", inert=True) == "not supported"
    assert unless_inert("supported", inert=False) == "supported"
    assert unless_inert("contradicted", inert=True) == "contradicted"


def test_parts_judged_apart():
    assert together(["supported", "inconclusive", "contradicted"]) == "contradicted"
    assert together(["supported", "not run", "contradicted"]) == "not run"
    assert together(["supported", "supported"]) == "supported"
    assert together([]) == "not run"


def test_the_number_of_seeds_that_would_show_an_effect():
    """One seed fewer would not show it; far out the normal quantiles say the same."""
    for size in (2.0, 1.0, 0.5, 0.25):
        n = seeds_needed(1.0, size)
        assert detectable(1.0, n) <= size and (n == 3 or detectable(1.0, n - 1) > size)
    assert seeds_needed(1.0, 0.5) == 34  # (1.96 + 0.84)² · 4 = 31.4 by the normal distribution
    assert seeds_needed(2.0, 0.02) == math.ceil((1.959964 + 0.841621) ** 2 * 100**2)
    assert seeds_needed(0.01, 1.0) == 3 and seeds_needed(1.0, 1.0, alpha=0.01) > seeds_needed(1.0, 1.0)
