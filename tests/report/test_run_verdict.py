"""The judgement of a run: a model at chance is called that, a good model's share comes with interval and chance."""

import numpy as np
import pytest

from dinorankclip.evaluate.intervals import interval
from dinorankclip.evaluate.scores import Score
from dinorankclip.evaluate.scores_file import write_training_scores
from dinorankclip.report.run_findings import closing_findings, examine_run
from dinorankclip.report.run_verdict import (
    advice_at_chance,
    held_out_retrieval,
    how_made,
    judge,
    pairs_of_epoch,
    what_it_gave,
)
from dinorankclip.run_files import read_settings
from tests.report.test_run_findings import run_folder


def scored_run(folder, first, in_ten, photos=200, part="test", before=None, loss=3.0, **changes):
    """A run whose `photos` held-out photos, with two captions each, have these numbers of hits at 1 and at 10."""
    run = run_folder(folder, loss, **changes)
    scores, numbers = {}, {f"{part}/chance R@1": 1 / photos, f"{part}/images": float(photos)}
    for k, hits in ((1, first), (10, in_ten)):
        items = np.zeros(2 * photos)
        items[:hits] = 1.0
        name = f"{part}/t2i R@{k}"
        scores[name] = Score(name, items.mean(), 2 * photos, items=items, clusters=np.repeat(np.arange(photos), 2))
        numbers[name] = float(items.mean())
    stored = {"step": 300, "scores": numbers, "before": before or {}}
    write_training_scores(run, stored, scores)
    return run


def judged(run):
    return list(judge(run, read_settings(run)))


def test_a_model_at_chance_is_called_that(tmp_path):
    (found,) = judged(scored_run(tmp_path / "a", 2, 20, data="photos.csv"))  # 0.5 % and 5 % of 200 photos: guessing
    assert found.level == "problem" and found.what.startswith("the model is at chance: test: ")
    assert "0.5 % of cases" in found.what and "chance 0.5 %" in found.what
    assert "for 0.5 of 10 captions (chance 0.5)" in found.what


def test_a_model_hardly_above_chance_is_a_problem_too(tmp_path):
    (found,) = judged(scored_run(tmp_path / "a", 5, 60))  # R@10 three times chance, R@1 2.5 times
    assert found.level == "problem" and "hardly better than chance" in found.what


def test_a_good_model_has_its_interval_and_chance(tmp_path):
    run = scored_run(tmp_path / "a", 160, 320)
    (found,) = judged(run)
    low, high = interval(np.repeat([1.0, 0.0], [160, 240]), np.repeat(np.arange(200), 2))
    assert found.level == "fine" and "first among 200 in 40.0 % of cases" in found.what
    assert f"95 % interval {100 * low:.1f} to {100 * high:.1f}, chance 0.5 %" in found.what and 0.3 < low < 0.4 < high
    assert "for 8.0 of 10 captions (chance 0.5): it can search" in found.what
    assert f"dinorankclip search {run} --images" in found.advice
    assert found in list(examine_run(run)) and closing_findings(run)[0] == found
    assert all(other.level != "fine" for other in closing_findings(run)[1:])


@pytest.mark.parametrize(
    ("in_ten", "level", "words"), [(160, "fine", "browse"), (100, "note", "too little to rely on")]
)
def test_a_middling_model_is_not_praised(tmp_path, in_ten, level, words):
    (found,) = judged(scored_run(tmp_path / "a", 60, in_ten))
    assert found.level == level and words in found.what


def test_few_photos_tell_nothing(tmp_path):
    (found,) = judged(scored_run(tmp_path / "a", 1, 18, photos=16, part="val"))
    assert found.level == "note" and "16 photos are too few to tell" in found.what and "val: " in found.what


def test_fine_tuning_that_harms_is_a_problem(tmp_path):
    run = scored_run(tmp_path / "a", 100, 300, before={"test/t2i R@1": 0.5}, init="runs/first")
    worse = judged(run)[-1]
    assert worse.level == "problem" and "was 50.0 % before and is 25.0 %" in worse.what
    assert len(judged(scored_run(tmp_path / "b", 100, 300, before={"test/t2i R@1": 0.26}, init="runs/first"))) == 1


