"""`open_clip:NAME:TAG`: published weights from the local hub cache, computed as their record says."""

import huggingface_hub
import open_clip
import pytest
import torch
from open_clip import pretrained

from dinorankclip import hub
from dinorankclip.models.loaded import load_model
from dinorankclip.models.trunk import trunk_config
from dinorankclip.models.weights_file import write_weights
from dinorankclip.types import UserError


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A hub cache with weights of drc-tiny, and two records of open_clip about them."""
    monkeypatch.setenv(hub.ONLINE, "")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    records = {
        "quick": pretrained._pcfg(hf_hub="owner/tiny/", quick_gelu=True),
        "squashed": pretrained._slpcfg(hf_hub="owner/tiny/open_clip_model.bin"),
        "elsewhere": pretrained._pcfg(hf_hub="owner/not-there/"),
    }
    monkeypatch.setitem(pretrained._PRETRAINED, "drc-tiny", records)
    torch.manual_seed(0)
    towers = open_clip.CLIP(**trunk_config("drc-tiny"))
    snapshot = tmp_path / "models--owner--tiny" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--owner--tiny" / "refs").mkdir()
    (tmp_path / "models--owner--tiny" / "refs" / "main").write_text("abc")
    write_weights(towers.state_dict(), snapshot / "open_clip_model.safetensors")
    return towers


def test_the_record_decides_on_quick_gelu(cache):
    ours = load_model("open_clip:drc-tiny:quick", device="cpu")
    theirs = open_clip.CLIP(**trunk_config("drc-tiny") | {"quick_gelu": True}).eval()
    theirs.load_state_dict(cache.state_dict())
    pixels = torch.randn(2, 3, 48, 48)
    with torch.no_grad():
        expected, other = theirs.encode_image(pixels), cache.eval().encode_image(pixels)
    found = ours.encode_image(pixels, normalize=False)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert (found - other).abs().max() > 1e-4


def test_the_record_decides_how_images_are_shown(cache):
    spec = load_model("open_clip:drc-tiny:squashed", device="cpu").image_spec
    assert (spec.resize, spec.mean, spec.interpolation) == ("squash", (0.5, 0.5, 0.5), "bicubic")


def test_weights_that_no_cache_has_are_not_fetched(cache):
    with pytest.raises(UserError, match=r"local hub cache does not have.*dinorankclip --online"):
        load_model("open_clip:drc-tiny:elsewhere")


def test_the_openai_weights_of_a_plain_name_are_quick():
    for name in ("ViT-B-32", "ViT-B-16", "ViT-L-14"):
        assert open_clip.get_pretrained_cfg(name, "openai").get("quick_gelu") is True
