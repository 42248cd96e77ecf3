"""Matched budgets, plans and states of studies."""

from dataclasses import replace
from pathlib import Path

import pytest

from dinorankclip.config import as_dict
from dinorankclip.types import UserError
from dinorankclip_studies.command import main
from dinorankclip_studies.papers.dinorankclip import PAPER
from dinorankclip_studies.papers.dinorankclip.plans import STUDIES
from dinorankclip_studies.plan import check_plan, check_results
from dinorankclip_studies.plan_at_scale import parts_of
from dinorankclip_studies.results import Results, RunRecord
from dinorankclip_studies.run_times import Costs
from dinorankclip_studies.study import Cell, distinct
from tests.studies.studying import experiment, tiny


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_papers_scale_in_gpu_hours_and_disk(capsys):
    main(["plan", "--preset", "cc3m"])
    reported = capsys.readouterr().out
    # 2.71 M // 1024 · 64 = 169,344 steps; order 0 at 301 ms: 14.2 hours, order 3 at 379 ms: 17.8.
    lines = {line.split()[0]: line.split() for line in reported.splitlines() if line}
    assert lines["clip"][1:] == ["1", "0", "2.71", "M", "64", "169,344", "301", "14.2"]
    assert lines["full"][1:] == ["1", "3", "2.71", "M", "64", "169,344", "379", "17.8"]
    # 1 M // 1024 · 32 = 31,232 steps.
    assert lines["full-mse-ablation"][1:] == ["1", "3", "1.00", "M", "32", "31,232", "379", "3.3"]
    assert lines["clip-n300-sweep"][3:6] == ["0.30", "M", "32"]
    assert lines["clip-ablation"][-2:] == ["is", "clip-n1000-sweep"], "it is one run"
    assert lines["components"][1:] == ["6", "18.4", "4"] and lines["all"][-1] == "72"
    assert "Where this differs from the paper's 72 hours (paper (projected))" in reported
    assert "alip: sees two captions of an image in a step, and needs a second caption for each pair" in reported
    assert "9.6 GB at 8×8" in reported and "checkpoints of each run" in reported


def test_the_parts_of_the_plan_add_up(capsys):
    study = STUDIES["cc3m"]()
    runs = distinct(study.runs())
    grouped = parts_of(study, PAPER, runs)
    assert sum(map(len, grouped.values())) == len(runs)
    assert [run.cell for run in grouped["main run"]] == ["full"]
    assert {run.cell for run in grouped["baselines"]} == {"clip", "cyclip", "alip", "rankclip", "rank-3"}
    assert len(grouped["order sweep"]) == 12 and len(grouped["scaling"]) == 9


def test_numbers_are_taken_from_the_command_line(capsys):
    main(["plan", "cc3m", "--epochs", "8", "--pairs", "300000", "--seeds", "2"])
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert lines["full"][1:7] == ["2", "3", "0.30", "M", "8", "2,336"]  # 300,000 // 1024 · 8
    main(["plan", "flickr8k", "--seeds", "1", "--epochs", "2", "--workers", "1"])
    assert " 7 different runs of 7 cells" in f" {capsys.readouterr().out}".replace("\n", " ")
    for flags, words in (
        (["cc3m", "--epochs", "0"], "--epochs 0: at least 1"),
        (["full", "--ablation-pairs", "9"], "--ablation-pairs is for study cc3m"),
    ):
        with pytest.raises(UserError, match=words):
            main(["plan", *flags])


def test_a_study_of_this_machine(capsys):
    main(["plan", "full", "--workers", "2"])
    reported = capsys.readouterr().out
    lines = {line.split()[0]: line.split() for line in reported.splitlines() if line}
    assert lines["clip"][1:3] == ["8", "0"]
    assert lines["full-h16"][1:3] == ["3", "0"]
    assert "tuning dinorankclip" in reported
    assert " to go, 2 at a time" in reported
    assert "folder: runs/study-full (not there yet" in reported
    assert "learning rates: not tuned yet; 0.0005, 0.001, 0.002 are tried first" in reported


def test_the_plan_of_the_tuned_study_names_equal_runs_once(capsys):
    main(["plan", "tuned", "--workers", "1"])
    reported = capsys.readouterr().out
    lines = {line.split()[0]: line.split() for line in reported.splitlines() if line}
    assert lines["clip"][1:5] == ["8", "0", "90", "s"]
    assert lines["full"][1:5] == ["8", "0", "4", "min"]
    assert lines["rank-3-quick"][1:] == ["8", "0", "the", "runs", "of", "rank-3"]
    assert "201 different runs of 55 cells" in reported
    assert "learning rates: 0.001, of the preset: chosen by CLIP's validation score" in reported


def test_short_lists_cost_their_share_of_the_ranking():
    study = STUDIES["tuned"]()
    costs = Costs(Path("none"), [], study)
    seconds = {run.cell: costs.guess(run) for run in study.runs() if run.seed == 0}
    assert seconds["clip"] == pytest.approx(8 * 4000 * 0.0028)
    # 32 of 128 positions: a quarter of what order 3 adds to CLIP's step; students and fusion add 1.5.
    assert seconds["rank-3"] / seconds["clip"] == pytest.approx(1 + 0.25 * 1.0)
    assert seconds["full"] / seconds["clip"] == pytest.approx(1 + 0.25 * 1.0 + 1.5)


