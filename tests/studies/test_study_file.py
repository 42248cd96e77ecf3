"""A study is one file: what it becomes, which mistakes are named, what its seeds can show, and its report."""

import os
import subprocess
import sys

import pytest

from dinorankclip.types import UserError
from dinorankclip_studies import papers
from dinorankclip_studies.command import main, study_named
from dinorankclip_studies.own_study import plans_of, remember_plan, when_planned
from dinorankclip_studies.results import Results
from dinorankclip_studies.study import Numbers
from dinorankclip_studies.study_file import PlannedPower, read_study_file
from dinorankclip_studies.verdicts import detectable
from tests.plugged import EXAMPLE, example_path

FILE = """
name = "two-orders"
title = "Order 2 beside CLIP"
seeds = 8
[scenes]
train = 64
val = 16
test = 16
classes = false
[settings]
budget.batch = 16
budget.epochs = 2
[cells.clip]
method = "clip"
[cells.rank-2]
method = "rank"
changes = { "loss.order" = 2 }
seeds = 6
[[claims]]
id = "helps"
says = "Order 2 raises R@1."
of = "rank-2"
over = "clip"
score = "val/mean R@1"
effect = 2.0
spread = 1.5
"""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setattr(papers, "opened", {})
    monkeypatch.setattr("dinorankclip_studies.own_study.opened_studies", papers.opened)
    monkeypatch.setattr("dinorankclip_studies.material.opened", papers.opened)


def written(folder, text=FILE):
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def test_a_file_becomes_a_study(tmp_path):
    file = read_study_file(written(tmp_path))
    study = file.study
    assert [cell.name for cell in study.cells] == ["clip", "rank-2"] and study.seeds == {"clip": 8, "rank-2": 6}
    assert study.base.budget.batch == 16 and study.base.data.endswith("scenes-64-16-16-pairs/pairs")
    assert study.cells[1].settings(study.base, 3).loss.order == 2
    (table,) = study.experiments
    assert [row.cell for row in table.rows] == ["clip", "rank-2"] and table.columns[0].score == "val/mean R@1"
    assert read_study_file(written(tmp_path), Numbers(epochs=5)).study.base.budget.epochs == 5
    assert len(study.runs()) == 14


def test_power_is_planned_before_the_runs(tmp_path):
    (planned,) = read_study_file(written(tmp_path)).power
    assert planned.visible == pytest.approx(detectable(0.015, 6)) and planned.needed == 7
    assert planned.words() == (
        "helps: with 6 seeds you will see 2.15 points (80 % power, spread between seeds 1.50 points); the claim says "
        "2.00 points: TOO FEW, 7 seeds would show it"
    )
    eight = PlannedPower("helps", 8, 0.0173, 0.02, "points")
    assert eight.words().startswith("helps: with 8 seeds you will see 2.00 points") and "TOO FEW" not in eight.words()
    assert PlannedPower("x", 2, 0.01, None, "points").words() == "x: 2 seeds show nothing; at least 3 are needed"
    several = PlannedPower("x", 8, 0.0173, None, "points", family=3)
    assert several.visible > eight.visible and "3 comparisons" in several.words()
    assert PlannedPower("x", 8, 1.0, 0.001, "points").needed is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("spread = 1.5", "", "claim helps: `spread`, the expected standard deviation"),
        ("seeds = 8", "sedes = 8", "there is no 'sedes'; there are"),
        ('of = "rank-2"', 'of = "rank-3"', "claim helps: there is no cell 'rank-3', only clip, rank-2"),
        ('over = "clip"', "", "claim helps: `over` must name the cell"),
        ('method = "rank"', 'method = "rnak"', "cells.rank-2: unknown method 'rnak'"),
        ('"loss.order" = 2', '"loss.ordr" = 2', "no setting 'loss.ordr'; did you mean loss.order"),
        ("seeds = 6", "seeds = 0", "cells.rank-2: seeds must be a whole number of at least 1, not 0"),
        ('name = "two-orders"', 'name = "two/orders"', "becomes a folder"),
        ('name = "two-orders"', 'name = "small"', "a study called 'small' is built in"),
        ("effect = 2.0", 'rule = "all equivalent"', "an equivalence needs a margin"),
        ("effect = 2.0", 'unit = "metres"', "unit 'metres': there are points"),
        ('title = "Order 2 beside CLIP"', "title = 3", "title must be a text"),
        ("seeds = 8", "seeds = ", "is no TOML"),
    ],
)
def test_mistakes_are_named_with_the_file(tmp_path, old, new, message):
    path = written(tmp_path, FILE.replace(old, new))
    with pytest.raises(UserError, match=message) as error:
        study_named(str(path))
    assert str(path) in str(error.value)


