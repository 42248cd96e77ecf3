"""Made-up pairs look to a trunk like real ones."""

import torch

from bench.sides import END_OF_TEXT, START_OF_TEXT, TOKENS, made_up_pairs, starting_model
from dinorankclip.data.tokens import Tokenizer


def test_captions_end_where_the_tokenizer_ends_them():
    start, *_, end = Tokenizer().encode("a bird")
    assert (start, end) == (START_OF_TEXT, END_OF_TEXT)
    model = starting_model("drc-tiny")
    pairs = made_up_pairs(model, 3)
    assert pairs.texts.shape == (3, TOKENS) and (pairs.texts.argmax(1) == TOKENS - 1).all()
    assert pairs.images.shape == (3, 3, *[model.trunk.image_spec.size] * 2) and pairs.images.dtype == torch.uint8
    again, other = made_up_pairs(model, 3), made_up_pairs(model, 3, seed=1)
    assert pairs.images.equal(again.images) and not pairs.images.equal(other.images)
