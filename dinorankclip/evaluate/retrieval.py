"""Scores retrieval both ways by R@k: a query is answered when any of its right items is among the first k.

Captions that read the same are right for every image that has one of them, so right pairs grow with the square of how
often a caption occurs. `RightItems` therefore stores query → ids → items, and lists pairs for a stretch of queries.

Shapes: Q queries, G gallery items, P right pairs of a stretch, K different ids, D embedding width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dinorankclip.evaluate.scores import EmbeddedSet, Score, mean_score

KS = (1, 5, 10)
APART = ", captions apart"  # ends names of scores where captions that read alike count as different
AT_ONCE = 1 << 21  # similarities in memory: 8 MB stay in the cache for the comparisons that follow


@dataclass(frozen=True)
class RightItems:
    """Maps queries to ids and ids to items. A query reaches no item twice.

    Ids of query q are `ids[ends[q]:ends[q+1]]`, items of id k are `items[item_ends[k]:item_ends[k+1]]`.
    """

    ids: Tensor
    ends: Tensor  # int64 [Q+1]
    items: Tensor
    item_ends: Tensor  # int64 [K+1]

    def __len__(self) -> int:
        return len(self.ends) - 1

    def pairs(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return queries, counted from `start`, and their right items: int64 [P] each."""
        ids = self.ids[self.ends[start] : self.ends[stop]]
        first, many = self.item_ends[ids], self.item_ends[ids + 1] - self.item_ends[ids]
        query = torch.arange(stop - start).repeat_interleave(self.ends[start : stop + 1].diff())
        inside = torch.arange(int(many.sum())) - (many.cumsum(0) - many).repeat_interleave(many)
        return query.repeat_interleave(many), self.items[first.repeat_interleave(many) + inside]

    def of(self, query: int) -> set[int]:
        return set(self.pairs(query, query + 1)[1].tolist())

    def counts(self) -> Tensor:
        """Count the right items of each query: int64 [Q]."""
        many = self.item_ends.diff()[self.ids]
        query = torch.arange(len(self)).repeat_interleave(self.ends.diff())
        return torch.zeros(len(self), dtype=torch.long).index_add_(0, query, many)


@dataclass(frozen=True)
class Right:
    texts: RightItems  # right texts of images
    images: RightItems  # right images of texts


def right_items(captions: Sequence[Sequence[str]], equal_captions: bool = True) -> tuple[list[str], Right]:
    """Return all captions in image order, and the right items of images and of captions.

    Captions that read the same (spaces and case aside) are right for every image that has one of them. Without
    `equal_captions` they are not, as in clip-benchmark: identical texts then compete with each other.
    """
    texts = [text for group in captions for text in group]
    id_of: dict[str, int] = {}
    ids = [id_of.setdefault(" ".join(text.lower().split()), len(id_of)) for text in texts]
    id_of_text = torch.tensor(ids, dtype=torch.long) if equal_captions else torch.arange(len(texts))
    count = len(id_of) if equal_captions else len(texts)
    image_of = torch.arange(len(captions)).repeat_interleave(torch.tensor([len(group) for group in captions]))
    # An image has an id twice if two of its captions are equal.
    image, its_id = torch.stack([image_of, id_of_text], 1).unique(dim=0).unbind(1)
    by_id = its_id.argsort(stable=True)
    images_of_id, texts_of_id = image[by_id], id_of_text.argsort(stable=True)
    return texts, Right(
        RightItems(its_id, _ends(image, len(captions)), texts_of_id, _ends(id_of_text, count)),
        RightItems(id_of_text, torch.arange(len(texts) + 1), images_of_id, _ends(its_id, count)),
    )


def _ends(groups: Tensor, count: int) -> Tensor:
    """Return the ends of `count` groups whose members are sorted by group; a zero stands in front."""
    sizes = torch.bincount(groups, minlength=count)
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])


