"""Scores whole orders of items: rank correlations and NDCG with ties, and the two scorers that take them.

Kendall's τ-b and Spearman's ρ compare two orders, row by row. A row that is all ties has no order: both are 0 there.
NDCG says how well similarities order items that are relevant to a degree:

    DCG@k = Σ_{r=1..k} gain(item at rank r) / log2(1 + r),   gain = relevance itself,   NDCG@k = DCG@k / best DCG@k
    chance@k = mean gain · Σ_{r=1..k} 1 / log2(1 + r) / best DCG@k,   the mean over all orders

Items with equal similarity share their mean gain, the expectation over the orders among them, so a collapsed model
scores exactly at chance.

Shapes: Q rows (queries), G gallery items, I images, T texts, N pairs, D embedding width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dinorankclip.data.scenes.relevance import caption_relevance_matrix, relevance_matrix
from dinorankclip.data.scenes.scene import CaptionContent, Scene, holds_scenes, stored_scenes
from dinorankclip.data.tar_shards import ShardSource
from dinorankclip.evaluate.scores import EmbeddedSet, Score, mean_score

KS: tuple[int | None, ...] = (10, None)  # k of NDCG@k; None: the whole list
GALLERY, QUERIES = 2000, 1000  # sizes for ranking quality
PAIRS = 1000  # gallery and queries of order agreement; the cost grows with the square
LEAST_PAIRS = 3  # two other pairs make an order
DIGITS = 6  # relevance is rounded: equal on paper must be equal
Scenes = Mapping[str, tuple[Scene, tuple[CaptionContent, ...]]]  # image key → scene and captions


def rounded(cosines: Tensor) -> Tensor:
    """Round cosines to millionths: closer cosines differ in fp32 by rounding errors, which are no order."""
    return (cosines.float() * 1e6).round()


def kendall(x: Tensor, y: Tensor) -> Tensor:
    """Return τ-b of the rows of x and y [Q, G] as float64 [Q], in O(G log G) a row.

        τ-b = (concordant - discordant) / sqrt((pairs - ties of x) · (pairs - ties of y))

    As loops:
        for i, j in combinations(range(G), 2):
            balance += sign(x[i] - x[j]) * sign(y[i] - y[j]); a += x[i] != x[j]; b += y[i] != y[j]
        return balance / sqrt(a * b)
    """
    by_y = y.argsort(dim=1, stable=True)
    order = by_y.gather(1, x.gather(1, by_y).argsort(dim=1, stable=True))  # sorted by x, ties of x by y
    x, y = x.gather(1, order), y.gather(1, order)
    by_y = y.argsort(dim=1, stable=True)
    # In the order of x, the y of a discordant pair goes down. Ties of y get rising numbers, so they never count; within
    # a tie of x, y only rises.
    column = torch.arange(x.shape[1], device=x.device).expand_as(by_y)
    discordant = inversions(torch.empty_like(by_y).scatter_(1, by_y, column))
    pairs = x.shape[1] * (x.shape[1] - 1) // 2
    of_x, of_y = _tied_pairs(_run_starts(x)), _tied_pairs(_run_starts(y.gather(1, by_y)))
    of_both = _tied_pairs(_run_starts(x) | _run_starts(y))
    balance = pairs - of_x - of_y + of_both - 2 * discordant
    size = ((pairs - of_x).double() * (pairs - of_y).double()).sqrt()
    return torch.where(size > 0, balance.double() / size.clamp_min(1), 0.0)


def spearman(x: Tensor, y: Tensor) -> Tensor:
    """Return ρ of the rows of x and y [Q, G] as float64 [Q]: the correlation of ranks, where ties share a mean rank."""
    a, b = average_ranks(x), average_ranks(y)
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    size = a.norm(dim=1) * b.norm(dim=1)
    return torch.where(size > 0, (a * b).sum(1) / size.clamp_min(torch.finfo(size.dtype).tiny), 0.0)


def average_ranks(x: Tensor) -> Tensor:
    """Rank each item in its row, from 0 for the smallest; equal items share the mean of their places. float64."""
    ordered, order = x.sort(dim=1, stable=True)
    starts = _run_starts(ordered)
    place = torch.arange(x.shape[1], device=x.device).expand_as(order)
    first = torch.where(starts, place, 0).cummax(1).values
    # A run ends where the next run begins.
    ends = torch.cat([starts[:, 1:], torch.ones_like(starts[:, :1])], 1)
    last = torch.where(ends, place, x.shape[1]).flip(1).cummin(1).values.flip(1)
    return torch.empty(x.shape, dtype=torch.double, device=x.device).scatter_(1, order, (first + last).double() / 2)


def inversions(rows: Tensor) -> Tensor:
    """Count pairs i < j with rows[q, i] > rows[q, j], where every row is a permutation of 0 … G-1: int64 [Q].

    The count goes bit by bit from the highest: two values that agree in all higher bits are an inversion if the first
    has this bit and the second has not. Rows are then sorted by this bit within each group of equal higher bits, so
    that a group stands together in the next round. Since rows are permutations, group and place follow from each other.
    """
    count = rows.shape[1]
    rows = rows.int()  # half the memory of long, twice the speed
    place = torch.arange(count, dtype=torch.int32, device=rows.device)
    inverted = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
    for bit in reversed(range((count - 1).bit_length())):
        group = place >> (bit + 1)
        has = (rows >> bit) & 1
        # Values with this bit that came before, in this group; each finished group held 2^bit of them.
        before = has.cumsum(1, dtype=torch.int32) - has - (group << bit)
        inverted += (before - before * has).sum(1)
        # Without the bit: forward by `before`; with it: behind the 2^bit that lack it.
        target = place - before + has * (2 * before + ((group << (bit + 1)) + (1 << bit) - place))
        rows = torch.empty_like(rows).scatter_(1, target.long(), rows)
    return inverted


def _run_starts(ordered: Tensor) -> Tensor:
    """Mark where a new value begins in rows whose equal values stand together: bool [Q, G]."""
    return torch.cat([torch.ones_like(ordered[:, :1], dtype=torch.bool), ordered[:, 1:] != ordered[:, :-1]], 1)


def _tied_pairs(starts: Tensor) -> Tensor:
    """Return Σ t(t-1)/2 over runs of length t: each place counts the places before it in its run. int64 [Q]"""
    place = torch.arange(starts.shape[1], device=starts.device).expand_as(starts)
    return (place - torch.where(starts, place, 0).cummax(1).values).sum(1)


@dataclass(frozen=True)
class RankingQuality:
    """Holds numbers of each query, float64 [Q']; `queries` [Q'] have an order to find, see `ranking_quality`."""

    queries: Tensor
    tau: Tensor
    ndcg: dict[str, Tensor]  # keys: "NDCG@10", "NDCG"
    chance: dict[str, Tensor]  # same keys: NDCG expected of a random order


def ranking_quality(
    queries: Tensor,
    gallery: Tensor,
    relevance: Tensor,
    leave_out: Tensor | None = None,
    ks: tuple[int | None, ...] = KS,
    chunk: int = 256,
) -> RankingQuality:
    """Rank `gallery` [G, D] for `queries` [Q, D], both unit-norm, and compare with `relevance` [Q, G], not negative.

    `leave_out` [Q] is an item that a query must not find: the query itself in a gallery of its own kind. A query to
    which all items are equally relevant has no order to find and is left out.
    """
    tau, asks = [], []
    names = {k: "NDCG" if k is None else f"NDCG@{k}" for k in ks}
    ndcg: dict[str, list[Tensor]] = {name: [] for name in names.values()}
    chance: dict[str, list[Tensor]] = {name: [] for name in names.values()}
    for start in range(0, len(queries), chunk):
        similarity = rounded(queries[start : start + chunk] @ gallery.T)
        truth = relevance[start : start + chunk].to(similarity)
        if leave_out is not None:
            other = others(leave_out[start : start + chunk].to(similarity.device), len(gallery))
            similarity, truth = similarity.gather(1, other), truth.gather(1, other)
        asking = (truth != truth[:, :1]).any(1)
        similarity, truth = similarity[asking], truth[asking]
        asks.append(start + asking.nonzero()[:, 0].cpu())
        tau.append(kendall(similarity, truth).cpu())
        gain, mean = shared_gain(similarity, truth), truth.double().mean(1)
        best = truth.double().sort(dim=1, descending=True).values
        for k, name in names.items():
            discount = discounts(truth.shape[1], k).to(gain.device)
            ndcg[name].append((gain @ discount / (best @ discount)).cpu())
            chance[name].append((mean * discount.sum() / (best @ discount)).cpu())
    joined = [{name: torch.cat(parts) for name, parts in columns.items()} for columns in (ndcg, chance)]
    return RankingQuality(torch.cat(asks), torch.cat(tau), *joined)


def shared_gain(similarity: Tensor, relevance: Tensor) -> Tensor:
    """Return the gain at each rank, the mean over the items that tie for it: float64 [Q, G].

    As loops:
        order = sorted(range(G), key=lambda g: -similarity[q, g])
        tied = [g for g in range(G) if similarity[q, g] == similarity[q, order[r]]]
        gain[q, r] = mean(relevance[q, g] for g in tied)
    """
    ordered, order = similarity.sort(dim=1, descending=True)
    gain = relevance.double().gather(1, order)
    run = torch.cat([torch.zeros_like(order[:, :1]), (ordered[:, 1:] != ordered[:, :-1]).long().cumsum(1)], 1)
    total = torch.zeros_like(gain).scatter_add_(1, run, gain)
    members = torch.zeros_like(gain).scatter_add_(1, run, torch.ones_like(gain))
    return (total / members.clamp_min(1)).gather(1, run)


def discounts(count: int, k: int | None = None) -> Tensor:
    """Return 1 / log2(1 + rank) for ranks 1 … count, 0 beyond rank k: float64 [count]."""
    rank = torch.arange(1, count + 1, dtype=torch.double)
    return torch.where(rank <= (k or count), 1 / torch.log2(1 + rank), 0.0)


def others(left_out: Tensor, count: int) -> Tensor:
    """Return, row by row, the indices 0 … count-1 without `left_out`: [Q, count - 1]."""
    column = torch.arange(count - 1, device=left_out.device)
    return column + (column >= left_out[:, None])


def graded_quality(
    image: Tensor,
    text: Tensor,
    keys: Sequence[str],
    image_of_text: Sequence[int] | np.ndarray,
    scenes: Scenes,
    *,
    gallery: int = GALLERY,
    queries: int = QUERIES,
    seed: int = 0,
) -> Iterator[Score]:
    """Yield `t2i tau-b`, `t2i NDCG@10`, `t2i NDCG` (the whole list), and the same for i2t and i2i, with chance levels.

    A caption ranks images (t2i), an image ranks captions (i2t) and other images (i2i, without itself). The gallery is
    one image with one of its captions for each of at most `gallery` scenes, drawn by the seed; the first `queries` ask.
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
    """Takes ranking quality on sets that hold scenes, which have graded relevance."""

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
    keys: Sequence[str], image_of_text: np.ndarray, scenes: Scenes, most: int, seed: int
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

    `image` and `text` [N, D] are unit-norm; row i of both is a pair (one caption an image). For each pair i two orders
    of the other pairs (i tops them trivially) are compared by τ-b and ρ, as ranking consistency trains them.

        in-modal       by image similarity to image i    against    by text similarity to text i
        cross-modal    of texts by similarity to image i against    of images by similarity to text i
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
