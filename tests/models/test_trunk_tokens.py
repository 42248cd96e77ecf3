"""The trunk's own tokens: open_clip's, with the embedding that the trunk gives anyway."""

import pytest
import torch

from dinorankclip.data.tokens import Tokenizer
from dinorankclip.models.trunk import OwnImageTokens, OwnTextTokens, Trunk, trunk_config
from dinorankclip.types import UserError

CAPTIONS = ["a dog", "two cats on a very small mat", "word " * 90]


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
    own, ids = OwnTextTokens(trunk), tokenizer(CAPTIONS)
    embedding, seen = own(ids)
    torch.testing.assert_close(embedding, trunk.encode_text(ids), atol=1e-12, rtol=0)
    assert own.width == 96 and seen.tokens.shape == (*ids.shape, 96)
    assert seen.mask.sum(1).tolist() == ids.argmax(1).tolist()
    short = own(tokenizer(CAPTIONS[:1]))[1]  # a causal token knows nothing of what follows, padding included
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
