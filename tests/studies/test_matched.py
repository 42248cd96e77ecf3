from dataclasses import replace

import pytest

from dinorankclip.config import as_dict
from dinorankclip.types import UserError
from dinorankclip_studies.papers.dinorankclip.plans import STUDIES
from dinorankclip_studies.plan import check_plan, check_results
from dinorankclip_studies.results import Results, RunRecord
from dinorankclip_studies.study import Cell
from tests.studies.studying import experiment, tiny

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
