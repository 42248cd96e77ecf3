"""A damaged or foreign folder gives a clear error, never a half-loaded model."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from dinorankclip.config import TrainSettings, as_dict
from dinorankclip.models.folder import CONFIG, WEIGHTS, find_model, load_folder, load_weights
from dinorankclip.models.joint import FusionDesign, JointModel, Students
from dinorankclip.models.loaded import load_model
from dinorankclip.types import UserError
from tests.models.model_making import saved, small_config, small_model
from tests.systems import POSIX


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("original") / "model", small_model("full"), seal=True)


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "model")


def change_config(folder, **changes):
    config = json.loads((folder / CONFIG).read_text()) | changes
    (folder / CONFIG).write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def change_weights(folder, change):
    weights = load_file(folder / WEIGHTS)
    change(weights)
    save_file(weights, folder / WEIGHTS)


def raises_refusal(where, says):
    for load in (load_folder, load_model):
        with pytest.raises(UserError, match=says):
            load(where)


@POSIX
def test_runs_checkpoints_and_folders_are_found(original, tmp_path):
    run = tmp_path / "run"
    step = run / "checkpoints" / "step-7"
    shutil.copytree(original, step)
    os.symlink("step-7", run / "checkpoints" / "last")
    for where in (run, str(run), run / "checkpoints", run / "checkpoints" / "last", step):
        assert find_model(where) == step.resolve()


def test_nothing_there(tmp_path, monkeypatch):
    raises_refusal(tmp_path / "nowhere", r"holds no model: there is no such folder \(expected")
    (tmp_path / "mine").mkdir()
    raises_refusal(tmp_path / "mien", f"there is no such folder; did you mean {tmp_path / 'mine'}\\?")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="did you mean starter"):
        find_model("startr")
    raises_refusal(tmp_path, "holds no model: expected a run folder, a checkpoint or a folder with model.json")
    (tmp_path / "weights.safetensors").write_bytes(b"")
    raises_refusal(tmp_path / "weights.safetensors", r"is a file: .* open_clip:NAME:")


def test_a_run_without_a_checkpoint(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(as_dict(TrainSettings())))  # all that a refused first start leaves
    raises_refusal(tmp_path, "a run that has no checkpoint yet; let it train on")
    (tmp_path / "config.json").unlink()
    (tmp_path / "metrics.jsonl").write_text("")
    raises_refusal(tmp_path, "a run that has no checkpoint yet")


def test_foreign_folders_are_named(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    raises_refusal(tmp_path, "Hugging Face transformers folder")
    (tmp_path / "open_clip_config.json").write_text("{}")
    raises_refusal(tmp_path, f"is an open_clip folder: use open_clip:{tmp_path}")


def test_half_copied_folders(folder, original, tmp_path):
    (folder / WEIGHTS).unlink()
    raises_refusal(folder, r"has model\.json but no model\.safetensors")
    only_weights = tmp_path / "weights"
    only_weights.mkdir()
    shutil.copy(original / WEIGHTS, only_weights)
    raises_refusal(only_weights, r"has model\.safetensors but no model\.json")


@pytest.mark.parametrize("text", ["{", "", "\x00\x01"])
def test_broken_json(folder, text):
    (folder / CONFIG).write_text(text)
    raises_refusal(folder, r"model\.json is damaged")


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": 1}', '{"format": "x", "trunk": {}}'])
def test_json_of_something_else(folder, text):
    (folder / CONFIG).write_text(text)
    raises_refusal(folder, "no description of a DinoRankCLIP model")


def test_other_formats_and_entries(folder):
    change_config(folder, format=3)
    raises_refusal(folder, "format 3, this version reads 1 and 2: install a newer dinorankclip")
    change_config(folder, format=2)
    raises_refusal(folder, "it lacks 'format' or 'aligned'")
    change_config(folder, format=0)
    raises_refusal(folder, "format 0, this version reads 1 and 2")
    change_config(folder, format=1, surprise=True)
    raises_refusal(folder, "entries that this version does not know: surprise")


def test_the_start_of_a_fusion_travels_with_the_model(tmp_path):
    """A folder of an older version has no start; where it is the usual, a new folder has none either."""
    parts = Students("vit-micro", "vit-micro")
    usual = saved(tmp_path / "usual", JointModel(small_config(), 0, parts, FusionDesign("full")))
    assert json.loads((usual / CONFIG).read_text())["fusion"] == {"variant": "full", "gate": True}
    design = FusionDesign("full", start="zero", gate_bias=-1.5)
    model = JointModel(small_config(), 0, parts, design)
    with torch.no_grad():
        model.image_fusion.residual.projection.weight.fill_(0.1)
    loaded = load_folder(saved(tmp_path / "zero", model))
    assert loaded.fusion == design and loaded.image_fusion.gate.bias[0] == -1.5
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(loaded.eval().see(pixels).raw, model.eval().see(pixels).raw)
    change_config(tmp_path / "zero", fusion={"variant": "full", "gate": True, "start": "ajar"})
    raises_refusal(tmp_path / "zero", "no start of a fusion is called 'ajar'")


def test_unknown_parts(folder):
    change_config(folder, students={"image": "vit-micro", "sound": "x"})
    raises_refusal(
        folder, "students, describes no model that can be built: it has entries that are not known here: sound"
    )
    change_config(folder, students={"image": "vit-micro", "text": "vit-huge"})
    raises_refusal(folder, "no text student is called 'vit-huge'")
    change_config(folder, students={"image": "vit-micro", "text": "vit-micro"}, fusion=["full"])
    raises_refusal(folder, "fusion, describes no model that can be built: it is a list, and an object was expected")


@pytest.mark.parametrize("trunk", [{}, {"embed_dim": 32}, {"embed_dim": 32, "vision_cfg": {"size": 3}, "text_cfg": {}}])
def test_a_trunk_that_cannot_be_built(folder, trunk):
    change_config(folder, trunk=trunk)
    raises_refusal(folder, "describes no model that can be built")


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 not safetensors at all", None])
def test_unreadable_weights(folder, damage):
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: len(data) // 2] if damage is None else damage)
    raises_refusal(folder, r"model\.safetensors cannot be read")


def test_missing_and_unexpected_tensors(folder):
    change_weights(folder, lambda weights: weights.pop("trunk.towers.visual.proj"))
    raises_refusal(folder, r"does not fit model\.json: trunk\.towers\.visual\.proj missing")
    change_weights(folder, lambda weights: weights.update({"stranger": torch.zeros(1)}))
    raises_refusal(folder, r"visual\.proj missing; stranger not of this model")


def test_a_wrong_shape_is_named_with_both_shapes(folder):
    change_weights(folder, lambda weights: weights.update({"trunk.towers.visual.proj": torch.zeros(32, 31)}))
    raises_refusal(folder, r"trunk\.towers\.visual\.proj has shape \[32, 31\] instead of \[32, 32\]")


def test_a_wrong_type(folder):
    integers = {"trunk.towers.visual.proj": torch.zeros(32, 32, dtype=torch.int32)}
    change_weights(folder, lambda weights: weights.update(integers))
    raises_refusal(folder, r"visual\.proj has type torch\.int32 instead of torch\.float32")


def test_many_faults_are_counted(folder):
    change_weights(folder, lambda weights: [weights.pop(name) for name in list(weights)[:20]])
    raises_refusal(folder, "and 17 more missing")


def test_a_changed_weight_breaks_the_seal(folder):
    change_weights(folder, lambda weights: weights["trunk.towers.visual.proj"].add_(1e-3))
    raises_refusal(folder, "is damaged: its weights are not those that were exported")
    change_config(folder, weights_hash=None)
    load_folder(folder)  # a checkpoint carries no seal


def test_values_that_are_not_finite(folder):
    change_config(folder, weights_hash=None)
    change_weights(folder, lambda weights: weights["trunk.towers.visual.proj"][3].fill_(torch.nan))
    raises_refusal(folder, r"not finite \(trunk\.towers\.visual\.proj\)")


def test_a_refused_file_leaves_a_model_as_it_was(folder):
    change_weights(folder, lambda weights: weights.update({"trunk.towers.visual.proj": torch.zeros(32, 31)}))
    model = small_model("full", seed=9)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(UserError, match="does not fit"):
        load_weights(model, folder)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_another_vocabulary_is_refused(folder):
    (folder / "vocabulary.json").write_text('{"sha256": "other"}')
    with pytest.raises(UserError, match="another vocabulary"):
        load_model(folder)
    (folder / "vocabulary.json").write_text("{")
    with pytest.raises(UserError, match=r"vocabulary\.json is damaged"):
        load_model(folder)
