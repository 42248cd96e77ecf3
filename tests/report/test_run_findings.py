"""Findings on a run: learning, schedule, end and checkpoints."""

import json
import math
from types import SimpleNamespace

import pytest

from dinorankclip.config import TrainSettings, as_dict
from dinorankclip.report.run_findings import examine_run
from dinorankclip.train.checkpoints import STOPPED, Ending, ending_noted, note_ending, read_ending
from dinorankclip.types import UserError


def run_folder(folder, loss, steps=300, batch=256, **changes):
    settings = as_dict(TrainSettings()) | changes
    settings["budget"] = settings["budget"] | {"epochs": 10, "batch": batch}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    lines = [
        {"step": s, "loss": loss, "loss/contrastive": loss, "epoch": 10 * (s - 1) / steps}
        for s in range(10, steps + 1, 10)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_loss_stuck_at_guessing_is_found(tmp_path):
    stuck = [f for f in examine_run(run_folder(tmp_path / "a", math.log(256))) if "stuck at ln B" in f.what]
    assert stuck and stuck[0].level == "problem" and "--optim.lr" in stuck[0].advice
    assert not [f for f in examine_run(run_folder(tmp_path / "b", 3.0)) if "stuck" in f.what]


def test_a_loss_above_guessing_is_noted_before_it_is_called_stuck(tmp_path):
    (found,) = [f for f in examine_run(run_folder(tmp_path / "a", 5.7, steps=50)) if "guessing" in f.what]
    assert found.level == "note" and "no better than guessing" in found.what


def test_why_a_run_ended_is_told_with_the_command_that_goes_on(tmp_path):
    run = run_folder(tmp_path / "a", 3.0)
    note_ending(run, Ending(12, STOPPED))
    stopped = next(iter(examine_run(run)))
    assert (stopped.level, stopped.what) == ("note", "stopped on request after 12 steps")
    assert stopped.advice.startswith(f"go on: dinorankclip train --preset scenes --run {run} ")
    with pytest.raises(UserError), ending_noted(run, SimpleNamespace(step=20)):
        assert read_ending(run) is None  # the run goes on
        raise UserError("9 of 10 samples could not be used:\nlines of them")
    failed = next(iter(examine_run(run)))
    assert failed.level == "problem" and failed.what.endswith("after 20 steps: 9 of 10 samples could not be used:")


def test_few_lines_of_many_steps_are_said_to_be_that(tmp_path):
    run = run_folder(tmp_path / "a", 3.0, steps=10)
    (run / "checkpoints" / "step-16").mkdir(parents=True)
    assert any(f.what == "1 line logged of 16 steps, newest checkpoint step-16" for f in examine_run(run))


def test_losses_that_ln_b_is_no_measure_of_are_not_judged_by_it(tmp_path):
    alip = run_folder(tmp_path / "alip", math.log(256), method="alip")
    distil = run_folder(tmp_path / "distil", 0.05, method="distil")
    lines = [json.loads(line) for line in (distil / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["loss/contrastive"]
    (distil / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for folder in (alip, distil):
        found = [f.what for f in examine_run(folder)]
        assert not any("stuck" in what or "guessing would be" in what for what in found)
        assert any("does not show whether the model has learned" in what for what in found)


def test_a_schedule_that_does_not_fit_is_found(tmp_path):
    optim = as_dict(TrainSettings())["optim"] | {"warmup_steps": 200}
    found = list(examine_run(run_folder(tmp_path / "a", 3.0, optim=optim)))
    assert any(f.level == "problem" and "warm-up takes 200 of 300 steps" in f.what for f in found)


def test_a_larger_batch_is_advised_only_if_the_data_can_fill_it(tmp_path):
    def few(steps):  # in ten epochs
        found = examine_run(run_folder(tmp_path / str(steps), 1.0, steps, batch=4))
        return [f.advice for f in found if "few negatives" in f.what]

    assert few(40) == []  # 16 pairs
    (advice,) = few(300)  # 120 pairs
    assert "up to 30 with these pairs" in advice
