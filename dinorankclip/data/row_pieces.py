"""Makes the blocks of a store of rows (row_store.py) as pieces of work, for whoever computes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip.data import row_store
from dinorankclip.data.row_store import RowStore
from dinorankclip.pieces.contract import Pieces, Progress
from dinorankclip.types import UserError

Compute = Callable[[range, Progress], tuple[np.ndarray, np.ndarray]]  # block → rows of usable items, causes of all


class RowPieces(Pieces):
    """The blocks of the rows of `count` items, `dim` numbers each, in `folder`, whose name tells what they depend on.

    Blocks with an item that could not be read are missing again when `is_readable` says that it can be read now.
    """

    def __init__(
        self, title: str, unit: str, folder: Path, count: int, dim: int, about: Mapping[str, Any], compute: Compute,
        is_readable: Callable[[int], bool] | None = None,
    ) -> None:  # fmt: skip
        self.title, self.unit, self.folder, self.count, self.dim = title, unit, folder, count, dim
        self.about, self.compute, self.is_readable = about, compute, is_readable
        self.identity = folder.name
        self._store: RowStore | None = None

    def store(self) -> RowStore:
        return RowStore(self.folder, self.count, self.about)

    @property
    def sizes(self) -> list[int]:
        return [len(self._block(number)) for number in range(-(-self.count // row_store.BLOCK))]

    def missing(self) -> list[int]:
        return [block.start // row_store.BLOCK for block in self.store().missing(self.is_readable)]

    def prepare(self) -> None:
        self._write(lambda: self.store().reserve(self.dim))

    def make(self, number: int, progress: Progress) -> None:
        block = self._block(number)
        rows, causes = self.compute(block, progress)
        self._store = self._store or self.store()
        self._write(partial(self._store.write, block, rows, causes))

    def _block(self, number: int) -> range:
        start = number * row_store.BLOCK
        return range(start, min(start + row_store.BLOCK, self.count))

    def _write(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            raise UserError(
                f"{self.folder.resolve()} cannot be written ({error.strerror}): the rows of {self.count} {self.unit}s "
                f"need {self.count * self.dim * 4 / 1e6:.0f} MB there"
            ) from error