def test_status_of_a_study_that_was_not_started(capsys):
    main(["status", "small"])
    reported = capsys.readouterr().out
    assert "0 of 75 runs finished" in reported and "not there yet: nothing has run" in reported
    assert "learning rates: 0.001, of the preset" in reported  # it has no grid


def test_status_before_and_after_tuning(tmp_path, capsys):
    folder = tmp_path / "runs/study-full"
    folder.mkdir(parents=True)
    main(["status", "full"])
    reported = capsys.readouterr().out
    assert "learning rates: not tuned yet" in reported and "not there" not in reported
    (folder / "tuned.json").write_text('{"clip": {"chosen": 0.002, "tried": {}}}')
    main(["status", "full"])
    assert "learning rates: clip 0.002" in capsys.readouterr().out


def test_data_that_is_not_there_is_named_before_anything_runs():
    with pytest.raises(UserError, match=r"scores on data/flickr8k, data/caltech101, .*: put or link it there"):
        main(["run", "flickr8k"])


def test_the_catalogues_sets_are_explained():
    with pytest.raises(UserError, match=r"scores on sets: .*clip-benchmark layout: dinorankclip score --catalogue"):
        main(["run", "cc3m"])


def test_an_unknown_study_is_named():
    with pytest.raises(UserError, match=r"no study 'smal': .*small\?"):
        main(["plan", "smal"])


CLIP = Cell("clip", "clip")


def record(cell: Cell, seed: int = 0, pairs: int = 128, data: str = "abc") -> RunRecord:
    settings = as_dict(cell.settings(tiny().base, seed))
    return RunRecord(cell.name, seed, "k", "cells/k", "r", settings, {}, {}, 1.0, pairs, 8, {}, data)


@pytest.mark.parametrize("name", STUDIES)
def test_the_studies_compare_like_with_like(name):
    study = STUDIES[name]()
    cells = {cell.name for cell in study.cells}
    assert study.experiments and all({row.cell for row in table.rows} <= cells for table in study.experiments)
    check_plan(study)


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("budget.epochs", 3, "budget.epochs: 2 → 3"),
        ("budget.batch", 32, "budget.batch: 16 → 32"),
        ("model.trunk", "drc-small", "model.trunk: drc-tiny → drc-small"),
        ("loss.ramp", "paper", "loss.ramp: rankclip → paper"),
        ("optim.weight_decay", 0.5, "optim.weight_decay"),
        ("data", "other", "data: "),
        ("reading.train_items", 32, "reading.train_items: None → 32"),
        ("budget.precision", "bf16", "budget.precision: auto → bf16"),
        ("init", "runs/other", "init: None → runs/other"),
        ("model.weights", "weights.pt", "model.weights: None → weights.pt"),
        ("loss.list_length", 8, "loss.list_length: None → 8"),
        ("distil.weight", 1.0, "distil.weight: 0.5 → 1.0"),
        ("distil.compare_grid", 2, "distil.compare_grid: None → 2"),
    ],
)
def test_another_budget_is_refused_before_anything_runs(setting, value, words):
    other = Cell("other", "rankclip", {setting: value})
    with pytest.raises(UserError, match="differ in more than their method") as refusal:
        check_plan(tiny((CLIP, other)))
    assert words in str(refusal.value)
    knowing = experiment("clip", "other", unmatched={"other": (setting, "pairs seen")})
    check_plan(tiny((CLIP, other), experiments=(knowing,)))
    unknowing = experiment("clip", "other", unmatched={"other": ("optim.eps",)})  # what may differ is something else
    with pytest.raises(UserError, match="differ in more than their method"):
        check_plan(tiny((CLIP, other), experiments=(unknowing,)))


def test_methods_may_differ():
    assert check_plan(tiny((CLIP, Cell("other", "dinorankclip", {"loss.order": 2})))) is None  # it raises otherwise


def test_all_cells_have_one_rate():
    with pytest.raises(UserError, match=r"optim.lr: 0.001 → 0.002"):
        check_plan(tiny((CLIP, Cell("other", "rank", {"optim.lr": 2e-3}))))


def test_runs_that_saw_other_pairs_are_refused():
    other = Cell("other", "rankclip")
    table = (experiment("clip", "other"),)
    results = Results("tiny", (record(CLIP), record(other)))
    check_results(table, results)
    with pytest.raises(UserError, match="pairs seen: 128 → 64"):
        check_results(table, replace(results, runs=(record(CLIP), record(other, pairs=64))))
    with pytest.raises(UserError, match="training data"):
        check_results(table, replace(results, runs=(record(CLIP), record(other, data="other"))))
    # Precision as it was on the machine of each run; of older runs it is not known.
    low, plain = replace(record(other), precision="bf16"), replace(record(CLIP), precision="fp32")
    with pytest.raises(UserError, match="precision: fp32 → bf16"):
        check_results(table, replace(results, runs=(plain, low)))
    check_results(table, replace(results, runs=(record(CLIP), low)))
    # Seeds that only one of them has are not compared.
    check_results(table, replace(results, runs=(record(CLIP), record(other, seed=1, pairs=64))))
