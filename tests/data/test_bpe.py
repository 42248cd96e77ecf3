"""Byte pairs in plain Python give open_clip's ids."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dinorankclip.data.bpe import BytePairs

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
