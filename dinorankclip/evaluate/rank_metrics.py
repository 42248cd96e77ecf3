"""Agreement of two orders, row by row, ties included: Kendall's τ-b and Spearman's ρ.

A row that is all ties has no order: it agrees with nothing, and both are 0.

Shapes: Q rows (queries), G items.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def settled(cosines: Tensor) -> Tensor:
    """Cosines in millionths, rounded: fp32 tells closer ones apart by its rounding errors, which is no order."""
    return (cosines.float() * 1e6).round()


def kendall(x: Tensor, y: Tensor) -> Tensor:
    """τ-b of the rows of x and y [Q, G] → float64 [Q], in O(G log G) a row.

        τ-b = (concordant - discordant) / sqrt((pairs - ties of x) · (pairs - ties of y))

    As loops:
        for i, j in combinations(range(G), 2):
            balance += sign(x[i] - x[j]) * sign(y[i] - y[j]); a += x[i] != x[j]; b += y[i] != y[j]
        return balance / sqrt(a * b)
    """
    by_y = y.argsort(dim=1, stable=True)
    order = by_y.gather(1, x.gather(1, by_y).argsort(dim=1, stable=True))  # by x, ties of x by y
    x, y = x.gather(1, order), y.gather(1, order)
    by_y = y.argsort(dim=1, stable=True)
    # In the order of x, a discordant pair is one whose y goes down. Ties of y get rising numbers, so none of them does;
    # within a tie of x, y only rises.
    column = torch.arange(x.shape[1], device=x.device).expand_as(by_y)
    discordant = inversions(torch.empty_like(by_y).scatter_(1, by_y, column))
    pairs = x.shape[1] * (x.shape[1] - 1) // 2
    of_x, of_y = _tied_pairs(_run_starts(x)), _tied_pairs(_run_starts(y.gather(1, by_y)))
    of_both = _tied_pairs(_run_starts(x) | _run_starts(y))
    balance = pairs - of_x - of_y + of_both - 2 * discordant
    size = ((pairs - of_x).double() * (pairs - of_y).double()).sqrt()
    return torch.where(size > 0, balance.double() / size.clamp_min(1), 0.0)


def spearman(x: Tensor, y: Tensor) -> Tensor:
    """ρ of the rows of x and y [Q, G] → float64 [Q]: the correlation of their ranks, ties sharing their mean rank."""
    a, b = average_ranks(x), average_ranks(y)
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    size = a.norm(dim=1) * b.norm(dim=1)
    return torch.where(size > 0, (a * b).sum(1) / size.clamp_min(torch.finfo(size.dtype).tiny), 0.0)


def average_ranks(x: Tensor) -> Tensor:
    """Rank of each item in its row, from 0 for the smallest; equal items share the mean of their places. float64."""
    ordered, order = x.sort(dim=1, stable=True)
    starts = _run_starts(ordered)
    place = torch.arange(x.shape[1], device=x.device).expand_as(order)
    first = torch.where(starts, place, 0).cummax(1).values
    # A run ends where the next one begins.
    ends = torch.cat([starts[:, 1:], torch.ones_like(starts[:, :1])], 1)
    last = torch.where(ends, place, x.shape[1]).flip(1).cummin(1).values.flip(1)
    return torch.empty(x.shape, dtype=torch.double, device=x.device).scatter_(1, order, (first + last).double() / 2)


def inversions(rows: Tensor) -> Tensor:
    """Pairs i < j with rows[q, i] > rows[q, j], where every row is a permutation of 0 … G-1: int64 [Q].

    Bit by bit from the highest: two values that agree in all higher bits are an inversion if the first has this bit and
    the second has not. Rows are then sorted by this bit within each group of equal higher bits, so that in the next
    round a group stands together. Since rows are permutations, group and place follow from each other.
    """
    count = rows.shape[1]
    rows = rows.int()  # half the memory of long, twice the speed
    place = torch.arange(count, dtype=torch.int32, device=rows.device)
    found = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
    for bit in reversed(range((count - 1).bit_length())):
        group = place >> (bit + 1)
        has = (rows >> bit) & 1
        # Values with this bit that came before, in this group; each finished group held 2^bit of them.
        before = has.cumsum(1, dtype=torch.int32) - has - (group << bit)
        found += (before - before * has).sum(1)
        # Without the bit: forward by `before`; with it: behind the 2^bit that lack it.
        target = place - before + has * (2 * before + ((group << (bit + 1)) + (1 << bit) - place))
        rows = torch.empty_like(rows).scatter_(1, target.long(), rows)
    return found


def _run_starts(ordered: Tensor) -> Tensor:
    """Where a new value begins in rows whose equal values stand together: bool [Q, G]."""
    return torch.cat([torch.ones_like(ordered[:, :1], dtype=torch.bool), ordered[:, 1:] != ordered[:, :-1]], 1)


def _tied_pairs(starts: Tensor) -> Tensor:
    """Σ t(t-1)/2 over runs of length t: each place counts those before it in its run. int64 [Q]"""
    place = torch.arange(starts.shape[1], device=starts.device).expand_as(starts)
    return (place - torch.where(starts, place, 0).cummax(1).values).sum(1)


# -------- ranking_quality
# How well similarities order items that are relevant to a degree: Kendall's τ-b and NDCG@k, with what chance gives.
#
#     DCG@k = Σ_{r=1..k} gain(item at rank r) / log2(1 + r),   gain = relevance itself,   NDCG@k = DCG@k / best DCG@k
#     chance@k = mean gain · Σ_{r=1..k} 1 / log2(1 + r) / best DCG@k,   the mean over all orders
#
# Items with equal similarity share their mean gain: the expectation over the orders among them. A collapsed model so
# scores exactly what chance does.
#
# Shapes: Q queries, G gallery items, D embedding width.

KS: tuple[int | None, ...] = (10, None)  # None: the whole list


@dataclass(frozen=True)
class RankingQuality:
    """Query by query, float64 [Q']; `queries` [Q'] are those that ask anything, see `ranking_quality`."""

    queries: Tensor
    tau: Tensor
    ndcg: dict[str, Tensor]  # by "NDCG@10", "NDCG"
    chance: dict[str, Tensor]  # of the same names: NDCG expected of a random order


def ranking_quality(
    queries: Tensor,
    gallery: Tensor,
    relevance: Tensor,
    leave_out: Tensor | None = None,
    ks: tuple[int | None, ...] = KS,
    chunk: int = 256,
) -> RankingQuality:
    """`queries` [Q, D] and `gallery` [G, D] unit-norm, `relevance` [Q, G] not negative.

    `leave_out` [Q] is an item that a query must not find, itself in a gallery of its own kind. A query to which all
    items are equally relevant asks nothing and is left out.
    """
    tau, asks = [], []
    ndcg: dict[str, list[Tensor]] = {_name(k): [] for k in ks}
    chance: dict[str, list[Tensor]] = {_name(k): [] for k in ks}
    for start in range(0, len(queries), chunk):
        similarity = settled(queries[start : start + chunk] @ gallery.T)
        truth = relevance[start : start + chunk].to(similarity)
        if leave_out is not None:
            kept = others(leave_out[start : start + chunk].to(similarity.device), len(gallery))
            similarity, truth = similarity.gather(1, kept), truth.gather(1, kept)
        asking = (truth != truth[:, :1]).any(1)
        similarity, truth = similarity[asking], truth[asking]
        asks.append(start + asking.nonzero()[:, 0].cpu())
        tau.append(kendall(similarity, truth).cpu())
        gain, best, mean = shared_gain(similarity, truth), _best_first(truth), truth.double().mean(1)
        for k in ks:
            discount = discounts(truth.shape[1], k).to(gain.device)
            ndcg[_name(k)].append((gain @ discount / (best @ discount)).cpu())
            chance[_name(k)].append((mean * discount.sum() / (best @ discount)).cpu())
    return RankingQuality(
        torch.cat(asks),
        torch.cat(tau),
        {name: torch.cat(parts) for name, parts in ndcg.items()},
        {name: torch.cat(parts) for name, parts in chance.items()},
    )


def shared_gain(similarity: Tensor, relevance: Tensor) -> Tensor:
    """Gain at each rank, the mean of those that tie for it: float64 [Q, G].

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
    """1 / log2(1 + rank) for ranks 1 … count, 0 beyond rank k: float64 [count]."""
    rank = torch.arange(1, count + 1, dtype=torch.double)
    return torch.where(rank <= (k or count), 1 / torch.log2(1 + rank), 0.0)


def _best_first(relevance: Tensor) -> Tensor:
    return relevance.double().sort(dim=1, descending=True).values


def others(left_out: Tensor, count: int) -> Tensor:
    """Indices 0 … count-1 without one, row by row: [Q, count - 1]."""
    column = torch.arange(count - 1, device=left_out.device)
    return column + (column >= left_out[:, None])


def _name(k: int | None) -> str:
    return "NDCG" if k is None else f"NDCG@{k}"
