"""Finds pairs of a batch that must not act as each other's negatives: they share an image, a caption or a group.

A pair has a set of ids, one for each thing that it may share: integers [C], where a negative id means none. Two pairs
belong together when they share an id. Ids of different things must differ, as `data.samples.shared_ids` makes them.

Shapes: N own pairs, M pairs over all processes, C ids of a pair.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dinorankclip import distributed


def gathered_groups(groups: Tensor | None) -> Tensor | None:
    """Return the ids of all processes' pairs [M, C'], of own ids [N] or [N, C]; None if no id occurs twice.

    None sends a loss down the path that it takes without groups, bit for bit. Every process gets the same answer.
    Ids that occur once become -1, and columns without others are left out, since each column costs comparisons.
    """
    if groups is None:
        return None
    groups = distributed.gather_integers(groups.view(len(groups), -1))
    if not repeated(groups):
        return None
    numbers: Tensor
    counts: Tensor
    _, numbers, counts = groups.unique(return_inverse=True, return_counts=True)  # type: ignore[no-untyped-call]
    shared = (groups >= 0) & (counts[numbers] > 1)
    return torch.where(shared, numbers, -1)[:, shared.any(0)].int()


def repeated(groups: Tensor) -> bool:
    """Return whether any id of a batch [M, C] occurs twice; if none does, no two pairs belong together.

    As loops:
        ids = [groups[m][c] for m in range(M) for c in range(C) if groups[m][c] >= 0]
        return len(set(ids)) < len(ids)
    """
    ids = groups[groups >= 0].sort().values
    return bool((ids[1:] == ids[:-1]).any())


def other_positives(groups: Tensor, rows: Tensor) -> Tensor:
    """Return which pairs belong together with each of these rows, the row itself excepted: bool [N, M].

    groups [M, C], rows [N]: indices of pairs.

    As loops:
        for n in range(N):
            for m in range(M):
                shared = any(a == b >= 0 for a in groups[rows[n]] for b in groups[m])
                out[n][m] = shared and m != rows[n]
    """
    together = torch.zeros(len(rows), len(groups), dtype=torch.bool, device=groups.device)
    for own in groups[rows].unbind(1):
        for other in groups.unbind(1):
            together |= (own[:, None] == other) & (own >= 0)[:, None]
    return together.scatter_(1, rows[:, None], False)
