"""Puts the images of the set into two dimensions, by each model.

Shapes: U usable images, D embedding width.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dinorankclip.evaluate.examples import ProjectionMethod, demand, project
from dinorankclip.serve.long_work import Advance, LongWork

if TYPE_CHECKING:
    from dinorankclip.serve.state import ServedState

KEPT = 8  # planes that are remembered
PLACES = 6  # decimals of a point, finer than any screen and half of the bytes


class Planes:
    def __init__(self, state: ServedState) -> None:
        self._state, self._lock = state, threading.Lock()
        self._works: OrderedDict[tuple[str, int], LongWork[dict[str, Any]]] = OrderedDict()

    def answer(self, kind: ProjectionMethod, most: int) -> dict[str, Any]:
        """Return points of at most `most` images by each model, and the share of variance of each axis."""
        self._state.demand_ready()
        demand(kind)
        with self._lock:
            if (kind, most) not in self._works:
                title = f"computing the {'plane' if len(self._state.models) < 2 else 'planes'} ({kind.upper()})"
                self._works[kind, most] = LongWork(self._state, title, functools.partial(self._make, kind, most))
            self._works.move_to_end((kind, most))
            while len(self._works) > KEPT:
                self._works.popitem(last=False)
            work = self._works[kind, most]
        return work.result()

    def _make(self, kind: ProjectionMethod, most: int, advance: Advance) -> dict[str, Any]:
        usable = self._state.collection.usable
        drawn = np.sort(np.random.default_rng(0).permutation(len(usable))[:most])
        points, explained = {}, {}
        for number, (id, rows) in enumerate(self._state.rows.items(), 1):
            found = project({"images": torch.from_numpy(np.array(rows.images[drawn]))}, kind)
            points[id] = found.points["images"].astype(float).round(PLACES).tolist()
            explained[id] = found.explained
            advance(number, len(self._state.rows))
        note = f"{len(drawn):,} of {len(usable):,} images, drawn by a fixed seed" if len(drawn) < len(usable) else None
        return {"kind": kind, "indexes": usable[drawn].tolist(), "points": points, "explained": explained, "note": note}
