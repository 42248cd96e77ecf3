"""Finds the nearest rows of a query, and the ranks of given rows. Ranks begin at 1; ties are ordered by place.

Shapes: N rows, D width, k places.
"""

from __future__ import annotations

import numpy as np


def nearest(scores: np.ndarray, k: int) -> np.ndarray:
    """Return the places of the k highest scores [N], the highest first.

    As a loop: sorted(range(N), key=lambda n: (-scores[n], n))[:k]
    """
    k = min(k, len(scores))
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    candidates = np.flatnonzero(scores >= least)  # with all ties of the last
    return candidates[np.lexsort((candidates, -scores[candidates]))][:k]


def ranks_of(scores: np.ndarray, places: np.ndarray) -> list[int]:
    """Return the rank of each of `places` among scores [N].

    As loops:
        for p in places:
            rank = 1 + sum(scores[n] > scores[p] or (scores[n] == scores[p] and n < p) for n in range(N))
    """
    found = []
    for place in places:
        score = scores[place]
        found.append(1 + int((scores > score).sum()) + int((scores[:place] == score).sum()))
    return found
