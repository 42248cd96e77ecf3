"""Folders for transformers and sentence-transformers give the model's embeddings, and say what they need."""

import json

import pytest
import torch

from dinorankclip.models.export_files import least_cosine, trial_photos
from dinorankclip.models.export_model import write_export
from dinorankclip.models.loaded import load_model
from dinorankclip.models.transformers_layout import kind_of
from dinorankclip.models.trunk import trunk_config
from tests.models.foreign_making import TEXTS, rows_of, siglip_folder
from tests.models.model_making import CAPTIONS, photo, saved, small_config, small_model

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("quick", [False, True])
def test_a_plain_trunk_is_a_clip_model(tmp_path, quick):
    from dinorankclip.models.joint import JointModel

    model = JointModel(small_config() | ({"quick_gelu": True} if quick else {}), 3)
    source = saved(tmp_path / "plain", model)
    written = write_export(str(source), tmp_path / "out", ["transformers"], licence="mit")
    assert written.remarks[0].startswith("CLIPModel: smallest cosine") and len(written.remarks) == 1
    theirs = transformers.CLIPModel.from_pretrained(tmp_path / "out")
    processor = transformers.CLIPProcessor.from_pretrained(tmp_path / "out")
    assert theirs.config.text_config.hidden_act == ("quick_gelu" if quick else "gelu")
    photos, captions = [photo(number) for number in range(3)], [caption for caption in CAPTIONS if caption]
    with torch.no_grad():
        images = rows_of(theirs.get_image_features(**processor(images=photos, return_tensors="pt")))
        texts = rows_of(theirs.get_text_features(**processor(text=captions, return_tensors="pt", padding=True)))
    assert least_cosine(load_model(source), images, texts, photos, captions) > 0.99999
    assert float(theirs.logit_scale) == pytest.approx(float(model.logit_scale))
    # And back: the folder as a trunk is the model again.
    back = load_model(f"transformers:{tmp_path / 'out'}", device="cpu")
    assert back.parts.vocabulary is None and back.identity == load_model(source).identity


def test_a_fused_model_needs_its_adapter_and_says_so(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("builtins.input", lambda question="": asked.append(question) or "n")
    source = saved(tmp_path / "fused", small_model("full", seed=2))
    written = write_export(str(source), tmp_path / "out", ["transformers"])
    assert any("trust_remote_code=True" in remark for remark in written.remarks)
    card = (tmp_path / "out" / "README.md").read_text()
    assert "trust_remote_code=True" in card and "custom_code" in card and "pip install dinorankclip" in card
    with pytest.raises(ValueError, match="trust_remote_code"):
        transformers.AutoModel.from_pretrained(tmp_path / "out", trust_remote_code=False)
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "out", trust_remote_code=True)
    processor = transformers.AutoProcessor.from_pretrained(tmp_path / "out", trust_remote_code=True)
    assert asked == []  # neither the export nor the lines of the card end in a question
    photos, captions = trial_photos(3)
    with torch.no_grad():
        out = theirs(**processor(text=captions, images=photos, return_tensors="pt", padding=True))
    assert least_cosine(load_model(source), out.image_embeds, out.text_embeds, photos, captions) > 0.99999
    assert out.logits_per_image.shape == (3, 3)
    # The folder is a model folder of ours, too.
    assert load_model(tmp_path / "out").identity == load_model(source).identity


def test_siglip_goes_back_to_transformers(tmp_path):
    siglip_folder(tmp_path / "theirs")
    where = f"transformers:{tmp_path / 'theirs'}"
    written = write_export(where, tmp_path / "out", ["transformers"], licence="mit")
    assert written.remarks[0].startswith("SiglipModel: smallest cosine")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_type"] == "siglip" and config["vision_config"]["hidden_act"] == "gelu_pytorch_tanh"
    one, other = load_model(where), load_model(f"transformers:{tmp_path / 'out'}")
    assert torch.equal(one.encode_text(TEXTS), other.encode_text(TEXTS))  # the vocabulary is written in another style
    assert one.parts.trunk.config == other.parts.trunk.config


def test_sentence_transformers_reads_photos_and_captions(tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    photos, captions = trial_photos(3)
    for variant, trust in ((None, False), ("full", True)):
        source = saved(tmp_path / f"model-{variant}", small_model(variant, seed=2))
        out = tmp_path / f"out-{variant}"
        written = write_export(str(source), out, ["sentence-transformers"], licence="mit")
        assert any("trust_remote_code" in remark for remark in written.remarks) == trust
        encoder = sentence_transformers.SentenceTransformer(str(out), device="cpu", trust_remote_code=trust)
        images, texts = encoder.encode(photos), encoder.encode(captions)
        assert least_cosine(load_model(source), images, texts, photos, captions) > 0.99999


def test_networks_that_transformers_lacks_are_no_clip_model():
    for name in ("RN50", "convnext_base"):
        assert kind_of(trunk_config(name), set()) is None
