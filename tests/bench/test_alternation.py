"""In which order sides run, and what is kept of it."""

from functools import partial

import pytest

from bench.harness import alternate, in_turn, ratio, timed, written


@pytest.fixture
def ran():
    return []


@pytest.fixture
def sides(ran):
    """Each says how many runs there have been, its own included."""

    def side(name):
        ran.append(name)
        return {"seconds": float(len(ran)), "bytes": 0.0}

    return {name: partial(side, name) for name in "ab"}


def test_rounds_run_forwards_and_backwards_by_turns_after_the_warm_up(sides, ran):
    times = alternate(sides, rounds=2, warmups=1)
    assert ran == ["a", "b", "b", "a", "a", "b"]
    assert times == {"a": [4.0, 5.0], "b": [3.0, 6.0]}


def test_one_way_no_side_follows_itself(sides, ran):
    found = in_turn(sides, rounds=2, warmups=0, there_and_back=False)
    assert ran == ["a", "b", "a", "b"]
    assert found["b"] == [{"seconds": 2.0, "bytes": 0.0}, {"seconds": 4.0, "bytes": 0.0}]


def test_a_side_of_this_process_is_timed_whenever_it_runs(ran):
    times = alternate({"a": timed(lambda: ran.append("a"))}, rounds=2)
    assert ran == ["a"] * 3 and len(times["a"]) == 2 and min(times["a"]) >= 0


def test_a_ratio_is_taken_round_by_round():
    found = ratio([4.0, 6.0, 5.0], [2.0, 2.0, 1.0])
    assert found == {"median": 3.0, "least": 2.0, "most": 5.0}
    assert written(found) == "3.00 (2.00–5.00)" and written(found, digits=1) == "3.0 (2.0–5.0)"
