"""How well similarities order items that are relevant to a degree: Kendall's τ-b and NDCG@k, with what chance gives.

    DCG@k = Σ_{r=1..k} gain(item at rank r) / log2(1 + r),   gain = relevance itself,   NDCG@k = DCG@k / best DCG@k
    chance@k = mean gain · Σ_{r=1..k} 1 / log2(1 + r) / best DCG@k,   the mean over all orders

Items with equal similarity share their mean gain: the expectation over the orders among them. A collapsed model so
scores exactly what chance does.

Shapes: Q queries, G gallery items, D embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dinorankclip.scoring.rank_correlation import kendall, settled

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
