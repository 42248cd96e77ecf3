"""Our ids are open_clip's ids, cut."""

import random

import torch

from dinorankclip.data import tokens
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.types import TextSpec


def many_captions():
    words = ["a", "dog,", "runs;", "über", "café", "雪", "the", "&amp;", "RED's", "3.14", "<b>", "don't", "🐕", "…"]
    draw = random.Random(0)
    captions = [" ".join(draw.choices(words, k=draw.randint(1, 30))) for _ in range(300)]
    return [*captions, "", "x" * 400, "word " * 100, "<end_of_text> inside", "a\nb", "ＦＵＬＬ width"]


def test_equal_to_open_clip(tokenizer):
    import open_clip

    captions = many_captions()
    theirs = open_clip.get_tokenizer("ViT-B-32")(captions)
    assert torch.equal(tokenizer(captions, full=True), theirs)
    cut = tokenizer(captions[:50])
    assert torch.equal(cut, theirs[:50, : cut.shape[1]])
    assert (theirs[:50, cut.shape[1] :] == 0).all()
    assert (cut[:, -1] != 0).any()


def test_long_captions_keep_their_end(tokenizer):
    import open_clip

    small = Tokenizer(TextSpec(context_length=16))
    ids = small(["word " * 100, "short"])
    assert ids.shape == (2, 16)
    assert ids[0, -1] == small.end_of_text == ids.max()
    assert torch.equal(ids, open_clip.get_tokenizer("ViT-B-32")(["word " * 100, "short"], context_length=16))
    assert tokenizer.vocabulary == 49408


def test_each_caption_is_encoded_once_and_memory_is_bounded(monkeypatch, tokenizer):
    monkeypatch.setattr(tokens, "REMEMBERED", 3)
    mine = Tokenizer().load()
    calls = []
    encode = mine._bpe.encode
    monkeypatch.setattr(mine._bpe, "encode", lambda text: calls.append(text) or encode(text))
    mine(["a", "b", "a"])
    mine(["a", "b"])
    assert calls == ["a", "b"]
    mine(["c", "d", "e"])
    assert len(mine._known) == 3


def test_no_captions():
    assert Tokenizer()([]).shape[0] == 0
