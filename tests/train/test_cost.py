import json

import pytest
import torch
from safetensors.torch import save_file

from dinorankclip.config import ModelSettings, TrainSettings, as_dict, with_changes
from dinorankclip.models.trunk import trunk_config
from dinorankclip.presets import default_settings, for_method, preset
from dinorankclip.stored_settings import flatten
from dinorankclip.train.cost import spending, time_of_both, unmatched
from dinorankclip.types import UserError


def write_run(folder, settings: TrainSettings, steps=100, data="abc", cache=""):
    """A run folder as `train` leaves it, with two small tensors for a model."""
    last = folder / "checkpoints" / "last"
    last.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(as_dict(settings)))
    (folder / "scores.json").write_text(json.dumps({"step": steps, "scores": {}}))
    (last / "training.json").write_text(json.dumps({"step": steps, "data": data + (f"+{cache}" if cache else "")}))
    tensors = {"optimizer/model.trunk.weight/exp_avg": torch.zeros(30, 10), "objective/heads.weight": torch.zeros(7, 3)}
    tensors |= {"optimizer/model.trunk.weight/exp_avg_sq": torch.zeros(30, 10), "random/0": torch.zeros(5)}
    tensors |= {"optimizer/objective.heads.weight/exp_avg": torch.zeros(7, 3)}
    save_file(tensors, last / "training.safetensors")
    return folder


def of(method, **changes):
    settings = for_method(preset("scenes"), method)
    return settings.__class__(**{**settings.__dict__, **changes})


def test_what_a_run_has_spent(tmp_path):
    spent = spending(write_run(tmp_path / "a", of("rank"), steps=620, cache="teacher"))
    assert spent.pairs_seen == 620 * 128
    assert (spent.model_parameters, spent.heads) == (300, 21)
    assert spent.data == "abc"
    assert spent.method == "rank, order 3"
    assert spending(write_run(tmp_path / "b", of("clip"))).method == "clip"
    assert spending(write_run(tmp_path / "alip", of("alip"))).method == "alip-style"


def test_a_run_whose_optimiser_was_not_kept_does_not_say_what_it_trained(tmp_path):
    run = write_run(tmp_path / "a", of("rank"))
    save_file({"objective/heads.weight": torch.zeros(7, 3)}, run / "checkpoints" / "last" / "training.safetensors")
    assert spending(run).model_parameters is None and spending(run).heads is None


def test_an_order_that_did_nothing_is_named_with_the_method(tmp_path):
    run = write_run(tmp_path / "a", of("rank"))
    line = {"step": 100, "spread2_image": 0.1, "spread2_text": 0.1, "spread3_image": 1e-4, "spread3_text": 2e-4}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert spending(run).method == "rank, order 3 (order 3 inert)"


def test_a_recipe_is_a_part_of_the_method_unless_it_trains_something_else(tmp_path):
    """CLIP and taught differ in the method alone; heads on frozen towers are no match for a trunk."""
    clip, taught, aligned = (
        spending(write_run(tmp_path / str(name), default_settings("scenes", method, name)))
        for method, name in (("clip", None), ("dinorankclip", "taught"), ("clip", "aligned"))
    )
    assert unmatched(clip, taught) == []
    assert "recipe: None → aligned" in unmatched(clip, aligned)


def test_runs_of_one_budget_in_time_are_matched_by_it(tmp_path):
    def timed(name, seconds, steps, **changes):
        budget = {"budget.core_seconds": seconds, "budget.steps": steps}
        return spending(write_run(tmp_path / name, with_changes(of("clip"), budget | changes), steps=steps))

    clip, slower, longer = timed("a", 80.0, 387), timed("b", 80.0, 300), timed("c", 160.0, 774)
    assert unmatched(clip, slower) == [] and time_of_both(clip, slower) == "80 core-seconds"
    assert time_of_both(clip, longer) is None
    assert "budget.core_seconds: 80.0 → 160.0" in unmatched(clip, longer)
    assert unmatched(clip, timed("d", 80.0, 387, seed=1)) == ["seed: 0 → 1"]
    assert any(line.startswith("pairs seen") for line in unmatched(clip, timed("e", None, 300)))
    stopped = spending(
        write_run(
            tmp_path / "f", with_changes(of("clip"), {"budget.core_seconds": 80.0, "budget.steps": 300}), steps=30
        )
    )
    assert time_of_both(clip, stopped) is None and any("pairs seen" in line for line in unmatched(clip, stopped))


