"""Budgets in steps, minutes and core-seconds: a fixed number of steps, the schedule's end, exact resumption."""

import json
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from dinorankclip import given_settings
from dinorankclip.commands.train import parse
from dinorankclip.commands.train import run as train
from dinorankclip.config import as_dict
from dinorankclip.run_files import read_metrics, read_settings
from dinorankclip.train import timed_budget
from dinorankclip.train.assemble import assemble
from dinorankclip.train.loop import Length
from dinorankclip.train.timed_budget import StepCost, core_time, in_time, step_cost, steps_within
from dinorankclip.types import UserError
from tests.systems import POSIX
from tests.train.running import command, run_until, settings_from, small_pairs, weights

QUICK = ["--model.trunk", "drc-tiny", "--budget.batch", "16", "--budget.threads", "1", "--budget.device", "cpu"]
QUICK += ["--reading.workers", "0", "--record.no-tensorboard", "--record.log-every", "1"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return small_pairs(tmp_path_factory.mktemp("data") / "pairs")


def settings(pairs, run, *flags):
    return settings_from("--data", pairs, "--run", run, *QUICK, *flags)


def test_the_length_is_epochs_or_steps(pairs, tmp_path):
    assert Length.of(settings(pairs, tmp_path, "--budget.epochs", 4).budget, 6) == Length(6, 4)
    fixed = Length.of(settings(pairs, tmp_path, "--budget.epochs", 4, "--budget.steps", 9).budget, 6)
    assert (fixed.steps, fixed.epochs) == (9, 1.5)


def test_a_run_of_nine_steps_ends_its_schedule_there_and_is_scored(pairs, tmp_path, capsys):
    run = tmp_path / "run"
    assert train(settings(pairs, run, "--budget.steps", 9, "--budget.minutes", 5), False, False)
    assert "note: --budget.steps 9 decides the length of the run, not its time" in capsys.readouterr().out
    lines = read_metrics(run)
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 10))
    assert [line["step"] for line in lines if "val/mean R@1" in line] == [6, 9]  # an epoch is six steps
    assert json.loads((run / "scores.json").read_text())["step"] == 9
    rates = [line["learning rate"] for line in lines if "loss" in line]
    assert rates[-1] < 0.1 * max(rates) and lines[-2]["epoch"] == pytest.approx(8 / 6)


def test_steps_that_fit():
    cost = StepCost(seconds=0.5, core_seconds=2.0)
    assert steps_within(cost, 1.0, None) == 120
    assert steps_within(cost, None, 150.0) == 75
    assert steps_within(cost, 1e-6, None) == 1


def test_minutes_become_the_run_of_that_many_steps(pairs, tmp_path, monkeypatch):
    """The run that was timed equals the run of `--budget.steps N`, and goes on with N after a kill."""
    costs = [StepCost(0.01, 0.03), StepCost(99.0, 99.0)]  # a second measurement would give another length
    monkeypatch.setattr(timed_budget, "step_cost", lambda parts: (step_cost(parts), costs.pop(0))[1])
    timed, plain = tmp_path / "timed", tmp_path / "plain"
    asked = settings(pairs, timed, "--budget.core-seconds", 0.31)
    assert in_time(asked) and train(asked, False, False)
    stored = read_settings(timed)["budget"]
    assert (stored["steps"], stored["core_seconds"]) == (10, 0.31)
    assert train(settings(pairs, plain, "--budget.steps", 10), False, False)
    one, other = weights(timed), weights(plain)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert train(asked, False, False) and len(costs) == 1  # the same command: nothing to do, nothing timed
    another = given_settings.settings_from(timed / "config.json", **{"budget.core_seconds": 1.0, "run": "other"})
    assert in_time(another) and another.budget.core_seconds == 1.0  # the ten steps were measured for 0.31
    assert in_time(given_settings.settings_from(timed / "config.json", **{"budget.minutes": 1.0, "run": "other"}))
    flags = parse(["--config", str(timed / "config.json"), "--budget.core-seconds", "1.0", "--run", "other"])[0]
    assert in_time(flags) and flags.budget == another.budget
    again = given_settings.settings_from(timed / "config.json", run="again").budget
    assert (again.steps, again.core_seconds) == (10, None)  # the same steps, whatever time they take
    assert not in_time(given_settings.settings_from(timed / "config.json"))
    resumed = parse(["--config", str(timed / "config.json")])[0]
    assert train(resumed, False, False) and len(costs) == 1 and read_settings(timed)["budget"]["core_seconds"] == 0.31
    longer = settings(pairs, timed, "--budget.core-seconds", 1.0)
    with pytest.raises(UserError, match=rf"has finished[^\0]*core_seconds: 0.31 → 1.0[^\0]*--init {timed}"):
        train(longer, False, False)


@POSIX
def test_a_killed_run_keeps_its_measured_length(pairs, tmp_path):
    run = tmp_path / "run"
    words = command(pairs, run, "--budget.minutes", "0.2", "--reading.workers", "0")
    assert run_until(words, run, 5, signal.SIGKILL) != 0
    steps = read_settings(run)["budget"]["steps"]
    assert steps > 5 and run_until(words, run, 7, signal.SIGTERM) == 128 + signal.SIGTERM
    assert read_settings(run)["budget"]["steps"] == steps


