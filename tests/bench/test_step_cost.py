"""Cost ratios: the interval of a median, ratios within rounds, sides of real cells."""

from itertools import count
from math import comb

import pytest

from bench.leagues_cells import World, read_leagues
from bench.step_cost import Ratio, as_markdown, cost_ratio, median_interval, ready_side
from dinorankclip.data.scenes.make import make_scenes
from dinorankclip.types import UserError


@pytest.mark.parametrize(("n", "k"), [(6, 1), (9, 2), (15, 4), (20, 6)])
def test_the_interval_of_a_median_covers_as_the_binomial_says(n, k):
    """The k-th smallest and largest: tables of the sign test have these k for 95 %."""
    values = [float(value) for value in range(1, n + 1)]
    assert median_interval(values) == (k, n + 1 - k)
    tail = sum(comb(n, j) for j in range(k)) / 2**n
    assert 2 * tail <= 0.05 < 2 * (tail + comb(n, k) / 2**n)


def test_too_few_rounds_give_the_range():
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)


def test_a_ratio_is_taken_within_rounds_so_that_slow_times_cancel():
    slow = count(1)  # each run of a side is slower than the run before it, for both alike
    found = cost_ratio(lambda: {"seconds": 3.0 * next(slow)}, lambda: {"seconds": 2.0 * next(slow)}, rounds=40)
    assert found.median == pytest.approx(1.5, rel=0.05) and found.low <= found.median <= found.high
    assert found.rounds == 40


def test_cells_with_and_without_a_teacher_take_steps(tmp_path):
    none = {"kinds_train": 0, "kinds_test": 0, "fine_train": 0, "fine_test": 0}
    data = make_scenes(tmp_path / "scenes", train=16, val=4, test=4, workers=1, **none)
    leagues, world = read_leagues(), World("drc-tiny", "scenes", {}, {})
    for name in ("clip", "trunk-student"):
        side = ready_side(leagues.group("league-b").cells[name], world, str(data), {"budget.batch": 8})
        assert side()["seconds"] > 0
    with pytest.raises(UserError, match="lit-96px reads cached features"):
        ready_side(leagues.group("league-b").cells["lit-96px"], world, str(data), {})
    twice = Ratio(1.2, 1.1, 1.3, 6, 0.1).over(0.5)
    assert (twice.median, twice.low, twice.high, twice.step) == (2.4, 2.2, 2.6, 0.1)
    text = as_markdown("drc-tiny", 8, {"league-b/clip": Ratio(1.25, 1.2, 1.3, 6, 0.1234)})
    assert text.splitlines()[-1] == "| league-b/clip | 0.1234 | 1.250 [1.200, 1.300] |"
