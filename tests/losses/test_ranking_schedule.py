"""Ramp and stages of the ranking loss, by hand."""

from itertools import pairwise

import pytest

from dinorankclip.losses.ranking import default_gate_l1
from dinorankclip.losses.ranking_schedule import active_orders, first_weighted_step, ranking_weight, stage_steps
from dinorankclip.types import Progress


def at(epoch, epochs, per_epoch=100):
    return Progress(round(epoch * per_epoch), epochs * per_epoch, epochs)


@pytest.mark.parametrize(
    "epoch, epochs, ramp, mu",
    [
        (0, 64, "rankclip", 0),
        (1, 64, "rankclip", 3 / 63),
        (1.99, 64, "rankclip", 3 / 63),  # whole epochs
        (21, 64, "rankclip", 1),
        (42, 64, "rankclip", 2),
        (63, 64, "rankclip", 2),
        (0, 64, "paper", 0),
        (1, 64, "paper", 2 / 63),
        (63, 64, "paper", 2),
        (1.5, 4, "rankclip", 1.5),  # short runs count steps
        (2, 4, "rankclip", 2),
        (0.5, 1, "rankclip", 1),  # a single epoch is linear
        (1, 1, "rankclip", 2),
        (0.5, 2, "rankclip", 1.5),
        (0.5, 2, "paper", 0.5),
    ],
)
def test_ramp(epoch, epochs, ramp, mu):
    assert ranking_weight(at(epoch, epochs), ramp) == pytest.approx(mu)


@pytest.mark.parametrize("ramp", ["rankclip", "paper"])
@pytest.mark.parametrize("epoch", [0.1, 0.4, 0.5, 0.9])
def test_a_little_longer_run_has_a_little_other_ramp(epoch, ramp):
    """Epochs may be any number: no jump at one epoch or at two."""
    lengths = [1 + k / 1000 for k in range(1501)]
    curve = [ranking_weight(Progress(round(epoch * 1e6), round(n * 1e6), n), ramp) for n in lengths]
    assert max(abs(a - b) for a, b in pairwise(curve)) < 0.01
    assert curve[0] == pytest.approx(2 * epoch)


def test_stages_of_the_papers_run_and_of_short_ones():
    assert stage_steps(5, at(0, 64)) == {2: 300, 3: 600, 4: 900, 5: 1200}
    assert stage_steps(3, at(0, 128)) == {2: 300, 3: 600}
    assert stage_steps(3, at(0, 32)) == {2: 150, 3: 300}
    assert stage_steps(5, Progress(0, 6, 1)) == {2: 1, 3: 2, 4: 3, 5: 4}  # at least a step apart


def test_no_order_begins_before_its_lists_have_weight():
    # 10 epochs of 31 steps: stages would begin at steps 15, 29, 44 and 58, but μ = 0 during the first epoch
    assert stage_steps(5, Progress(0, 310, 10)) == {2: 31, 3: 32, 4: 44, 5: 58}
    assert stage_steps(3, Progress(0, 48, 4), "paper") == {2: 5, 3: 6}  # μ > 0 from a third of an epoch on
    for epochs in (1, 1.5, 4, 10, 21, 64):
        for ramp in ("rankclip", "paper"):
            for step in range(200):
                here = Progress(step, 200, epochs)
                for staged in (True, False):
                    acting = active_orders(3, here, staged, ramp)
                    assert not acting or ranking_weight(here, ramp) > 0


def test_the_first_step_with_weight():
    assert first_weighted_step(Progress(7, 310, 10)) == 31
    assert first_weighted_step(Progress(7, 310, 4)) == 1
    assert first_weighted_step(Progress(0, 1, 1)) == 1  # a run of one step has none


def test_active_orders():
    assert active_orders(3, at(2.99, 64)) == ()
    assert active_orders(3, at(3, 64)) == (2,)
    assert active_orders(3, at(6, 64)) == (2, 3)
    assert active_orders(3, at(0.99, 64), staged=False) == ()  # μ = 0
    assert active_orders(3, at(1, 64), staged=False) == (2, 3)
    assert active_orders(1, at(60, 64)) == active_orders(0, at(60, 64)) == ()


def test_gate_l1_grows_tenfold_above_order_3():
    assert [default_gate_l1(r) for r in (2, 3, 4, 5)] == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1])
