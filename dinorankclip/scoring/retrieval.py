"""Retrieval both ways: R@k, a query being answered when any of its right items is among the first k.

Shapes: Q queries, G gallery items, D embedding width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dinorankclip.scoring.right_items import Right, RightItems, right_items
from dinorankclip.scoring.scores import Score, mean_score

if TYPE_CHECKING:
    from dinorankclip.scoring.seen import SeenSet

KS = (1, 5, 10)
APART = ", captions apart"  # ends names of scores where captions that read alike count as different
AT_ONCE = 1 << 21  # similarities in memory: 8 MB stay in the cache for the comparisons that follow


def ranks(queries: Tensor, gallery: Tensor, right: RightItems, chunk: int | None = None) -> Tensor:
    """Place (from 0) of each query's best right item: int64 [Q].

    `queries` [Q, D] and `gallery` [G, D] are unit-norm; `right` has at least one item for each query.
    Equal similarities are ordered by item index, so a collapsed model scores at chance, not at 100 %.

    As loops:
        order = sorted(range(G), key=lambda g: (-dot(queries[q], gallery[g]), g))
        ranks[q] = min(order.index(g) for g in right.of(q))
    """
    chunk = chunk or max(1, AT_ONCE // max(1, len(gallery)))
    places = torch.empty(len(queries), dtype=torch.long)
    column = torch.arange(len(gallery), device=gallery.device)
    for start in range(0, len(queries), chunk):
        stop = min(start + chunk, len(queries))
        similarity = queries[start:stop] @ gallery.T
        row, item = (part.to(gallery.device) for part in right.pairs(start, stop))
        value = similarity[row, item]
        best = torch.full((stop - start,), -torch.inf, device=gallery.device).scatter_reduce(0, row, value, "amax")
        ahead = torch.where(value == best[row], item, len(gallery))
        first = torch.full((stop - start,), len(gallery), device=gallery.device).scatter_reduce(0, row, ahead, "amin")
        above = (similarity > best[:, None]).sum(1)
        tied_before = ((similarity == best[:, None]) & (column < first[:, None])).sum(1)
        places[start:stop] = (above + tied_before).cpu()
    return places


@dataclass(frozen=True)
class Places:
    """Where each query's best right item stands, from 0."""

    i2t: Tensor  # int64 [I]
    t2i: Tensor  # int64 [T]


def both_ways(image: Tensor, text: Tensor, right: Right) -> Places:
    """`image` [I, D], `text` [T, D] unit-norm."""
    return Places(ranks(image, text, right.texts), ranks(text, image, right.images))


def chance_recall(right: RightItems, gallery: int, k: int) -> float:
    """R@k of random orders: mean over queries of 1 - C(G - r, k) / C(G, k), r being the right items of a query."""
    r = right.counts().double()
    missed = torch.ones_like(r)
    for j in range(min(k, gallery)):
        missed *= ((gallery - r - j) / (gallery - j)).clamp_min(0)
    return (1 - missed).mean().item()


def retrieval_scores(
    image: Tensor, text: Tensor, captions: Sequence[Sequence[str]], equal_captions: bool = True, trivial: bool = True
) -> Iterator[Score]:
    """R@k both ways and their mean at 1, with items; `text` are the rows of all captions in image order.

    `trivial`: also of galleries with no more than k items, where every query is answered. Tables of training have a
    column for each k.
    """
    texts, right = right_items(captions, equal_captions)
    places = both_ways(image, text, right)
    image_of = np.repeat(np.arange(len(captions)), [len(group) for group in captions])
    hits, chance = {}, {}
    for way, where, items, gallery, clusters in (
        ("i2t", places.i2t, right.texts, len(text), None),
        ("t2i", places.t2i, right.images, len(image), image_of),
    ):
        for k in KS:
            hits[way, k] = (where < k).numpy()
            chance[way, k] = chance_recall(items, gallery, k)
            if trivial or k < gallery:
                yield mean_score(f"{way} R@{k}", hits[way, k], clusters, chance=chance[way, k])
    # Both directions of one image as one item: the mean of these is the mean of the two recalls.
    share = np.bincount(image_of, hits["t2i", 1], minlength=len(captions)) * len(captions) / len(texts)
    both = (chance["i2t", 1] + chance["t2i", 1]) / 2
    yield mean_score("mean R@1", (hits["i2t", 1] + share) / 2, chance=both)


class RetrievalScorer:
    """R@1, 5, 10 both ways, as far as there are more candidates than that.

    Text queries are clustered by the image they belong to. With `equal_captions` off, scores have names of their own:
    nothing pairs them with those that count captions which read alike as one.
    """

    name = "retrieval"
    version = 1

    def __init__(self, equal_captions: bool = True):
        self.equal_captions = equal_captions

    def applies(self, seen: SeenSet) -> bool:
        return seen.kind == "retrieval"

    def __call__(self, seen: SeenSet) -> Iterator[Score]:
        rows, _owner = seen.caption_rows()
        for score in retrieval_scores(seen.images(), rows, seen.captions(), self.equal_captions, trivial=False):
            yield score if self.equal_captions else replace(score, name=f"{score.name}{APART}")
