"""Recipes: named defaults between preset and method on one side and flags on the other."""

import dataclasses
import json

import pytest

from dinorankclip.commands.train import parse, run
from dinorankclip.config import TrainSettings, as_dict
from dinorankclip.presets import default_settings
from dinorankclip.recipes import RECIPE_NAMES, RECIPES
from dinorankclip.run_files import read_metrics, read_settings
from dinorankclip.stored_settings import difference, settings_from_json
from dinorankclip.train.checkpoints import train_command
from dinorankclip.train.distil_setup import cache_spec_of
from dinorankclip.types import UserError
from dinorankclip.validate import validated
from dinorankclip_studies.study import key_of
from tests.train.running import settings_from, small_pairs


def test_the_type_of_the_flag_names_the_recipes_of_the_table():
    assert tuple(RECIPES) == RECIPE_NAMES and all(recipe.about for recipe in RECIPES.values())


def test_a_recipe_comes_after_preset_and_method_and_before_flags():
    settings = parse(["--preset", "scenes", "--method", "dinorankclip", "--recipe", "paper"])[0]
    assert (settings.recipe, settings.loss.ramp, settings.optim.lr, settings.optim.weight_decay) == (
        "paper", "paper", 5e-4, 0.2,
    )  # fmt: skip
    assert (settings.distil.cache, settings.fusion.variant) == ("auto", "full")  # the method's
    assert (settings.model.trunk, settings.budget.batch) == ("drc-tiny", 128)  # the preset's
    changed = parse(["--recipe=paper", "--optim.lr", "0.01", "--loss.ramp", "rankclip"])[0]
    assert (changed.recipe, changed.optim.lr, changed.loss.ramp) == ("paper", 0.01, "rankclip")


def test_without_a_recipe_nothing_changes():
    settings = parse(["--preset", "cc3m", "--method", "dinorankclip"])[0]
    assert settings.recipe is None and settings.loss.ramp == "rankclip"
    assert parse(["--recipe", "None"])[0] == parse([])[0]


def test_the_recipe_brings_its_method_unless_another_is_named():
    assert parse(["--recipe", "paper"])[0].method == "dinorankclip"
    baseline = parse(["--recipe", "paper", "--method", "rankclip"])[0]
    assert (baseline.method, baseline.loss.order, baseline.loss.ramp) == ("rankclip", 1, "paper")


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--recipe", "papr"], "did you mean paper"), (["--recipe", "paper", "--method", "distil"], "is for --method")],
)
def test_a_wrong_recipe_is_refused(flags, message):
    with pytest.raises(UserError, match=message):
        parse(flags)


def test_settings_with_a_wrong_recipe_are_refused_too():
    wrong = dataclasses.replace(TrainSettings(), recipe="none-such")
    with pytest.raises(UserError, match="there is no such recipe; there are paper"):
        validated(wrong)


def test_keys_and_resuming_of_runs_without_the_field_stay():
    settings = default_settings("scenes", "rank")
    stored = json.loads(json.dumps(as_dict(settings)))
    del stored["recipe"]
    assert settings_from_json(stored) == settings and key_of(settings_from_json(stored)) == key_of(settings)
    assert difference(stored, as_dict(settings)) == []
    recipe = as_dict(default_settings("scenes", "rank", "paper"))
    assert "recipe: None → paper" in difference(stored, recipe)


@pytest.mark.parametrize("method", RECIPES["paper"].methods)
def test_the_command_of_a_stored_run_names_its_recipe(method):
    settings = as_dict(default_settings("scenes", method, "paper"))
    settings["optim"] = settings["optim"] | {"lr": 1e-4}
    command = train_command(settings | {"run": "here"}).split()
    assert command[command.index("--recipe") + 1] == "paper" and "--loss.ramp" not in command
    assert as_dict(parse(command[2:])[0]) == settings | {"run": "here"}


@pytest.mark.parametrize("preset", ["scenes", "flickr8k", "finetune", "cc3m"])
@pytest.mark.parametrize("method", RECIPES["paper"].methods)
def test_the_paper_recipe_is_valid_with_every_preset_and_method(preset, method):
    settings = validated(default_settings(preset, method, "paper"))
    assert settings.reading.flip == (preset != "scenes") and settings.optim.clip_apart
    assert settings.budget == default_settings(preset, method).budget or preset == "cc3m"


def test_what_an_automatic_cache_keeps():
    assert cache_spec_of(default_settings("cc3m", "dinorankclip", "paper")).layout.keep == "tokens"
    assert cache_spec_of(default_settings("cc3m", "dinorankclip")).layout.keep == "gram"
    with pytest.raises(UserError, match="needs cached tokens"):
        cache_spec_of(parse(["--distil.keep", "gram", "--distil.criterion", "mse"])[0])


def test_a_small_run_of_the_paper_recipe(tmp_path, monkeypatch):
    monkeypatch.setattr("dinorankclip.teachers.cache_request.AUTOMATIC", tmp_path / "teacher")
    pairs = small_pairs(tmp_path / "pairs", train=32, val=8)
    teachers = ["--distil.teacher", "random-vit", "--distil.text-teacher", "random-text", "--distil.teacher-size", "64"]
    quick = ["--budget.batch", "16", "--budget.epochs", "1", "--budget.threads", "1", "--reading.workers", "0"]
    log = ["--record.log-every", "1", "--record.no-tensorboard"]
    settings = settings_from("--recipe", "paper", "--data", pairs, "--run", tmp_path / "run", *teachers, *quick, *log)
    assert run(settings, restart=False, dry=False)
    steps = [line for line in read_metrics(tmp_path / "run") if "loss" in line]
    assert len(steps) == 2 and all(line["loss/gram_image"] > 0 and line["loss/gram_text"] > 0 for line in steps)
    stored = read_settings(tmp_path / "run")
    assert (stored["recipe"], stored["method"], stored["loss"]["ramp"]) == ("paper", "dinorankclip", "paper")
    (plan,) = (tmp_path / "teacher").glob("*/plan.json")
    assert json.loads(plan.read_text())["keep"] == "tokens"
