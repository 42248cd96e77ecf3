"""Scores whole orders of items: ranking quality on graded sets, and agreement of the two modalities.

Ranking quality needs graded relevance, which the built-in scenes have. In three directions a caption ranks images
(t2i), an image ranks captions (i2t) and other images (i2i, without itself). The gallery is one image with one of its
captions for each of at most `GALLERY` scenes, drawn by the seed; the first `QUERIES` of them ask. That takes seconds.

Order agreement is what ranking consistency trains, measured on held-out pairs. For each pair i it compares, as
Kendall's τ-b and Spearman's ρ, two orders of the other pairs (0 is no agreement, 1 the same order):

    in-modal       by image similarity to image i    against    by text similarity to text i
    cross-modal    of texts by similarity to image i against    of images by similarity to text i

Shapes: I images, T texts, N pairs, D embedding width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from dinorankclip.data.scenes.relevance import caption_relevance_matrix, relevance_matrix
from dinorankclip.data.scenes.scene import CaptionContent, Scene, holds_scenes, stored_scenes
from dinorankclip.data.tar_shards import ShardSource
from dinorankclip.evaluate.rank_metrics import kendall, others, ranking_quality, rounded, spearman
from dinorankclip.evaluate.scores import EmbeddedSet, Score, mean_score

GALLERY, QUERIES = 2000, 1000  # of ranking quality
PAIRS = 1000  # gallery and queries of order agreement; more would cost their square
LEAST_PAIRS = 3  # two other pairs make an order
DIGITS = 6  # relevance is rounded: equal on paper must be equal


def graded_quality(
    image: Tensor,
    text: Tensor,
    keys: Sequence[str],
    image_of_text: Sequence[int] | np.ndarray,
    scenes: Mapping[str, tuple[Scene, tuple[CaptionContent, ...]]],
    *,
    gallery: int = GALLERY,
    queries: int = QUERIES,
    seed: int = 0,
) -> Iterator[Score]:
    """Yield `t2i tau-b`, `t2i NDCG@10`, `t2i NDCG` (the whole list), and the same for i2t and i2i, with chance levels.

    `image` [I, D] and `text` [T, D] are unit-norm; `keys` [I] name the images in `scenes` (`stored_scenes`), and the
    texts of an image are its captions in their own order.
    """
    images, texts, mentions = _drawn(keys, np.asarray(image_of_text), scenes, gallery, seed)
    drawn = [scenes[keys[index]][0] for index in images]
    ask = min(queries, len(images))
    of_captions = torch.from_numpy(caption_relevance_matrix(mentions, drawn))
    of_images = torch.from_numpy(np.round(relevance_matrix(drawn[:ask], drawn), DIGITS))
    image, text = image[torch.from_numpy(images)], text[torch.from_numpy(texts)]
    directions = {
        "t2i": (text[:ask], image, of_captions[:ask], None),
        "i2t": (image[:ask], text, of_captions.T[:ask], None),
        "i2i": (image[:ask], image, of_images, torch.arange(ask)),
    }
    for way, (asking, items, relevance, left_out) in directions.items():
        quality = ranking_quality(asking, items, relevance, left_out)
        clusters = images[quality.queries.numpy()]
        yield mean_score(f"{way} tau-b", quality.tau.numpy(), clusters, unit="number", chance=0.0)
        for name, values in quality.ndcg.items():
            chance = float(quality.chance[name].mean())
            yield mean_score(f"{way} {name}", values.numpy(), clusters, unit="number", chance=chance)


class RankingQualityScorer:
    """Takes graded ranking quality on sets that hold scenes."""

    name = "ranking quality"
    version = 1

    def applies(self, embedded: EmbeddedSet) -> bool:
        if embedded.kind != "retrieval" or not isinstance(source := embedded.source(), ShardSource):
            return False
        return len(embedded.indices()) >= LEAST_PAIRS and holds_scenes(source.shards)

    def __call__(self, embedded: EmbeddedSet) -> Iterator[Score]:
        source = embedded.source()
        assert isinstance(source, ShardSource), "as `applies` demands"
        rows, owner = embedded.caption_rows()
        yield from graded_quality(embedded.images(), rows, embedded.keys(), owner, stored_scenes(source.shards))


def _drawn(
    keys: Sequence[str],
    image_of_text: np.ndarray,
    scenes: Mapping[str, tuple[Scene, tuple[CaptionContent, ...]]],
    most: int,
    seed: int,
) -> tuple[np.ndarray, np.ndarray, list[CaptionContent]]:
    """Draw images; return their places, the place of one caption of each, and the mentions in that caption."""
    rng = np.random.default_rng(seed)
    with_scene = np.array([index for index, key in enumerate(keys) if key in scenes], dtype=np.int64)
    images = rng.permutation(with_scene)[:most]
    order = np.argsort(image_of_text, kind="stable")
    starts = np.searchsorted(image_of_text[order], images)
    which = [int(rng.integers(len(scenes[keys[index]][1]))) for index in images]
    texts = order[starts + np.array(which, dtype=np.int64)]
    return images, texts, [scenes[keys[index]][1][number] for index, number in zip(images, which)]


def order_agreement(
    image: Tensor, text: Tensor, most: int = PAIRS, seed: int = 0, chunk: int = 256
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return columns by name, float64 [N'], and the pairs they belong to [N']: at most `most`, drawn by the seed.

    `image` and `text` [N, D] are unit-norm; row i of both is a pair (one caption an image). Pair i itself is left out
    of its lists, since it tops them trivially.
    """
    if len(image) != len(text):
        raise ValueError(f"{len(image)} images and {len(text)} texts: one text for each image")
    drawn = np.sort(np.random.default_rng(seed).permutation(len(image))[:most])
    image, text = image[torch.from_numpy(drawn)], text[torch.from_numpy(drawn)]
    columns: dict[str, list[Tensor]] = {}
    for start in range(0, len(image), chunk):
        place = torch.arange(start, min(start + chunk, len(image)), device=image.device)
        other = others(place, len(image))
        orders = {
            "in-modal": (image[place] @ image.T, text[place] @ text.T),
            "cross-modal": (image[place] @ text.T, text[place] @ image.T),
        }
        for name, (a, b) in orders.items():
            a, b = rounded(a.gather(1, other)), rounded(b.gather(1, other))
            columns.setdefault(f"{name} tau-b", []).append(kendall(a, b).cpu())
            columns.setdefault(f"{name} rho", []).append(spearman(a, b).cpu())
    return {name: torch.cat(parts).numpy() for name, parts in columns.items()}, drawn


class OrderAgreementScorer:
    """Takes agreement of orders on caption sets, an image with its first caption."""

    name = "order agreement"
    version = 1

    def applies(self, embedded: EmbeddedSet) -> bool:
        return embedded.kind == "retrieval" and len(embedded.indices()) >= LEAST_PAIRS

    def __call__(self, embedded: EmbeddedSet) -> Iterator[Score]:
        rows, owner = embedded.caption_rows()
        first = np.unique(owner, return_index=True)[1]
        columns, drawn = order_agreement(embedded.images(), rows[torch.from_numpy(first)])
        for name, values in columns.items():
            yield mean_score(name, values, drawn, unit="number", chance=0.0)
