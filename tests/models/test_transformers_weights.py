"""CLIP and SigLIP folders of transformers as trunk: features, vocabularies and images as their own library has them."""

import json

import pytest
import torch

from dinorankclip.commands.entry import main
from dinorankclip.models.folder import load_folder
from dinorankclip.models.loaded import load_model
from dinorankclip.models.transformers_layout import CLIP, SIGLIP, to_ours, to_theirs
from dinorankclip.types import UserError
from tests.models.foreign_making import TEXTS, clip_folder, rows_of, siglip_folder
from tests.models.model_making import photo
from tests.train.running import small_pairs

pytest.importorskip("transformers")
MAKERS = {CLIP: clip_folder, SIGLIP: siglip_folder}


@pytest.fixture(scope="module", params=MAKERS)
def foreign(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "theirs"
    return request.param, folder, MAKERS[request.param](folder)


def test_features_equal_the_library(foreign):
    _, folder, theirs = foreign
    ours = load_model(f"transformers:{folder}", device="cpu")
    pixels, ids = torch.randn(3, 3, 32, 32).clamp(-3, 3), ours.tokenizer(TEXTS)
    with torch.no_grad():
        expected = rows_of(theirs.get_image_features(pixel_values=pixels)), rows_of(theirs.get_text_features(ids))
    torch.testing.assert_close(ours.encode_image(pixels, normalize=False), expected[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(ours.encode_text(TEXTS, normalize=False), expected[1], atol=1e-5, rtol=0)


def test_logits_equal_the_library(foreign):
    kind, folder, theirs = foreign
    ours = load_model(f"transformers:{folder}", device="cpu")
    pixels, ids = torch.randn(3, 3, 32, 32).clamp(-3, 3), ours.tokenizer(TEXTS)
    with torch.no_grad():
        expected = theirs(input_ids=ids, pixel_values=pixels).logits_per_image
        bias = ours.parts.bias() if kind == SIGLIP else 0.0
        found = ours.parts.scale() * ours.encode_image(pixels) @ ours.encode_text(TEXTS).T + bias
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)


def test_captions_and_photos_are_shown_as_the_library_does(foreign):
    from transformers import AutoImageProcessor, PreTrainedTokenizerFast

    kind, folder, _ = foreign
    ours = load_model(f"transformers:{folder}", device="cpu")
    names = {"eos_token": "</s>", "pad_token": "<pad>" if kind == CLIP else "</s>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **names)
    longest = ours.text_spec.context_length
    rows = tokenizer(TEXTS, padding="max_length", truncation=True, max_length=longest, return_tensors="pt")
    assert torch.equal(ours.tokenizer(TEXTS, full=True), rows["input_ids"])
    pixels = AutoImageProcessor.from_pretrained(folder)(photo(), return_tensors="pt")["pixel_values"]
    shown = ours.parts.normalised(ours.preprocess(photo())[None])
    assert (shown - pixels).abs().max() < 0.04  # one or two levels of 255, by another resizing


def test_weights_go_there_and_back(foreign):
    kind, folder, theirs = foreign
    trunk = load_model(f"transformers:{folder}", device="cpu").parts.trunk
    back = to_theirs(kind, trunk.config, trunk.towers.state_dict())
    assert all(torch.equal(back[name], value) for name, value in theirs.state_dict().items() if name in back)
    again = to_ours(kind, trunk.config, back)
    assert all(torch.equal(again[name], value) for name, value in trunk.towers.state_dict().items())


def test_a_run_starts_from_such_a_folder_and_keeps_its_vocabulary(foreign, tmp_path, capsys):
    kind, folder, _ = foreign
    method = "clip" if kind == CLIP else "siglip"
    run = tmp_path / "run"
    pairs = small_pairs(tmp_path / "pairs")
    words = f"train --preset finetune --method {method} --data {pairs} --init transformers:{folder} --run {run}"
    words += " --budget.steps 3 --budget.batch 16 --reading.workers 0"
    main(words.split())
    model = load_folder(run)
    assert model.vocabulary is not None and (run / "checkpoints/last/tokenizer.json").is_file()
    before = load_model(f"transformers:{folder}", device="cpu").parts
    moved = [
        name
        for name, value in model.trunk.state_dict().items()
        if not torch.equal(value, before.trunk.state_dict()[name])
    ]
    assert len(moved) > 20
    assert load_model(run, device="cpu").tokenizer(TEXTS).tolist() == before.tokenizer()(TEXTS).tolist()
    (run / "checkpoints/last/tokenizer.json").write_text("{}")
    (run / "checkpoints/last/checksums.sha256").unlink(missing_ok=True)
    with pytest.raises(UserError, match="not the vocabulary of this model"):
        load_folder(run)


def test_the_sigmoid_bias_and_the_way_of_images_come_along(tmp_path):
    siglip_folder(tmp_path / "sig")
    model = load_model(f"transformers:{tmp_path / 'sig'}", device="cpu")
    assert model.parts.bias() is not None and (model.image_spec.resize, model.image_spec.mean[0]) == ("squash", 0.5)
    assert model.tokenizer(["a"]).shape == (1, 16)


def changed(folder, file, **entries):
    config = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(config | entries))


def test_refusals(tmp_path, monkeypatch):
    folder = tmp_path / "clip"
    clip_folder(folder)
    where = f"transformers:{folder}"
    for entries, message in (
        ({"model_type": "bert"}, "only clip and siglip"),
        ({"auto_map": {"AutoModel": "code.Model"}}, "code of its own"),
        ({"projection_dim": 48}, "do not fit"),
        ({"text_config_dict": {"vocab_size": 1 << 20}}, "at least"),
        ({"text_config_dict": {"hidden_act": "relu"}}, "hidden_act"),
    ):
        before = (folder / "config.json").read_text()
        changed(folder, "config.json", **entries)
        with pytest.raises(UserError, match=message):
            load_model(where)
        (folder / "config.json").write_text(before)
    changed(folder, "preprocessor_config.json", size={"shortest_edge": 48})
    with pytest.raises(UserError, match="images are shown as size"):
        load_model(where)
    changed(folder, "preprocessor_config.json", size={"shortest_edge": 32})
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="other files may hold code"):
        load_model(where)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UserError, match="local hub cache has no model of that name"):
        load_model("transformers:owner/no-such-model")
    with pytest.raises(UserError, match="expected a folder"):
        load_model("transformers:../elsewhere/x/y")
