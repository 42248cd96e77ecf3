"""Recent queries of a photo index with their embeddings: asked again, they need no model at all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dinorankclip.serving.photo_index import DAMAGED_FILE, load_arrays, save_arrays

MOST = 1000


class QueryMemo:
    """Query → fp32 [D]. A file that is damaged, or cannot be written, only costs time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, np.ndarray] = {}
        with contextlib.suppress(*DAMAGED_FILE):
            found = load_arrays(path)
            queries = [query.decode("utf-8", "surrogateescape") for query in found["queries"].tolist()]
            self._known = dict(zip(queries, found["rows"], strict=True))

    def get_or_add(self, query: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        row = self._known.get(query)
        if row is None:
            row = self._known[query] = make()
            self._save()
        return row

    def _save(self) -> None:
        for oldest in list(self._known)[:-MOST]:
            del self._known[oldest]
        queries = np.array([query.encode("utf-8", "surrogateescape") for query in self._known], dtype=np.bytes_)
        with contextlib.suppress(OSError):
            save_arrays(self._path, queries=queries, rows=np.stack(list(self._known.values())))
