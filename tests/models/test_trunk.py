import math

import open_clip
import pytest
import torch
from open_clip.loss import ClipLoss

from dinorankclip.losses.contrastive import info_nce
from dinorankclip.losses.objective import Objective
from dinorankclip.models.joint import JointModel
from dinorankclip.models.trunk import Trunk, trunk_config
from dinorankclip.types import Progress, UserError

CAPTIONS = ["a red mug", "two dogs run over a green field near the sea", "x", "a very small boat at night"]


def tokens(length=None):
    full = open_clip.get_tokenizer("ViT-B-32")(CAPTIONS)
    return full[:, :length]


def longest():
    return int(tokens().argmax(1).max()) + 1


def test_cut_captions_give_the_features_of_the_whole_context():
    trunk = Trunk(trunk_config("drc-small")).double()
    cut, whole = trunk.encode_text(tokens(longest())), trunk.encode_text(tokens())
    assert cut.shape == whole.shape == (4, 128)
    torch.testing.assert_close(cut, whole, atol=1e-12, rtol=0)
    torch.testing.assert_close(whole, trunk.towers.encode_text(tokens()), atol=1e-12, rtol=0)


def test_a_tower_that_cannot_be_cut_is_padded_instead():
    config = trunk_config("drc-tiny")
    config["text_cfg"]["no_causal_mask"] = True
    config["custom_text"] = True
    trunk = Trunk(config)
    assert not trunk.cuts_captions
    torch.testing.assert_close(trunk.encode_text(tokens(longest())), trunk.encode_text(tokens()), atol=1e-6, rtol=0)


def test_loss_equals_open_clips_with_cut_and_whole_captions():
    model = JointModel(trunk_config("drc-tiny"), seed=3)
    images = torch.randint(0, 256, (4, 3, 48, 48), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    towers = model.trunk.towers
    spec = model.trunk.image_spec
    pixels = (images / 255 - torch.tensor(spec.mean).view(3, 1, 1)) / torch.tensor(spec.std).view(3, 1, 1)
    image, text, scale = towers(pixels, tokens())
    theirs, scale = ClipLoss()(image, text, scale).detach(), scale.detach()
    objective = Objective(model.dim, "clip")
    for texts in (tokens(longest()), tokens()):
        with torch.no_grad():
            embeddings = model(images, texts)
        ours = objective(embeddings, model.scale(), Progress(0, 1, 1)).total.detach()
        assert abs(float(ours - theirs)) < 1e-6
        assert abs(float(info_nce(embeddings.image, embeddings.text, scale) - theirs)) < 1e-6


@pytest.mark.parametrize("name", ["drc-tiny", "drc-small"])
def test_loss_at_initialisation_is_near_log_batch(name):
    model = JointModel(trunk_config(name))
    size = model.trunk.image_spec.size
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (128, 3, size, size), dtype=torch.uint8, generator=generator)
    texts = torch.randint(1, 40_000, (128, 12), generator=generator)
    texts[:, 0], texts[:, -1] = 49406, 49407
    with torch.no_grad():
        loss = Objective(model.dim, "clip")(model(images, texts), model.scale(), Progress(0, 1, 1)).total
    assert abs(float(loss) / math.log(128) - 1) < 0.05


def test_initial_weights_depend_on_the_seed_alone():
    torch.manual_seed(1)
    first = Trunk(trunk_config("drc-tiny"), seed=5).state_dict()
    before = torch.get_rng_state()
    second = Trunk(trunk_config("drc-tiny"), seed=5).state_dict()
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[n], second[n]) for n in first)
    other = Trunk(trunk_config("drc-tiny"), seed=6).state_dict()
    assert not torch.equal(first["towers.visual.proj"], other["towers.visual.proj"])


def test_open_clip_weights_from_a_local_file(tmp_path):
    towers = open_clip.create_model("drc-tiny")
    torch.save(towers.state_dict(), tmp_path / "weights.pt")
    trunk = Trunk(trunk_config("drc-tiny"))
    trunk.load_weights(tmp_path / "weights.pt")
    assert torch.equal(trunk.towers.visual.proj, towers.visual.proj)
    with pytest.raises(UserError, match="does not hold weights of this trunk"):
        Trunk(trunk_config("drc-small")).load_weights(tmp_path / "weights.pt")
    with pytest.raises(UserError, match="no weights file"):
        trunk.load_weights(tmp_path / "missing.pt")


def test_an_unknown_trunk_suggests_the_nearest():
    with pytest.raises(UserError, match="ViT-B-32"):
        trunk_config("ViT-B32")
