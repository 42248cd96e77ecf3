"""Whether a query stands out: the statistic against loops, planted collections, and the file of background rows."""

import numpy as np
import pytest

from dinorankclip.search import background
from dinorankclip.search.background import BEST, QUERIES, STANDS_OUT, Background, background_rows


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


def random_rows(count, seed, dim=64):
    return unit(np.random.default_rng(seed).normal(size=(count, dim)))


def test_the_queries_are_many_and_different():
    assert len(set(QUERIES)) == len(QUERIES) >= 100 and all(query == query.strip() for query in QUERIES)


@pytest.mark.parametrize("piece", [7, 1000])
def test_the_level_is_that_of_the_loops(monkeypatch, piece):
    monkeypatch.setattr(background, "PHOTOS_AT_ONCE", piece)
    queries, photos, query = random_rows(9, 0), random_rows(40, 1), random_rows(1, 2)[0]
    s = queries @ photos.T

    def fit(scores, others=range(9)):
        z = [(scores[n] - np.mean(s[others, n])) / np.std(s[others, n]) for n in range(40)]
        return np.mean(sorted(z)[-BEST:])

    fits = [fit(s[b], [other for other in range(9) if other != b]) for b in range(9)]
    middle = np.median(fits)
    spread = 1.4826 * np.median([abs(value - middle) for value in fits])
    found = Background(queries, photos)
    standing = found.standing(photos @ query)
    assert standing.level == pytest.approx((fit(photos @ query) - middle) / spread, abs=1e-4)
    assert standing.surpassed == sum(value < fit(photos @ query) for value in fits) and standing.of == 9
    firsts = s.argmax(1).tolist()
    assert firsts.count(found.hub) == max(map(firsts.count, firsts)) and found.hub_share == firsts.count(found.hub) / 9


def test_what_is_there_stands_out_and_what_is_not_does_not():
    """Photos of 20 kinds; queries for these kinds, and for 400 kinds that no photo shows."""
    kinds = random_rows(420, 0)
    draw = np.random.default_rng(1)
    photos = unit(np.repeat(kinds[:20], 15, axis=0) + 0.15 * draw.normal(size=(300, 64)))
    queries = unit(kinds + 0.15 * draw.normal(size=(420, 64)))
    found = Background(random_rows(107, 3), photos)
    levels = np.array([found.standing(photos @ query).level for query in queries])
    # Half a spread above the median is 31 % of a normal distribution; the background itself is a sample.
    assert (levels[:20] > 3).all() and 0.2 < np.mean(levels[20:] > STANDS_OUT) < 0.45
    assert found.hub_share < 0.2 and not found.flat


def test_a_model_that_sees_nothing_finds_nothing():
    flat = np.tile(random_rows(1, 0), (50, 1))  # all queries are embedded alike
    found = Background(flat, random_rows(40, 1))
    assert found.flat and found.hub_share == 1.0
    assert not found.standing(random_rows(40, 1) @ flat[0]).stands_out


def test_a_photo_that_answers_everything_is_noticed():
    queries = unit(random_rows(60, 0) + 0.5)
    photos = np.concatenate([random_rows(40, 1), unit(np.ones((1, 64)))])
    found = Background(queries, photos)
    assert found.hub == 40 and found.hub_share > 0.9


def test_rows_are_embedded_once(tmp_path):
    calls = []

    def embed(queries):
        calls.append(len(queries))
        return random_rows(len(queries), 0)

    first = background_rows(tmp_path / "abc.npz", embed)
    np.testing.assert_array_equal(background_rows(tmp_path / "abc.npz", embed), first)
    assert calls == [len(QUERIES)] and (tmp_path / "abc.background.npz").is_file()
    (tmp_path / "abc.background.npz").write_bytes(b"rubbish")
    background_rows(tmp_path / "abc.npz", embed)
    background_rows(tmp_path / "other.npz", embed)
    assert len(calls) == 3
