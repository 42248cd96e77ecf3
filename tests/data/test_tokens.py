"""Token ids are open_clip's ids, cut; byte pairs in plain Python give the same ids."""

import functools
import itertools
import random
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dinorankclip.data import tokens
from dinorankclip.data.tokens import READ, BytePairs, Tokenizer, merged
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


PIECES = ["&amp;", "&lt;", "&#27;[3m", " ", "\t", "'s", "'S", "<start_of_text>", "<END_OF_TEXT>", "naïve", "B", "_"]
PIECES += ["12", "ſ", "İ", "’", "日本", "😀", "â€œ", "\ufeff", "\x00", "\x85", "ﬁ", "snow", "BOARDING"]


@pytest.fixture(scope="module")
def bpe():
    return BytePairs()


@pytest.mark.parametrize(
    "caption",
    [
        "a photo of two dogs",
        "",
        "   ",
        "It's  DON'T we'll",
        "&amp;lt;b&gt; 5 &quot;x",
        "123 45.6%",
        "x" * 400,
        "dog " * 90,
    ],
)
def test_known_captions(bpe, tokenizer, caption):
    assert bpe(caption) == tokenizer.encode(caption)
    assert len(bpe(caption)) <= 77 and bpe(caption)[-1] == 49407


def test_ids_worked_by_hand(bpe):
    # "a" is the 65th visible character: id 64 inside a word, 64 + 256 at its end.
    assert bpe("a") == [49406, 320, 49407]
    assert bpe("!") == [49406, 256, 49407]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.one_of(st.text(max_size=40), st.lists(st.sampled_from(PIECES), max_size=12).map("".join)))
def test_any_text(bpe, tokenizer, caption):
    assert bpe(caption) == tokenizer.encode(caption)


def slowly_merged(pieces, order):
    """Joins every occurrence of the first pair, again and again: the definition."""
    while pairs := [pair for pair in itertools.pairwise(pieces) if pair in order]:
        first, joined, at = min(pairs, key=order.get), [], 0
        while at < len(pieces):
            size = 2 if tuple(pieces[at : at + 2]) == first else 1
            joined.append("".join(pieces[at : at + size]))
            at += size
        pieces = joined
    return pieces


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=60), st.permutations(range(8)))
def test_pairs_are_merged_as_by_definition(pieces, ranks):
    """Ranks in any order: also pairs that come before the pair that made one of their pieces, which no file has."""
    pairs = [("a", "a"), ("a", "b"), ("b", "a"), ("aa", "b"), ("b", "aa"), ("ab", "ab"), ("aab", "a"), ("aa", "aa")]
    order = dict(zip(pairs, ranks))
    assert merged(pieces, order) == slowly_merged(list(pieces), order)


@settings(max_examples=30, deadline=None)
@given(st.text(min_size=1, max_size=700))
def test_long_captions_have_the_ids_of_open_clip(text):
    tokenizer, caption = known(), f"{text} {text} x{text}"
    assert tokenizer.encode(caption)[1:-1] == tokenizer._bpe.encode(caption)[:75]
    assert tokenizer.whole_length(caption) == len(tokenizer._bpe.encode(caption)) + 2


@settings(max_examples=30, deadline=None)
@given(st.text(st.characters(categories=["Ll", "Lo"]), min_size=260, max_size=1200))
def test_long_words_have_the_ids_of_open_clip(word):
    tokenizer = known()
    assert tokenizer.encode(word)[1:-1] == tokenizer._bpe.encode(word)[:75]
    assert BytePairs()(word) == tokenizer.encode(word)


@functools.cache
def known():
    return Tokenizer().load()


def test_a_word_of_fifty_thousand_letters_takes_no_time():
    """It took 36 seconds: the square of its length."""
    draws = np.random.default_rng(0)
    word = "".join(draws.choice(list("abcdefghijklmnopqrstuvwxyz"), 50_000))
    began = time.process_time()
    assert len(known().encode(word)) == 77 and known().encode(word) == known().encode(word[:READ])
    assert len(BytePairs()(word)) == 77
    assert time.process_time() - began < 5


def test_memory_for_captions_and_words_is_bounded(monkeypatch):
    monkeypatch.setattr(tokens, "REMEMBERED_BYTES", 20_000)
    tokenizer = Tokenizer().load()
    special = dict(tokenizer._bpe.cache)
    for number in range(300):
        caption = "".join(chr(97 + int(digit)) for digit in str(number)) + " red mug" * 10
        assert tokenizer.encode(caption) == known().encode(caption)
        assert tokenizer._known_bytes <= 20_000
    sizes = (tokens._entry_bytes(caption, ids) for caption, ids in tokenizer._known.items())
    assert 10 < len(tokenizer._known) < 100 and tokenizer._known_bytes == sum(sizes)
    assert len(tokenizer._bpe.cache) < 150 and special.items() <= tokenizer._bpe.cache.items()
    tokenizer.encode("a" * (READ + 1))
    assert "a" * (READ + 1) not in tokenizer._known