def ranks(
    queries: Tensor,
    gallery: Tensor,
    right: RightItems,
    chunk: int | None = None,
    advance: Callable[[int], None] | None = None,
) -> Tensor:
    """Return the rank (from 0) of each query's best right item: int64 [Q].

    `queries` [Q, D] and `gallery` [G, D] are unit-norm; `right` has at least one item for each query.
    Equal similarities are ordered by item index, so a collapsed model scores at chance, not at 100 %.
    `advance` gets the number of queries of each chunk that is done.

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
        if advance is not None:
            advance(stop - start)
    return places


def both_ways(image: Tensor, text: Tensor, right: Right) -> tuple[Tensor, Tensor]:
    """Return the ranks of images [I] and of texts [T] as queries; `image` [I, D] and `text` [T, D] are unit-norm."""
    return ranks(image, text, right.texts), ranks(text, image, right.images)


def chance_recall(right: RightItems, gallery: int, k: int) -> float:
    """Return R@k of random orders: the mean over queries of 1 - C(G - r, k) / C(G, k) for r right items of a query."""
    r = right.counts().double()
    missed = torch.ones_like(r)
    for j in range(min(k, gallery)):
        missed *= ((gallery - r - j) / (gallery - j)).clamp_min(0)
    return (1 - missed).mean().item()


def retrieval_scores(
    image: Tensor, text: Tensor, captions: Sequence[Sequence[str]], equal_captions: bool = True, trivial: bool = True
) -> Iterator[Score]:
    """Yield R@k both ways and the mean R@1, with items; `text` are the rows of all captions in image order.

    `trivial` includes galleries of at most k items, where every query is answered: tables of training have a column
    for each k. Images with the same captions form one cluster of the intervals: "a photo of a cat" is one text query
    whose hit changes for all images of cats at once.
    """
    texts, right = right_items(captions, equal_captions)
    i2t, t2i = both_ways(image, text, right)
    sizes = [len(group) for group in captions]
    image_of, label = np.repeat(np.arange(len(captions)), sizes), alike(captions)
    repeated = label.max(initial=0) + 1 < len(captions)
    hits, chance = {}, {}
    for way, where, items, gallery, clusters in (
        ("i2t", i2t, right.texts, len(text), label if repeated else None),
        ("t2i", t2i, right.images, len(image), np.repeat(label, sizes)),
    ):
        for k in KS:
            hits[way, k] = (where < k).numpy()
            chance[way, k] = chance_recall(items, gallery, k)
            if trivial or k < gallery:
                yield mean_score(f"{way} R@{k}", hits[way, k], clusters, chance=chance[way, k])
    # Both directions of one image form one item, so the mean of the items is the mean of the two recalls.
    share = np.bincount(image_of, hits["t2i", 1], minlength=len(captions)) * len(captions) / len(texts)
    both = (chance["i2t", 1] + chance["t2i", 1]) / 2
    yield mean_score("mean R@1", (hits["i2t", 1] + share) / 2, label if repeated else None, chance=both)


def alike(captions: Sequence[Sequence[str]]) -> np.ndarray:
    """Return a number for each image [N], the same for images whose captions read the same (spaces, case and order
    aside). Numbers count up in the order of the images; an image without captions is like no other."""
    numbers: dict[frozenset[str] | int, int] = {}
    sets = (frozenset(" ".join(text.lower().split()) for text in group) for group in captions)
    return np.array([numbers.setdefault(each or place, len(numbers)) for place, each in enumerate(sets)], np.int64)


class RetrievalScorer:
    """Takes R@k both ways for those k of 1, 5 and 10 that are below the number of candidates.

    Text queries are clustered by the image they belong to, images with the same captions together. Without
    `equal_captions` scores have names of their own, so that they are never compared with scores that count captions
    which read alike as one.
    """

    name = "retrieval"
    version = 1

    def __init__(self, equal_captions: bool = True):
        self.equal_captions = equal_captions

    def applies(self, embedded: EmbeddedSet) -> bool:
        return embedded.kind == "retrieval"

    def __call__(self, embedded: EmbeddedSet) -> Iterator[Score]:
        rows, _owner = embedded.caption_rows()
        for score in retrieval_scores(embedded.images(), rows, embedded.captions(), self.equal_captions, trivial=False):
            yield score if self.equal_captions else replace(score, name=f"{score.name}{APART}")
