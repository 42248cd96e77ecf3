"""Find photos by words or by another photo, with as little loaded as the question needs.

* The index is fresh and the query was asked before: arrays and a dot product.
* The index is fresh, the query is new and in words: also the text tower, in NumPy if the model allows (`quick_text`).
* Photos have changed, or a photo from elsewhere is the query: the model itself, with torch and open_clip.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip.data.damage import Damage, DamageCount
from dinorankclip.data.folders import read_file
from dinorankclip.locks import one_at_a_time
from dinorankclip.serving.model_on_demand import ModelOnDemand
from dinorankclip.serving.photo_index import DAMAGED_FILE, PhotoIndex, index_folder, look_at, refreshed
from dinorankclip.serving.query_memo import QueryMemo
from dinorankclip.types import UserError


@dataclass(frozen=True)
class Hit:
    path: Path
    score: float  # cosine


@dataclass(frozen=True)
class Found:
    """The answer to a query: its words, or the path of the photo that was asked with."""

    query: str | Path
    hits: list[Hit]


class PhotoSearch:
    """Search in the folder `photos` by the model that `load()` gives, and the user calls `model`.

    `say` gets notes for the user; `show` allows a progress bar.
    """

    def __init__(
        self, model: str, photos: Path, load: Callable[[], Any], say: Callable[[str], None], show: bool = True
    ) -> None:
        there = look_at(photos)
        self._photos = photos
        folder = index_folder(photos)
        self._model = ModelOnDemand(model, load, folder)
        path = folder / f"{self._model.identity}.npz"
        self.index = self._kept(path, say)
        if not self.index.fits(there):
            loaded = self._model.loaded()
            path = folder / f"{loaded.identity}.npz"  # training may have written another model since the last look
            with one_at_a_time(".index", folder=folder):
                known = self._kept(path, lambda _: None)  # who waited finds most of it done
                self.index = refreshed(known, there, loaded, path, say, show)
        if self.damaged.replaced == len(self.index.names):
            raise UserError(f"none of the photos in {photos} can be read:\n{self.damaged.summary()}")
        self._memo = QueryMemo(path.with_suffix(".queries.npz"))

    def _kept(self, path: Path, say: Callable[[str], None]) -> PhotoIndex:
        try:
            return PhotoIndex.load(path)
        except FileNotFoundError:
            return PhotoIndex()
        except DAMAGED_FILE as error:
            say(f"the index {path} cannot be used ({error}) and is made anew")
            return PhotoIndex()

    @property
    def damaged(self) -> DamageCount:
        return self.index.damaged()

    def by_words(self, words: str, top: int) -> Found:
        words = words.strip().encode("utf-8", "replace").decode("utf-8")  # arguments may hold bytes that are no text
        if not words:
            raise UserError("an empty query: say in words what to look for")
        row = self._memo.get_or_add(f"words {words}", lambda: self._model.read(words))
        return Found(words, self._nearest(row, top))

    def by_photo(self, path: Path, top: int) -> Found:
        """The photos most like the one at `path`, which may be one of them."""
        row = self.index.row_of(self._name_of(path))
        if row is None:
            row = self._row_of_stranger(path)
        return Found(path, self._nearest(row, top))

    def _name_of(self, path: Path) -> str:
        """Its name in the index, if it lies in the folder."""
        path, photos = path.resolve(), self._photos.resolve()
        return path.relative_to(photos).as_posix() if path.is_relative_to(photos) else ""

    def _row_of_stranger(self, path: Path) -> np.ndarray:
        try:
            data = read_file(path, missing="missing-image")
            key = "photo " + hashlib.blake2b(data, digest_size=16).hexdigest()
            return self._memo.get_or_add(key, lambda: self._model.see(data))
        except (Damage, UserError) as error:
            raise UserError(f"{path} cannot be searched with: {error}") from None

    def _nearest(self, row: np.ndarray, top: int) -> list[Hit]:
        return [Hit(self._photos / name, score) for name, score in self.index.best(row, top)]
