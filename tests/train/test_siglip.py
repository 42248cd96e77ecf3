"""A model of the sigmoid loss: its bias in training, resumption, folders and exports; other models have none."""

import json
import math
import signal

import open_clip
import pytest
import torch
from safetensors.torch import load_file

from dinorankclip.losses.objective import Objective
from dinorankclip.models.export_model import write_export
from dinorankclip.models.folder import load_folder, save_model
from dinorankclip.models.joint import JointModel
from dinorankclip.models.trunk import SIGMOID_START, trunk_config, trunk_name
from dinorankclip.train.assemble import build_model
from dinorankclip.train.frozen_rows import image_identity
from dinorankclip.types import Embeddings, Progress
from tests.systems import POSIX
from tests.train.running import command, run_to_end, run_until, settings_from, small_pairs, weights

BIAS = "trunk.towers.logit_bias"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return small_pairs(tmp_path_factory.mktemp("data") / "pairs")


def built(*flags: object) -> JointModel:
    return build_model(settings_from("--preset", "scenes", *flags))


def saved(model: JointModel, folder):
    folder.mkdir()
    save_model(model, folder)
    return folder


def test_a_model_of_the_sigmoid_loss_is_clips_with_a_bias_and_another_temperature():
    clip, siglip = built("--method", "clip").state_dict(), built("--method", "siglip").state_dict()
    assert siglip.keys() - clip.keys() == {BIAS} and not clip.keys() - siglip.keys()
    assert siglip[BIAS].item() == -10 and siglip["trunk.towers.logit_scale"].item() == pytest.approx(math.log(10))
    differing = {name for name in clip if not torch.equal(clip[name], siglip[name])}
    assert differing == {"trunk.towers.logit_scale"}


def test_the_trunk_keeps_its_name_and_its_image_side():
    clip, siglip = built("--method", "clip"), built("--method", "siglip")
    assert trunk_name(siglip.trunk.config) == "drc-tiny"
    assert image_identity(siglip) == image_identity(clip)  # so that rows of a frozen image side are shared


def test_fine_tuning_keeps_a_learnt_bias_and_adds_a_missing_one(tmp_path):
    learnt = built("--method", "siglip")
    with torch.no_grad():
        learnt.trunk.logit_bias.fill_(-7.5)
        learnt.trunk.logit_scale.fill_(3.0)
    flags = ["--preset", "finetune", "--method", "siglip", "--init"]
    again = build_model(settings_from(*flags, saved(learnt, tmp_path / "siglip")))
    assert (again.bias().item(), again.trunk.logit_scale.item()) == (-7.5, 3.0)
    fresh = build_model(settings_from(*flags, saved(built("--method", "clip"), tmp_path / "clip")))
    assert (fresh.bias().item(), fresh.scale().item()) == (-10.0, pytest.approx(10.0))
    plain = build_model(settings_from("--preset", "finetune", "--method", "clip", "--init", tmp_path / "siglip"))
    assert plain.bias().item() == -7.5  # idle, but there when the sigmoid loss comes back


def test_the_objective_demands_the_bias():
    rows = {name: torch.eye(4) for name in ("image", "text")}
    with pytest.raises(ValueError, match="start_sigmoid"):
        Objective(4, "siglip")(Embeddings(rows), torch.tensor(10.0), Progress(0, 10, 1))


@POSIX
def test_a_run_learns_its_bias_resumes_bit_for_bit_and_is_exported(pairs, tmp_path):
    flags = ("--method", "siglip", "--budget.epochs", "2")
    whole, broken, out = tmp_path / "whole", tmp_path / "broken", tmp_path / "export"
    run_to_end(command(pairs, whole, *flags))
    words = command(pairs, broken, *flags)
    assert run_until(words, broken, 5, signal.SIGKILL) != 0
    run_to_end(words)
    one, other = weights(whole), weights(broken)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert {"loss/sigmoid", "logit_scale", "logit_bias"} <= steps[0].keys() and steps[0]["logit_bias"] == -10
    model = load_folder(whole)
    assert model.bias().item() != -10 and steps[-1]["loss"] < steps[0]["loss"]
    write_export(str(whole), out, ["folder", "open-clip"])
    assert load_folder(out).bias().item() == model.bias().item()
    towers, _, _ = open_clip.create_model_and_transforms(f"local-dir:{out / 'open_clip'}")
    assert towers.logit_bias.item() == model.bias().item()
    assert towers.logit_scale.item() == pytest.approx(model.trunk.logit_scale.item())
    assert "sigmoid loss (SigLIP)" in (out / "README.md").read_text()
    assert BIAS in load_file(out / "model.safetensors")
    stored = json.loads((out / "model.json").read_text())["trunk"]
    assert stored == trunk_config("drc-tiny") | SIGMOID_START
