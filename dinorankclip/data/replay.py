"""Mixes pairs of a second source into every batch (`tune.replay`), so that a model keeps what it knew.

Both sources have a loader of their own at the same step, so the position stays exact for any number of workers and
processes. Pairs of both are each other's negatives, unless their captions are equal: image names and groups repeat
between data sets (00025.jpg) and say nothing there.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

import torch
import torch.nn.functional as F
from torch import Tensor

from dinorankclip.data.damage import DamageCount
from dinorankclip.data.loader import PairLoader
from dinorankclip.types import Batch

IMAGE, GROUP = 0, 2  # columns of `Batch.groups` that hold names of the data set (data/samples.shared_ids)
OTHER = 0x5BD1E9955BD1E995  # tells names of the other source apart; the sign, which marks a missing id, stays


class ReplayLoader:
    """Yields batches of `own` with batches of `other` behind them. An epoch is one of `own`."""

    def __init__(self, own: PairLoader, other: PairLoader, identity: str) -> None:
        self.own, self.other, self.identity = own, other, identity
        self.steps_per_epoch = own.steps_per_epoch

    @property
    def step(self) -> int:
        return self.own.step

    @step.setter
    def step(self, step: int) -> None:
        self.own.step = self.other.step = step

    @property
    def damage(self) -> DamageCount:
        return self.own.damage

    def __iter__(self) -> Generator[Batch, None, None]:
        with closing(iter(self.own)) as first, closing(iter(self.other)) as second:
            for a, b in zip(first, second):
                yield joined(a, b)


def joined(a: Batch, b: Batch) -> Batch:
    """Return the pairs of both batches as one; captions are padded to the longer."""
    length = max(a.texts.shape[1], b.texts.shape[1])
    assert a.groups is not None and b.groups is not None, "loaders give groups"
    return Batch(
        images=torch.cat([a.images, b.images]),
        texts=torch.cat([_padded(a.texts, length), _padded(b.texts, length)]),
        keys=a.keys + b.keys,
        views=a.views + b.views,
        captions=a.captions + b.captions,
        damage=a.damage + b.damage,
        groups=torch.cat([a.groups, _of_other(b.groups)]),
    )


def _of_other(groups: Tensor) -> Tensor:
    """Return the ids of the other source, with names of images and groups that equal none of `own`."""
    groups = groups.clone()
    for column in (IMAGE, GROUP):
        ids = groups[:, column]
        groups[:, column] = torch.where(ids < 0, ids, ids ^ OTHER)
    return groups


def _padded(texts: Tensor, length: int) -> Tensor:
    return F.pad(texts, (0, length - texts.shape[1]))