def test_a_plan_that_changed_after_runs_says_so(tmp_path):
    path, folder = written(tmp_path), tmp_path / "study"
    assert "not known" in when_planned(folder)
    study_named(str(path))
    remember_plan("two-orders", folder, 0)
    remember_plan("two-orders", folder, 5)  # the same plan, seen again
    assert len(plans_of(folder)) == 1 and "before the first run had finished" in when_planned(folder)
    study_named(str(written(tmp_path, FILE.replace("effect = 2.0", "effect = 1.0"))))
    remember_plan("two-orders", folder, 5)
    assert "CHANGED after runs had finished" in when_planned(folder) and "(5 runs were finished)" in when_planned(
        folder
    )
    assert "effect = 1.0" in (folder / "study.toml").read_text()


def test_plan_prints_the_power(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["plan", str(written(tmp_path))])
    shown = capsys.readouterr().out
    assert "with 6 seeds you will see 2.15 points" in shown and "14 different runs of 2 cells" in shown
    main(["plan", str(written(tmp_path)), "--seeds", "3"])
    assert "6 different runs" in capsys.readouterr().out
    with pytest.raises(UserError, match="there is no study file"):
        main(["plan", "none.toml"])


def test_the_example_outside_the_package_gets_table_intervals_and_report(tmp_path, monkeypatch):
    """The example's loss, teacher and study as an installed package, at a size of seconds: `study run` and `report`."""
    text = (EXAMPLE / "colour_plugin" / "study.toml").read_text()
    sizes = (("train = 2000", "train = 32"), ("val = 500", "val = 16"), ("test = 500", "test = 16"))
    for old, new in (*sizes, ("seeds = 8", "seeds = 3"), ("budget.epochs = 8", "budget.epochs = 1\nbudget.batch = 16")):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "small.toml").write_text(text)
    path = os.pathsep.join([*example_path(tmp_path / "installed"), *sys.path])
    env = os.environ | {"PYTHONPATH": path, "DINORANKCLIP_HOME": str(tmp_path / "built"), "OMP_NUM_THREADS": "1"}

    def study(*words):
        command = [sys.executable, "-m", "dinorankclip", "study", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "24 different runs of 3 cells" in study("plan", "margin-and-colours")  # by its name
    study("run", "small.toml", "--workers", "1")
    assert "1 tables" in study("report", "small.toml")
    folder = tmp_path / "runs" / "study-margin-and-colours"
    results = Results.load(folder)
    assert results.cells() == ("clip", "margin", "colours")
    assert all(sorted(results.of(cell)) == [0, 1, 2] for cell in results.cells())
    assert all("loss/margin" in run.telemetry for run in results.of("margin").values())
    taught = results.of("colours")[0]
    assert "colour-grid" in taught.teacher and "knows no objects" in taught.teacher
    table = (folder / "tables" / "main.md").read_text()
    assert all(cell in table for cell in ("clip", "margin", "colours")) and " ± " in table
    claims = (folder / "claims.md").read_text()
    assert "with 3 seeds you will see 4.90 points" in claims and "margin - clip, test/mean R@1" in claims
    assert "before the first run had finished" in claims
    page = (folder / "report.html").read_text()
    assert "margin-helps" in page and "A margin, and a teacher of colours" in page
    assert "paper (projected)" not in page and "Claims of the paper" not in page