@pytest.mark.parametrize(
    ("costs", "threads", "steps"),
    [
        ([StepCost(0.1, 0.19, 0.19)], None, 10),  # both threads work
        ([StepCost(0.8, 0.8, 0.8), StepCost(0.1, 0.1, 0.1)], 1, 20),  # they wait for each other beside other work
        ([StepCost(0.8, 1.6, 0.8), StepCost(0.1, 0.1, 0.1)], 1, 20),  # the cores are busy with reading processes
        ([StepCost(0.8, 0.8, 0.8), StepCost(0.9, 0.9, 0.9)], None, 2),  # they wait for data
        ([StepCost(0.8, 0.8, 0.8), StepCost(0.77, 0.77, 0.77)], None, 2),  # as before, but for noise
    ],
)
def test_on_a_busy_machine_one_thread_is_used(pairs, tmp_path, monkeypatch, capsys, costs, threads, steps):
    before, left = torch.get_num_threads(), list(costs)
    monkeypatch.setattr(timed_budget, "step_cost", lambda parts: left.pop(0))
    free = [word for at, word in enumerate(QUICK) if "--budget.threads" not in QUICK[max(0, at - 1) : at + 1]]
    torch.set_num_threads(2)
    try:
        asked = settings_from("--data", pairs, "--run", tmp_path / "run", *free, "--budget.core-seconds", "2")
        found = timed_budget.measured(asked, None)
        assert torch.get_num_threads() == (threads or 2)
    finally:
        torch.set_num_threads(before)
    assert (found.budget.threads, found.budget.steps) == (threads, steps) and not left
    assert ("get less than a core each" in capsys.readouterr().out) == (threads == 1)


def test_processes_with_different_threads_agree_whether_to_measure_again(pairs, tmp_path):
    """Process 0 has one thread and would not measure; process 1 has two, and steps exchange gradients."""
    mp.spawn(_measured_with_own_threads, (str(tmp_path / "meet"), pairs, tmp_path / "run"), nprocs=2)
    steps = [int((tmp_path / f"meet-{rank}").read_text()) for rank in (0, 1)]
    assert steps[0] == steps[1] >= 1


def _measured_with_own_threads(rank, file, pairs, run):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    free = [word for at, word in enumerate(QUICK) if "--budget.threads" not in QUICK[max(0, at - 1) : at + 1]]
    torch.set_num_threads(1 + rank)
    timed_budget.BUSY = 1e9  # every process with two threads finds the cores busy
    asked = settings_from("--data", pairs, "--run", run, *free, "--budget.core-seconds", "2")
    Path(f"{file}-{rank}").write_text(str(timed_budget.measured(asked, None).budget.steps))
    dist.destroy_process_group()


def test_the_cost_of_a_step_is_measured(pairs, tmp_path):
    begin, cores = time.perf_counter(), core_time()
    parts = assemble(settings(pairs, tmp_path / "run", "--budget.steps", 50))
    cost = step_cost(parts)
    assert 0 < cost.seconds < (time.perf_counter() - begin) / timed_budget.FEWEST
    assert 0 < cost.own_seconds <= cost.core_seconds + 0.01 < (core_time() - cores) / timed_budget.FEWEST + 0.01


def test_core_time_counts_reading_processes():
    """A child that computes for a while is counted while it lives and after it has ended."""
    import multiprocessing

    before, own = core_time(), time.process_time()
    child = multiprocessing.get_context("fork").Process(target=_busy, args=(0.3,))
    child.start()
    child.join()
    assert core_time() - before - (time.process_time() - own) > 0.25


def _busy(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--budget.steps", "0"], "--budget.steps 0: it must be at least 1"),
        (["--budget.minutes", "0"], "--budget.minutes 0: it must be above 0"),
        (["--budget.minutes", "1", "--budget.core-seconds", "9"], "one budget"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(flags, message):
    with pytest.raises(UserError, match=message):
        settings_from(*flags)


def test_more_epochs_of_a_finished_run_are_offered_as_a_new_run(pairs, tmp_path):
    run = tmp_path / "run"
    assert train(settings(pairs, run, "--budget.epochs", 1), False, False)
    with pytest.raises(UserError) as refused:
        train(settings(pairs, run, "--budget.epochs", 3), False, False)
    text = str(refused.value)
    assert "budget.epochs: 1 → 3" in text and "has finished" in text
    assert f"--run {run}-2 --init {run} " in text and "--budget.epochs 2" in text and "--model.trunk" not in text
    with pytest.raises(UserError, match="other settings"):  # a rate is no length
        train(settings(pairs, run, "--budget.epochs", 3, "--optim.lr", 0.5), False, False)
    follows = settings_from(*text.splitlines()[-1].split()[2:])
    assert train(follows, False, False)  # the command works as printed
    assert as_dict(follows)["init"] == str(run) and (tmp_path / "run-2" / "scores.json").is_file()
