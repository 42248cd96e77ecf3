"""The trunk: open_clip's values on cut captions, named seeds, its own tokens for a teacher."""

import math

import open_clip
import pytest
import torch
from open_clip.loss import ClipLoss

from dinorankclip.data.tokens import Tokenizer
from dinorankclip.losses.contrastive import info_nce
from dinorankclip.losses.objective import Objective
from dinorankclip.models.joint import JointModel
from dinorankclip.models.own_tokens import OwnImageTokens, OwnTextTokens
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
    torch.save({n: t for n, t in towers.state_dict().items() if n != "visual.proj"}, tmp_path / "part.pt")
    with pytest.raises(UserError, match=r"is its name right\? Missing key.*visual.proj"):
        trunk.load_weights(tmp_path / "part.pt")
    with pytest.raises(UserError, match="no weights file"):
        trunk.load_weights(tmp_path / "missing.pt")


def test_an_unknown_trunk_suggests_the_nearest():
    with pytest.raises(UserError, match="ViT-B-32"):
        trunk_config("ViT-B32")


UNEVEN_CAPTIONS = ["a dog", "two cats on a very small mat", "word " * 90]


def test_image_tokens_are_open_clips():
    trunk = Trunk(trunk_config("drc-tiny")).double()
    own = OwnImageTokens(trunk)
    images = torch.randn(3, 3, 48, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    embedding, seen = own(images)
    torch.testing.assert_close(embedding, trunk.encode_image(images), atol=1e-12, rtol=0)
    trunk.towers.visual.output_tokens = True
    theirs, tokens = trunk.towers.visual(images)
    torch.testing.assert_close(seen.tokens, tokens, atol=1e-12, rtol=0)
    torch.testing.assert_close(seen.summary @ trunk.towers.visual.proj, theirs, atol=1e-12, rtol=0)
    assert (own.width, own.grid) == (96, (6, 6)) and seen.tokens.shape == (3, 36, 96)


def test_text_tokens_stand_at_the_places_of_the_ids():
    trunk = Trunk(trunk_config("drc-tiny")).double()
    tokenizer = Tokenizer(trunk.text_spec)
    own, ids = OwnTextTokens(trunk), tokenizer(UNEVEN_CAPTIONS)
    embedding, seen = own(ids)
    torch.testing.assert_close(embedding, trunk.encode_text(ids), atol=1e-12, rtol=0)
    assert own.width == 96 and seen.tokens.shape == (*ids.shape, 96)
    assert seen.mask.sum(1).tolist() == ids.argmax(1).tolist()
    short = own(tokenizer(UNEVEN_CAPTIONS[:1]))[1]  # a causal token knows nothing of what follows, padding included
    torch.testing.assert_close(seen.tokens[:1, : short.tokens.shape[1]], short.tokens, atol=1e-12, rtol=0)
    torch.testing.assert_close(seen.summary @ trunk.towers.text_projection, embedding, atol=1e-12, rtol=0)


def test_towers_without_such_tokens_are_refused():
    config = trunk_config("drc-tiny")
    config["vision_cfg"]["pool_type"] = "avg"
    with pytest.raises(UserError, match="plain ViT with a class token"):
        OwnImageTokens(Trunk(config))
    config["text_cfg"]["pool_type"] = "last"
    with pytest.raises(UserError, match=r"--distil\.branches image"):
        OwnTextTokens(Trunk(config))


def test_the_large_trunk_has_the_full_models_parameters():
    """The control for capacity: within 3 % of drc-tiny with both students and their fusion, text table included."""
    from dinorankclip.presets import for_method, preset
    from dinorankclip.train.assemble import build_model

    full = build_model(for_method(preset("scenes"), "dinorankclip"))
    large, plain = Trunk(trunk_config("drc-tiny-large")), Trunk(trunk_config("drc-tiny"))
    counts = [sum(p.numel() for p in model.parameters()) for model in (full, large, plain)]
    assert abs(counts[1] / counts[0] - 1) < 0.03
    # What was added matches too, and it is not the token table, which does not grow.
    assert abs((counts[1] - counts[2]) / (counts[0] - counts[2]) - 1) < 0.2
    assert large.towers.token_embedding.weight.shape == plain.towers.token_embedding.weight.shape
    assert large.image_spec == plain.image_spec and large.dim == plain.dim
