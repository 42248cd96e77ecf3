"""Retrieval both ways: R@k, a query being answered when any of its right items is among the first k.

Shapes: Q queries, G gallery items, P right (query, item) pairs, D embedding width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

KS = (1, 5, 10)


def ranks(queries: Tensor, gallery: Tensor, right: Tensor, chunk: int = 512) -> Tensor:
    """Place (from 0) of each query's best right item: int64 [Q].

    `queries` [Q, D] and `gallery` [G, D] are unit-norm; `right` [P, 2] lists (query, item), at least one a query.
    Equal similarities are ordered by item index, so a collapsed model scores at chance, not at 100 %.

    As loops:
        order = sorted(range(G), key=lambda g: (-dot(queries[q], gallery[g]), g))
        ranks[q] = min(order.index(g) for (p, g) in right if p == q)
    """
    right = right[right[:, 0].argsort(stable=True)]
    places = torch.empty(len(queries), dtype=torch.long)
    column = torch.arange(len(gallery), device=gallery.device)
    for start in range(0, len(queries), chunk):
        stop = min(start + chunk, len(queries))
        similarity = queries[start:stop] @ gallery.T
        low, high = torch.searchsorted(right[:, 0].contiguous(), torch.tensor([start, stop])).tolist()
        row, item = (right[low:high, 0] - start).to(gallery.device), right[low:high, 1].to(gallery.device)
        value = similarity[row, item]
        best = torch.full((stop - start,), -torch.inf, device=gallery.device).scatter_reduce(0, row, value, "amax")
        ahead = torch.where(value == best[row], item, len(gallery))
        first = torch.full((stop - start,), len(gallery), device=gallery.device).scatter_reduce(0, row, ahead, "amin")
        above = (similarity > best[:, None]).sum(1)
        tied_before = ((similarity == best[:, None]) & (column < first[:, None])).sum(1)
        places[start:stop] = (above + tied_before).cpu()
    return places


def right_pairs(captions: Sequence[Sequence[str]]) -> tuple[list[str], Tensor]:
    """All captions in image order, and the right (image, caption) pairs [P, 2].

    Captions that read the same (spaces and case aside) are right for every image that has one of them.
    """
    texts = [text for group in captions for text in group]
    by_words: dict[str, tuple[list[int], list[int]]] = {}
    index = 0
    for image, group in enumerate(captions):
        for text in group:
            images, places = by_words.setdefault(" ".join(text.lower().split()), ([], []))
            if not images or images[-1] != image:
                images.append(image)
            places.append(index)
            index += 1
    pairs = {(image, text) for images, places in by_words.values() for image in images for text in places}
    return texts, torch.tensor(sorted(pairs), dtype=torch.long).reshape(-1, 2)


def recalls(image: Tensor, text: Tensor, right: Tensor) -> dict[str, float]:
    """R@k image→text and text→image, their mean at 1, and what chance would give at 1; shares, not percent.

    `image` [I, D], `text` [T, D] unit-norm; `right` [P, 2] lists (image, text).
    """
    found: dict[str, float] = {}
    for name, queries, gallery, pairs in (("i2t", image, text, right), ("t2i", text, image, right.flip(1))):
        places = ranks(queries, gallery, pairs)
        found |= {f"{name} R@{k}": (places < k).double().mean().item() for k in KS}
    found["mean R@1"] = (found["i2t R@1"] + found["t2i R@1"]) / 2
    found["chance R@1"] = len(right) / (len(image) * len(text))
    return found
