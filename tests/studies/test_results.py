"""Records and results.json, chance levels, and near misses."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dinorankclip.config import as_dict
from dinorankclip.types import UserError
from dinorankclip_studies.claim import Contrast
from dinorankclip_studies.quantities import SCORES, Context, gain
from dinorankclip_studies.results import (
    Results,
    RunRecord,
    at_chance,
    chance_of,
    chances_of,
    near_miss_share,
    with_near_misses,
)
from dinorankclip_studies.study import Cell
from tests.studies.kinds import SCENES
from tests.studies.studying import tiny
from tests.studies.synthetic import record


def stored_run(cell: Cell, seed: int, scores, telemetry) -> RunRecord:
    settings = json.loads(json.dumps(as_dict(cell.settings(tiny().base, seed))))  # as a run's config.json gives them
    return RunRecord(cell.name, seed, "k", "cells/k", "r", settings, scores, telemetry, 1.5, 128, 8, {"model": 3})


def test_results_come_back_as_they_were(tmp_path):
    runs = (
        stored_run(Cell("clip", "clip"), 0, {"val/mean R@1": 0.25}, {"loss": 3.5}),
        stored_run(Cell("rank-2", "rank", {"loss.order": 2}), 0, {"val/mean R@1": 0.5, "a/b": -1.0}, {}),
        stored_run(Cell("rank-2", "rank", {"loss.order": 2}), 1, {"a/b": 2}, {"loss": 1.0, "λ": 0.125}),
    )
    tuned = {"clip": {"chosen": 1e-3, "tried": {"0.001": 0.2}}}
    Results("tiny", runs, tuned, "a title", {"a/b": 0.01}).save(tmp_path / "results.json")
    found = Results.load(tmp_path)
    assert (found.runs, found.tuned, found.title, found.chances) == (runs, tuned, "a title", {"a/b": 0.01})
    assert found.values("rank-2", "a/b") == {0: -1.0, 1: 2}
    assert found.values("rank-2", "val/mean R@1") == {0: 0.5}
    assert found.telemetry("clip", "loss") == {0: 3.5}
    assert found.of("nothing") == {}
    text = (tmp_path / "results.json").read_text()
    assert len(text.splitlines()) == 13 + 3  # a line a run
    (tmp_path / "results.json").write_text(text.replace("0.25", "0.26"))
    with pytest.raises(UserError, match=r"results\.json is damaged.*study status NAME writes it anew"):
        Results.load(tmp_path)


def test_cells_are_compared_on_the_seeds_that_all_have():
    clip, rank = Cell("clip", "clip"), Cell("rank-2", "rank", {"loss.order": 2})
    runs = [stored_run(clip, seed, {}, {}) for seed in (0, 1, 2)] + [
        stored_run(rank, seed, {}, {}) for seed in (1, 2, 5)
    ]
    found = Results("tiny", tuple(runs)).on_common_seeds(("clip", "rank-2", "not run"))
    assert [(run.cell, run.seed) for run in found.runs] == [("clip", 1), ("clip", 2), ("rank-2", 1), ("rank-2", 2)]
    assert len(Results("tiny", tuple(runs)).on_common_seeds(("clip",)).runs) == 3


def test_no_runs_are_results_too(tmp_path):
    Results("tiny", ()).save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json").cells() == ()


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


FIRST, TEN = SCENES.recall("t2i", 1), SCENES.recall("t2i", 10)


def items(folder, first, ten):
    folder.mkdir(parents=True)
    np.savez(folder / "scores_items.npz", **{FIRST: np.float32(first), TEN: np.float32(ten)})
    return folder


def test_only_captions_that_the_base_nearly_had_count(tmp_path):
    base = items(tmp_path / "base", [1, 0, 0, 0, 0], [1, 1, 1, 1, 0])
    ours = items(tmp_path / "ours", [1, 1, 0, 0, 1], [1, 1, 1, 1, 1])
    assert near_miss_share(base, ours, SCENES) == pytest.approx(1 / 3)


def test_without_items_or_such_captions_there_is_no_share(tmp_path):
    base = items(tmp_path / "base", [1, 0], [1, 0])
    assert near_miss_share(base, base, SCENES) is None
    assert near_miss_share(base, tmp_path / "elsewhere", SCENES) is None


def test_it_becomes_a_score_of_the_full_methods_run_of_the_same_seed(tmp_path):
    runs = []
    for cell, seed, first in (("clip", 0, [0, 0]), ("full", 0, [1, 0]), ("full", 1, [1, 1]), ("rank-3", 0, [1, 1])):
        runs.append(replace(record(cell, seed, {}), folder=f"cells/{cell}{seed}"))
        items(tmp_path / runs[-1].folder, first, [1, 1])
    found = with_near_misses(tmp_path, runs, SCENES, "clip", "full")
    assert [run.scores for run in found] == [{}, {SCENES.near_misses: 0.5}, {}, {}]
