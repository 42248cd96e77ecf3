"""The page of departures from the paper equals what presets, recipe and code give; no departure is without reason."""

from dataclasses import replace
from pathlib import Path

import pytest

from dinorankclip import presets
from dinorankclip.config import with_changes
from dinorankclip.presets import PRESETS, default_settings
from dinorankclip_studies import departures
from dinorankclip_studies.command import main
from dinorankclip_studies.departures import PAGE, Value, page, problems, read_lines
from dinorankclip_studies.papers import papers

PAPER = papers()[0]
# The lines of the paper's table, in its order.
GROUPS = (
    "Optimiser", "Learning rate", "Batch size", "Precision", "Image size", "Text length", "Teacher", "Student",
    "Distillation μ_d", "Text/image ratio ρ", "Default rank order R", "Rank-head dimension h", "Gate parameterisation",
    "Gate initialisation", "Gate L1 regularisation η_r", "Modality-specific gates / heads", "Schedule on μ_1, μ_2",
    "Warm-start (epoch range, frozen → unfrozen)", "Initialisation", "Epochs", "Hardware",
)  # fmt: skip


@pytest.fixture(scope="module")
def lines():
    return read_lines(PAPER)


def test_the_committed_page_is_what_presets_and_code_give(lines):
    committed = (Path(__file__).parents[2] / "docs" / PAGE).read_text(encoding="utf-8")
    assert committed == page(lines), "run: dinorankclip study departures --docs docs"


def test_every_line_of_the_papers_table_is_there(lines):
    assert tuple(line.group for line in lines if line.section == "table") == GROUPS
    assert all(line.printed for line in lines if line.section != "open")


def test_every_departure_has_a_reason_and_every_reason_a_departure(lines):
    assert problems(lines) == []
    at = next(number for number, line in enumerate(lines) if line.group == "Schedule on μ_1, μ_2")
    bare = replace(lines[at], values=tuple(replace(value, reason="") for value in lines[at].values))
    found = problems([*lines[:at], bare, *lines[at + 1 :]])
    assert found == ["Schedule on μ_1, μ_2, loss.ramp: differs from the paper (cc3m) and has no reason"]
    first, betas, *others = lines[0].values
    idle = replace(lines[0], values=(first, replace(betas, reason="why"), *others))
    assert problems([idle]) == ["Optimiser, optim.betas: has a reason (cc3m) but does not differ"]
    with pytest.raises(ValueError, match="has no reason"):
        page([bare])


@pytest.mark.parametrize(
    ("setting", "value"), [("optim.lr", 1e-3), ("budget.batch", 512), ("loss.head_dim", 16), ("distil.compare_grid", 7)]
)
def test_a_preset_that_drifts_is_noticed(lines, monkeypatch, setting, value):
    monkeypatch.setitem(presets.PRESETS, "cc3m", with_changes(PRESETS["cc3m"], {setting: value}))
    assert any(f", {setting}: differs from the paper (cc3m)" in problem for problem in problems(lines))


def test_code_that_drifts_is_noticed(lines, monkeypatch):
    monkeypatch.setattr("dinorankclip.models.fusion.PYRAMID", (1, 2, 4))
    assert any("bins of the pyramid" in problem for problem in problems(lines))


def test_the_recipe_has_the_papers_values_on_cc3m():
    """By hand, from the paper's table."""
    settings = default_settings("cc3m", "dinorankclip", "paper")
    assert (settings.optim.lr, settings.optim.betas, settings.optim.weight_decay) == (5e-4, (0.9, 0.98), 0.2)
    assert (settings.optim.warmup_steps, settings.budget.batch, settings.budget.epochs) == (10_000, 1024, 64)
    assert (settings.loss.order, settings.loss.head_dim, settings.loss.ramp) == (3, 32, "paper")
    assert (settings.distil.weight, settings.distil.text_ratio, settings.distil.compare_grid) == (0.5, 0.5, 14)
    assert (settings.distil.image_student, settings.distil.text_student) == ("vit-tiny", "vit-tiny")
    assert settings.distil.keep == "tokens" and settings.budget.precision == "bf16" and settings.reading.flip


def test_numbers_are_compared_as_numbers():
    settings = default_settings("scenes")
    assert not Value("optim.lr", 0.001).differs(settings) and Value("optim.lr", 0.0011).differs(settings)
    assert not Value("optim.betas", [0.9, 0.98]).differs(settings) and Value("optim.betas", [0.9, 0.9]).differs(
        settings
    )
    assert not Value("optim.eps").differs(settings)  # the paper says nothing
    assert Value("optim.warmup_steps", none="rule").written(None) == "rule"


def test_a_wrong_name_in_the_file_is_refused(tmp_path, monkeypatch):
    (tmp_path / "hyperparameters.toml").write_text(
        '[[line]]\nsection = "table"\ngroup = "A"\n[[line.value]]\nwhat = "optim.rate"\npaper = 1\n'
    )
    monkeypatch.setattr(PAPER, "folder", tmp_path)
    with pytest.raises(ValueError, match=r"A: unknown: optim\.rate"):
        read_lines(PAPER)


def test_the_command_writes_the_page(tmp_path, capsys):
    main(["departures", "--docs", str(tmp_path)])
    assert capsys.readouterr().out.strip() == str(tmp_path / PAGE)
    written = (tmp_path / PAGE).read_text(encoding="utf-8")
    main(["departures"])
    assert capsys.readouterr().out == written and departures.PAGE in "docs/paper-departures.md"
