"""Chance as the sets tell it, and the rule for scores that nobody masters: the one that claims are judged by."""

import json

import pytest

from dinorankclip_studies.claim import Contrast
from dinorankclip_studies.quantities import SCORES, Context, gain
from dinorankclip_studies.results import Results, at_chance, chance_of, chances_of
from tests.studies.kinds import SCENES
from tests.studies.synthetic import record

CHANCE = 1 / 129


def results(**values: list[float]) -> Results:
    runs = [record(cell, seed, {SCENES.top1: v}) for cell, found in values.items() for seed, v in enumerate(found)]
    return Results("full", tuple(runs))


def test_chances_are_read_from_the_runs(tmp_path):
    for name, of_errors in (("a", 0.04), ("b", 0.05)):
        scores = {"T@1": {"value": 0.3, "chance": 0.01}, "errors": {"value": 0.1, "chance": of_errors}}
        scores["without"] = {"value": 1}
        (tmp_path / name).mkdir()
        (tmp_path / name / "scores.json").write_text(json.dumps({"sets": {"kinds": {"scores": scores}}}))
    # Of errors it depends on which errors a model makes: there is no one value for a column.
    assert chances_of([tmp_path / "a", tmp_path / "b", tmp_path / "gone"]) == {"kinds/T@1": 0.01}


def test_measures_know_the_chance_of_means_over_sets():
    found = Results("full", (), chances={"scenes-pairs/mean R@1": 0.001})
    assert chance_of(found, "scenes-pairs/mean R@1") == 0.001
    assert chance_of(found, SCENES.shift) == pytest.approx(CHANCE) and chance_of(found, "no/such") is None


@pytest.mark.parametrize(
    ("clip", "full", "lost"),
    [
        ([0.010, 0.011, 0.012], [0.013, 0.014, 0.012], True),
        ([0.010, 0.011, 0.012], [0.040, 0.041, 0.042], False),
        ([0.010, 0.011, 0.012], [0.001, 0.040, 0.020], True),  # its mean is a point above, its interval is not
        ([0.010], [0.018], False),  # without an interval the mean counts
    ],
)
def test_at_chance_is_what_claims_are_judged_by(clip, full, lost):
    found = results(clip=clip, full=full)
    assert at_chance(found, ["clip", "full"], SCENES.top1) is lost
    contrast = Contrast("full - clip", gain("full", "clip", SCORES["T@1"].score))
    assert bool(contrast.at_chance(Context(found, SCENES))) is lost


def test_recalls_far_above_their_small_chance_are_not_at_chance():
    recall = SCENES.mean_r1
    runs = tuple(record("clip", seed, {recall: 0.009}) for seed in range(3))
    assert not at_chance(Results("full", runs, chances={recall: 0.001}), ["clip"], recall)


def test_what_has_not_run_is_not_at_chance():
    assert not at_chance(results(clip=[0.0]), ["full"], SCENES.top1) and not at_chance(results(), ["clip"], "no/such")
