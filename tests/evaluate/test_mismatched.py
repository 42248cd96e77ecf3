"""Captions at the wrong image: the fit of pairs against loops, and planted swaps that are found."""

import numpy as np
import pytest

from dinorankclip.evaluate import mismatched
from dinorankclip.evaluate.mismatched import fit_of_pairs


def rows(count, seed, dim=32, noise=0.0, like=None):
    draw = np.random.default_rng(seed)
    table = draw.normal(size=(count, dim)) if like is None else like + noise * draw.normal(size=like.shape)
    return (table / np.linalg.norm(table, axis=1, keepdims=True)).astype(np.float32)


def planted(noise, images=400, each=2, wrong=0.05):
    """Pairs whose captions resemble their image; a share of the captions belongs to another."""
    pictures = rows(images, 0)
    image_of = np.repeat(np.arange(images), each)
    texts = rows(0, 1, noise=noise, like=pictures[image_of])
    swapped = np.random.default_rng(2).choice(len(texts), round(wrong * len(texts)), replace=False)
    texts[swapped] = texts[np.roll(swapped, 1)]
    return pictures, texts, image_of, set(swapped.tolist())


def standard(value, others):
    return (value - np.mean(others)) / np.std(others)


def test_the_fit_is_that_of_the_loops(monkeypatch):
    monkeypatch.setattr(mismatched, "CAPTIONS_AT_ONCE", 3)
    pictures, texts = rows(5, 0, 6), rows(8, 1, 6)
    image_of = np.array([0, 1, 2, 3, 4, 0, 1, 2])
    s = texts.astype(float) @ pictures.T.astype(float)
    found = fit_of_pairs(pictures, texts, image_of)
    for t in range(8):
        i = image_of[t]
        expected = (standard(s[t, i], s[t]) + standard(s[t, i], s[:, i])) / 2
        assert found.fit[t] == pytest.approx(expected, abs=1e-9)
        assert found.cosine[t] == pytest.approx(s[t, i], abs=1e-9)
        assert found.better[t] == sum(s[t, j] > s[t, i] for j in range(5))
        assert found.best_other[t] == max((j for j in range(5) if j != i), key=lambda j: s[t, j])


def test_random_pairs_never_have_the_own_image_and_share_above_is_a_rank():
    pictures, texts, image_of, _ = planted(noise=0.0, wrong=0.0)
    found = fit_of_pairs(pictures, texts, image_of)
    assert found.random_fit.max() < found.fit.min()  # equal rows: every right pair beats every random pair
    assert (found.share_above() == 0).all() and len(found.suspects()) == 0 and found.wrong_captions() == 0


def test_planted_swaps_are_found():
    pictures, texts, image_of, swapped = planted(noise=0.2)
    found = fit_of_pairs(pictures, texts, image_of)
    suspects = found.suspects().tolist()
    hits = len(swapped & set(suspects))
    assert len(swapped) == 40 and 25 <= found.wrong_captions() == len(suspects) <= 55  # estimates the 40
    assert hits / len(suspects) >= 0.8 and hits / 40 >= 0.7  # precision, recall
    assert suspects == np.argsort(found.fit)[: len(suspects)].tolist()
    worst = np.argsort(found.fit)[:40]
    assert len(swapped & set(worst.tolist())) >= 38  # as a ranking, precision and recall of 95 %


def test_a_model_that_knows_nothing_tells_nothing():
    pictures, image_of = rows(400, 0), np.arange(400)
    found = fit_of_pairs(pictures, rows(400, 5), image_of)
    assert 0.45 < 1 - found.share_above().mean() < 0.55  # right pairs are preferred by chance