def test_precision_is_what_the_machine_made_of_it(tmp_path):
    a, b = (write_run(tmp_path / name, of("clip")) for name in "ab")
    assert unmatched(spending(a), spending(b)) == []
    (a / "environment.json").write_text('{"device": "cpu", "precision": "fp32"}')
    assert unmatched(spending(a), spending(b)) == []  # an older run does not tell
    (b / "environment.json").write_text('{"device": "cuda", "precision": "bf16"}')
    assert (spending(b).device, spending(b).precision) == ("cuda", "bf16")
    assert unmatched(spending(a), spending(b)) == ["precision: fp32 → bf16"]


def test_runs_that_differ_in_the_method_alone_are_matched(tmp_path):
    a = spending(write_run(tmp_path / "a", of("clip")))
    b = spending(write_run(tmp_path / "b", of("dinorankclip", run="elsewhere"), cache="teacher"))
    assert unmatched(a, b) == []
    assert b.method.startswith("dinorankclip, order 3, fusion full")


@pytest.mark.parametrize(
    ("name", "value"), [("seed", 1), ("budget.batch", 64), ("model.trunk", "drc-small"), ("optim.lr", 0.5)]
)
def test_any_other_difference_is_named(tmp_path, name, value):
    settings = as_dict(of("clip"))
    tree = settings
    for part in name.split(".")[:-1]:
        tree = tree[part]
    tree[name.split(".")[-1]] = value
    write_run(tmp_path / "b", of("rankclip"))
    (tmp_path / "b" / "config.json").write_text(json.dumps(settings))
    found = unmatched(spending(write_run(tmp_path / "a", of("clip"))), spending(tmp_path / "b"))
    assert f"{name}: {flatten(as_dict(of('clip')))[name]} → {value}" in found
    assert any(line.startswith("pairs seen") for line in found) == (name == "budget.batch")


def test_other_pairs_of_the_same_name_are_not_the_same_data(tmp_path):
    a, b = write_run(tmp_path / "a", of("clip")), write_run(tmp_path / "b", of("clip"), data="other")
    assert unmatched(spending(a), spending(b)) == ["training data: scenes (abc) → scenes (other)"]
    # The same pairs from another place are.
    c = write_run(tmp_path / "c", of("clip", data="a/copy"))
    assert unmatched(spending(a), spending(c)) == []


def test_a_run_that_began_with_a_model_has_its_trunk(tmp_path):
    runs = []
    for name, trunk in (("a", "drc-photo"), ("b", "drc-small")):
        settings = of("clip", init="runs/first", model=ModelSettings(trunk=trunk))
        runs.append(write_run(tmp_path / name, settings))
        design = {"format": 1, "trunk": trunk_config("drc-tiny")}
        (runs[-1] / "checkpoints" / "last" / "model.json").write_text(json.dumps(design))
    assert spending(runs[0]).settings["model"]["trunk"] == "drc-tiny"
    assert unmatched(*map(spending, runs)) == []


def test_a_teacher_is_named_with_what_must_be_said_of_it(tmp_path):
    settings = as_dict(of("dinorankclip"))
    settings["distil"]["cache"] = str(tmp_path / "cache")
    run = write_run(tmp_path / "a", of("clip"))
    (run / "config.json").write_text(json.dumps(settings))
    assert spending(run).teacher == f"of {tmp_path / 'cache'}"
    (tmp_path / "cache").mkdir()
    plan = {"teacher": "lite", "note": "supervised", "text": {"teacher": "mini", "note": ""}}
    (tmp_path / "cache" / "plan.json").write_text(json.dumps(plan))
    assert spending(run).teacher == "lite (supervised), mini"


def test_a_damaged_file_is_named(tmp_path):
    run = write_run(tmp_path / "a", of("clip"))
    (run / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json is damaged"):
        spending(run)
