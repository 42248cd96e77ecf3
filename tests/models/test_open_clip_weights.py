"""open_clip models by name, file and folder; cautions about published weights."""

import json
import shutil
import socket
import warnings

import open_clip
import pytest
import torch
from safetensors.torch import save_file

from dinorankclip.commands.train import parse
from dinorankclip.models.joint import JointModel
from dinorankclip.models.loaded import load_model
from dinorankclip.models.open_clip_weights import refuse_foreign_captions, weights_caution
from dinorankclip.models.trunk import trunk_config
from dinorankclip.train.assemble import build_model
from dinorankclip.types import UserError
from tests.models.model_making import small_config, small_model


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("something wanted the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_random_weights_are_those_of_seed_0_and_only_if_asked_for():
    with pytest.warns(UserWarning, match="open_clip:drc-tiny:random: random weights from seed 0"):
        model = load_model("open_clip:drc-tiny:random")
    assert "random weights from seed 0" in model.reason and model.name == "open_clip:drc-tiny:random"
    from dinorankclip.models.trunk import trunk_config

    expected = JointModel(trunk_config("drc-tiny"), seed=0).state_dict()
    assert all(torch.equal(expected[name], tensor) for name, tensor in model.parts.state_dict().items())


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_a_local_file_of_weights(tmp_path, ending):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        towers = open_clip.create_model("drc-tiny")
    path = tmp_path / f"weights.{ending}"
    (save_file if ending == "safetensors" else torch.save)(towers.state_dict(), path)
    model = load_model(f"open_clip:drc-tiny:{path}")
    images = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = towers.eval().encode_image(images, normalize=True)
    torch.testing.assert_close(model.encode_image(images), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("data", [b"", b"no weights", None])
def test_a_damaged_file_of_weights(tmp_path, data):
    for ending in ("pt", "safetensors"):
        path = tmp_path / f"weights.{ending}"
        path.write_bytes(b"x" * 200 if data is None else data)
        with pytest.raises(UserError, match="does not hold weights of this trunk"):
            load_model(f"open_clip:drc-tiny:{path}")


def test_wrong_names_get_advice():
    with pytest.raises(UserError, match="did you mean ViT-B-32"):
        load_model("open_clip:ViT-B/32")
    with pytest.raises(UserError, match=r"nothing is downloaded unless you ask.*open_clip:ViT-B-32:PATH"):
        load_model("open_clip:ViT-B-32:laion2b_s34b_b79k")
    with pytest.raises(UserError, match=r"no weights were named.*open_clip:ViT-B-32:PATH.*open_clip:ViT-B-32:random"):
        load_model("open_clip:ViT-B-32")
    with pytest.raises(UserError, match=r"no weights were named; give a local file: open_clip:drc-tiny:PATH"):
        load_model("open_clip:drc-tiny")
    with pytest.raises(UserError, match=r"no weights file at gone\.pt"):
        load_model("open_clip:drc-tiny:gone.pt")
    for name in ("", "."):
        with pytest.raises(UserError, match="expected open_clip:NAME"):
            load_model(f"open_clip:{name}")


@pytest.mark.parametrize("name", ["ViT-B-16-SigLIP", "roberta-ViT-B-32", "ViT-L-14-CLIPA"])
def test_models_that_read_captions_in_another_way_are_refused(name):
    with pytest.raises(UserError, match=r"tokenizer of its own|vocabulary of|in a way of its own"):
        load_model(f"open_clip:{name}")


@pytest.fixture
def trunk_folder(tmp_path):
    """As open_clip writes them, with its weights and a mean and std of its own."""
    folder = tmp_path / "trunk"
    folder.mkdir()
    preprocessing = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "interpolation": "bicubic"}
    config = {"model_cfg": small_config(), "preprocess_cfg": preprocessing}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    save_file(small_model(seed=4).trunk.towers.state_dict(), folder / "open_clip_model.safetensors")
    return folder


def test_a_folder_of_open_clip(trunk_folder):
    model = load_model(f"open_clip:{trunk_folder}")
    assert model.image_spec.mean == model.image_spec.std == (0.5, 0.5, 0.5)
    towers, _, _ = open_clip.create_model_and_transforms(f"local-dir:{trunk_folder}")
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        expected = towers.eval().encode_image((images / 255 - 0.5) / 0.5, normalize=True)
    torch.testing.assert_close(model.encode_image(images), expected, atol=1e-6, rtol=0)


def test_damaged_folders_of_open_clip(trunk_folder, tmp_path):
    squashed = shutil.copytree(trunk_folder, tmp_path / "squashed")
    config = json.loads((squashed / "open_clip_config.json").read_text())
    config["preprocess_cfg"]["resize_mode"] = "longest"
    (squashed / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="resize_mode 'longest' is not supported"):
        load_model(f"open_clip:{squashed}")
    (trunk_folder / "open_clip_model.safetensors").unlink()
    with pytest.raises(UserError, match="but none of open_clip_model"):
        load_model(f"open_clip:{trunk_folder}")
    (trunk_folder / "open_clip_config.json").write_text('{"embed_dim": 3}')
    with pytest.raises(UserError, match="no open_clip configuration"):
        load_model(f"open_clip:{trunk_folder}")


def test_training_begins_with_such_a_folder(trunk_folder):
    settings, *_ = parse(["--preset", "finetune", "--data", "photos.csv", "--init", f"open_clip:{trunk_folder}"])
    model = build_model(settings)
    expected = small_model(seed=4).trunk.towers.state_dict()
    started = model.trunk.towers.state_dict()
    assert started.keys() == expected.keys() and all(torch.equal(started[n], tensor) for n, tensor in expected.items())
    assert model.trunk.image_spec.mean == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("name", ["ViT-B-32-quickgelu", "RN50-quickgelu", "ViT-B-16-plus-240", "drc-tiny"])
def test_files_of_models_whose_published_weights_are_all_used_as_they_were_made(name):
    assert weights_caution(name) == ""
    refuse_foreign_captions(trunk_config(name), name)


def test_a_file_that_may_have_been_shown_images_another_way_gets_a_caution():
    reported = weights_caution("ViT-L-14")  # LAION's has mean and std of 0.5, OpenAI's has CLIP's
    views = reported.partition("computes with")[0]
    assert "laion2b_s32b_b82k" in views and "openai" not in views


def test_a_file_that_may_have_been_trained_with_quick_gelu_gets_a_caution():
    reported = weights_caution("ViT-B-32")  # OpenAI's have QuickGELU, LAION's larger ones GELU
    assert (
        "openai" in reported
        and "laion2b_s34b_b79k" not in reported
        and "take ViT-B-32-quickgelu as the name" in reported
    )


@pytest.mark.parametrize(("name", "why"), [("MobileCLIP-S1", "interpolation bilinear"), ("ViT-H-14-378", "squash")])
def test_a_file_that_cannot_have_been_shown_images_our_way_is_refused(name, why):
    with pytest.raises(UserError, match=why):
        weights_caution(name)


def test_training_refuses_trunks_that_read_captions_in_another_way():
    settings, *_ = parse(["--preset", "finetune", "--model.trunk", "ViT-B-16-SigLIP", "--data", "photos.csv"])
    with pytest.raises(UserError, match="tokenizer of its own"):
        build_model(settings)
