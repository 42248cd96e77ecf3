"""Tells whether a query stands out on a collection of photos, measured against queries that mean nothing special.

The best photo of a collection has some score for any query, also for things that no photo shows, and some photos score
high for every query. How high depends on model and photos, so it is measured: `QUERIES`, about a hundred captions of
many kinds, are scored on the same photos; most of them are about things that a given collection does not have.

Measured on 1,000 photos of Flickr8k, shares of queries that stand out: of 25 plain queries, of the photos' own
captions, and of 60 queries for things that are not there,
    100, 95 and 23 % with a model of 500 photos (R@10 35 %);
    76, 52 and 12 % with `starter` (R@10 26 %), which knows fewer things.
The highest cosine alone separates plain queries from absent things less well: the area under the curve is 0.93 and
0.85, that of the level 0.99 and 0.89. Subtracting a photo's mean score from its scores, which would push back photos
that answer everything, lowered R@1 from 7.6 to 6.8 % and R@10 from 35.1 to 32.5 % (`starter`: 25.9 to 24.6 %), so
answers are ordered by the plain cosine.

Shapes: B background queries, N photos, D embedding width.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip.io import digest
from dinorankclip.search.index import BACKGROUND, DAMAGED_FILE, load_arrays, save_arrays, stored_numbers
from dinorankclip.search.large_index import LargeIndex

BEST = 5  # photos whose fit is averaged
STANDS_OUT = 0.5  # spreads above the median of background queries
FEWEST_PHOTOS = 30  # in a smaller collection nothing can be said
HUB = 0.2  # a photo that is first for this share of background queries answers everything
NEAR = 100  # nearest photos of a query that `NearBackground` looks at
PHOTOS_AT_ONCE = 16384  # a table of 107 queries is 14 MB, and there are several
_TINY = 1e-6  # a spread of cosines below this is rounding
QUERIES = (
    "a dog running through water", "two cats asleep on a sofa", "a brown horse in a field", "a bird on a branch",
    "a school of fish", "a close-up of a bee on a flower", "an elephant beside a river", "a snake in the grass",
    "a spider's web with dew", "a herd of sheep on a hill",
    "a child blowing bubbles", "an old man reading a newspaper", "a woman in a red dress dancing",
    "a crowd at a concert", "a bride and groom", "a baby in a high chair", "a football team posing for a photo",
    "a surgeon in an operating room", "a soldier in uniform", "a clown with a red nose",
    "a man climbing a rock face", "a skier on a slope", "a surfer on a wave", "a basketball player jumping",
    "people playing chess in a park", "a boxer in the ring", "a swimmer in a pool", "a cyclist on a mountain road",
    "a red sports car", "an old steam train", "an aeroplane on a runway", "a sailing boat at sunset",
    "a yellow school bus", "a motorcycle leaning against a wall", "a fire engine with its ladder up",
    "a hot-air balloon", "a tractor in a ploughed field", "a bicycle chained to a fence",
    "a plate of spaghetti", "a bowl of fruit", "a birthday cake with candles", "a cup of coffee on a table",
    "a pizza with olives", "vegetables at a market stall", "a glass of red wine", "a loaf of bread on a board",
    "a kitchen with white cupboards", "an empty classroom", "a bedroom with a large window", "a library full of books",
    "a staircase in an old house", "an office with many desks", "a bathroom with blue tiles", "a factory hall",
    "a church with a tall tower", "a bridge over a river", "a skyscraper made of glass", "a lighthouse on a cliff",
    "a narrow street in an old town", "a ruined castle", "a wooden hut in the forest", "a city at night from above",
    "a mountain covered in snow", "a desert with sand dunes", "a waterfall in the jungle", "a field of sunflowers",
    "waves breaking on a beach", "a forest in autumn", "a stormy sky with lightning", "a frozen lake",
    "a full moon over hills", "clouds seen from above",
    "a grand piano", "an acoustic guitar", "a wrist watch", "a pair of leather shoes", "a pocket knife",
    "a wooden chair", "a pile of coins", "a camera on a tripod", "a chandelier", "an umbrella in the rain",
    "a telephone with a dial", "a bunch of keys",
    "a page of handwritten text", "a bar chart with four columns", "a map of a country", "a traffic sign",
    "a screenshot of a web page", "a sheet of music", "a chess diagram", "a poster with large letters",
    "an X-ray of a hand", "cells under a microscope", "a galaxy with spiral arms", "a satellite image of a coast",
    "the inside of a computer", "a diagram of an engine",
    "a pencil drawing of a face", "an oil painting of a battle", "a marble statue", "a pattern of blue squares",
    "rusty metal", "a brick wall", "wrinkled paper", "a blurred photo of lights", "nothing but a white background",
)  # fmt: skip


@dataclass(frozen=True)
class Standing:
    """Tells how far a query stands out: `level` in spreads above the median background query, and how many of the
    `of` background queries it surpasses."""

    level: float
    surpassed: int
    of: int

    @property
    def stands_out(self) -> bool:
        return self.level > STANDS_OUT

    def words(self) -> str:
        return (
            f"the best photos fit only as well as for unrelated queries (level {self.level:.1f}, above "
            f"{STANDS_OUT:g} is needed; higher than {self.surpassed} of {self.of})"
        )


class Background:
    """Holds what background queries, unit-norm [B, D], score on photos, unit-norm [N, D].

    The fit of query q to photo n is z[q, n] = (s[q, n] - mean_b s[b, n]) / std_b s[b, n] with cosines s and means over
    background queries b; for a background query, over the others. The fit of a query to the collection, f(q), is the
    mean of its `BEST` highest z. Its level is (f(q) - median_b f(b)) / spread, where spread is 1.4826 times the median
    of |f(b) - median|.
    """

    def __init__(self, queries: np.ndarray, photos: np.ndarray) -> None:
        pieces = range(0, len(photos), PHOTOS_AT_ONCE)
        means, stds, best = [], [], []
        first, first_score = np.zeros(len(queries), np.int64), np.full(len(queries), -np.inf)
        for start in pieces:
            scores = (queries @ photos[start : start + PHOTOS_AT_ONCE].T).astype(np.float64)
            means.append(scores.mean(0))
            stds.append(np.maximum(scores.std(0), _TINY))
            best.append(_highest(_among_others(scores)))
            higher = scores.max(1) > first_score
            first[higher] = start + scores.argmax(1)[higher]
            first_score = np.maximum(first_score, scores.max(1))
        self._mean, self._std = np.concatenate(means), np.concatenate(stds)
        self._fits = _highest(np.concatenate(best, 1)).mean(1)
        self._median = float(np.median(self._fits))
        self._spread = max(1.4826 * float(np.median(np.abs(self._fits - self._median))), _TINY)
        counts = np.bincount(first, minlength=len(photos))
        self.hub, self.hub_share = int(counts.argmax()), float(counts.max() / len(queries))
        self.flat = bool(np.median(self._std) <= 2 * _TINY)  # every query has the same score on a photo

    def standing(self, scores: np.ndarray) -> Standing:
        """Return how far a query with these cosines, [N], stands out."""
        fit = float(_highest(((scores - self._mean) / self._std)[None]).mean())
        level = 0.0 if self.flat else (fit - self._median) / self._spread
        return Standing(level, int((self._fits < fit).sum()), len(self._fits))


class NearBackground:
    """Estimates `Background` in a large collection from the nearest photos alone: the fit of a query is the mean of the
    `BEST` highest z among its `NEAR` nearest photos, found by an index."""

    def __init__(self, queries: np.ndarray, fits: list[float], hub: int, hub_share: float) -> None:
        self._queries, self._fits, self.hub, self.hub_share = queries, np.array(fits), hub, hub_share
        self._median = float(np.median(self._fits))
        self._spread = max(1.4826 * float(np.median(np.abs(self._fits - self._median))), _TINY)

    @classmethod
    def measured(cls, queries: np.ndarray, index: LargeIndex) -> NearBackground:
        fits, first = [], Counter[int]()
        for number, places in enumerate(index.candidates(queries, NEAR)):
            scores = queries @ index.rows.at(np.sort(places)).T
            first[int(np.sort(places)[scores[number].argmax()])] += 1
            fits.append(float(_highest(_among_others(scores.astype(np.float64))[[number]]).mean()))
        hub, times = first.most_common(1)[0]
        return cls(queries, fits, hub, times / len(queries))

    def facts(self) -> dict[str, Any]:
        """Return what `__init__` needs beside the queries."""
        return {"fits": self._fits.tolist(), "hub": self.hub, "hub_share": self.hub_share}

    def standing(self, query: np.ndarray, index: LargeIndex) -> Standing:
        """Return how far a query [D] stands out."""
        photos = index.rows.at(index.nearest(query, NEAR)[0])
        scores = (self._queries @ photos.T).astype(np.float64)
        z = (photos @ query - scores.mean(0)) / np.maximum(scores.std(0), _TINY)
        fit = float(_highest(z[None]).mean())
        return Standing((fit - self._median) / self._spread, int((self._fits < fit).sum()), len(self._fits))


def _among_others(scores: np.ndarray) -> np.ndarray:
    """Return (s[b] - mean) / std of each row of [B, N], with mean and deviation over the other rows."""
    others = len(scores) - 1
    mean = (scores.sum(0) - scores) / others
    squares = ((scores**2).sum(0) - scores**2) / others
    return (scores - mean) / np.maximum(np.sqrt(np.maximum(squares - mean**2, 0.0)), _TINY)


def _highest(values: np.ndarray) -> np.ndarray:
    """Return the `BEST` highest values of each row."""
    kept = min(BEST, values.shape[1])
    return np.partition(values, values.shape[1] - kept, axis=1)[:, values.shape[1] - kept :]


def background_rows(index: Path, embed: Callable[[Sequence[str]], np.ndarray]) -> np.ndarray:
    """Return the embeddings of `QUERIES`, [B, D]. They are stored beside the index of the same model; `embed` computes
    them the first time."""
    path, asked = index.with_suffix(BACKGROUND), np.array(digest(*QUERIES))
    with contextlib.suppress(*DAMAGED_FILE):
        arrays = load_arrays(path)
        if "asked" in arrays and np.array_equal(arrays["asked"], asked):
            rows = stored_numbers(arrays, "rows", "f", 2)
            if len(rows) == len(QUERIES):
                return rows
    rows = embed(QUERIES)
    with contextlib.suppress(OSError):
        save_arrays(path, asked=asked, rows=rows)
    return rows