def test_the_advice_depends_on_how_the_run_was_made(tmp_path):
    reading = {"image_column": "file", "caption_column": "caption", "group_column": None, "train_items": None}
    scratch = scored_run(tmp_path / "scratch", 2, 20, data="my photos.csv", reading=reading)
    tuned = scored_run(tmp_path / "tuned", 2, 20, data="p.csv", init="runs/first")
    aligned = scored_run(tmp_path / "aligned", 2, 20, data="p.csv", recipe="aligned")
    advice = {run.name: advice_at_chance(run, read_settings(run)) for run in (scratch, tuned, aligned)}
    assert [how_made(read_settings(run)) for run in (scratch, tuned, aligned)] == ["scratch", "fine-tuned", "aligned"]
    command = f"dinorankclip train --recipe aligned --data 'my photos.csv' --reading.image-column file --run {scratch}"
    assert command in advice["scratch"] and "about 7,680 photos" in advice["scratch"]  # 30 steps of 256 an epoch
    assert "lower --optim.lr" in advice["tuned"] and "--recipe aligned" in advice["tuned"]
    assert "data check p.csv" in advice["aligned"] and "more pairs" in advice["aligned"]
    assert "--recipe aligned" not in advice["aligned"]
    stuck = scored_run(tmp_path / "stuck", 2, 20, loss=5.54, data="p.csv")
    assert any("stuck at ln B" in f.what and "--recipe aligned" in f.advice for f in examine_run(stuck))


def test_many_pairs_from_scratch_are_not_sent_away(tmp_path):
    run = scored_run(tmp_path / "a", 2, 20, data="shards", batch=8192)
    assert pairs_of_epoch(run, read_settings(run)) == pytest.approx(30 * 8192, rel=0.01)
    assert "--recipe aligned" not in advice_at_chance(run, read_settings(run))


def test_a_run_without_an_end_is_not_judged(tmp_path):
    run = run_folder(tmp_path / "a", 3.0)
    assert judged(run) == [] and held_out_retrieval(run) is None
    (run / "scores.json").write_text("{")
    (found,) = judged(run)
    assert found.level == "note" and "cannot be read" in found.what


def row(of, score, before, after, low, high, verdict):
    return {"of": of, "part": "val", "score": score, "before": before, "after": after, "low": low, "high": high,
            "n": 100, "verdict": verdict}  # fmt: skip


def test_what_fine_tuning_gave_is_said_of_the_scores_that_changed():
    none = "no difference shown"
    own = [row("own", "i2t R@1", 0.01, 0.0, -0.03, 0.0, none), row("own", "i2t R@10", 0.11, 0.2, 0.01, 0.16, "higher")]
    lost = [row("general", "i2t R@1", 0.53, 0.52, -0.02, 0.0, none)]
    lost += [row("general", "i2t R@10", 0.61, 0.59, -0.03, -0.005, "lower")]
    tune = {"tune": {"blend": True, "replay": "start", "lora_rank": 8}}
    found = what_it_gave(own + lost, tune)
    assert found.what.startswith("it learned your data and lost some of what it knew: on your val part i2t R@10 11.0")
    assert "general set i2t R@10 61.0" in found.what and found.advice == "try a smaller --tune.floor"
    assert what_it_gave(own[:1] + lost, {}).what.startswith("it shows no gain on your data and lost")
    assert what_it_gave(own[:1] + lost, {}).advice == "try --tune.replay DATA or --tune.blend"
    assert what_it_gave(own, tune).what.startswith("fine-tuning helped")
    for alpha, more in ((1.0, False), (0.3, True)):
        assert "hold out more photos, --reading.val-fraction: 100 show" in what_it_gave(own[:1], tune, alpha).advice
        assert ("larger --tune.floor" in what_it_gave(own[:1], tune, alpha).advice) == more
