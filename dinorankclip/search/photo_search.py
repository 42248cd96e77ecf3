"""A model that is loaded only when a question needs it.

What was learnt when it was last loaded is kept beside the photo indexes: its identity, and whether its captions can
be read in NumPy. A model is recognised by the size and time of every file it may be made of. Training on, exporting
over it or touching a file makes it unknown: it is then loaded once, which is slow but never wrong.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip import __version__
from dinorankclip.data.damage import Damage, DamageCount
from dinorankclip.data.folders import read_file, sizes_and_times
from dinorankclip.io import digest, one_at_a_time, write_json
from dinorankclip.run_files import CHECKPOINTS, LAST
from dinorankclip.search.index import DAMAGED_FILE, PhotoIndex, QueryMemo, index_folder, look_at, refreshed
from dinorankclip.types import UserError

FILE = "models.json"
MOST = 100  # models remembered
_OPEN_CLIP = "open_clip:"


@dataclass(frozen=True)
class Known:
    identity: str
    quick: str | None  # the folder from which its captions may be read in NumPy


class ModelOnDemand:
    """The model that `load()` gives and the user calls `name`; `folder` is where to remember it."""

    def __init__(self, name: str, load: Callable[[], Any], folder: Path) -> None:
        self._name, self._load, self._folder = name, load, folder
        self._known = _recall(folder, stamp(name))
        self._loaded: Any = None
        self._quick: Callable[[str], np.ndarray] | None = None

    def loaded(self) -> Any:
        if self._loaded is None:
            seen = stamp(self._name)  # before loading: what is written meanwhile must not pass for what was loaded
            self._loaded = self._load()
            self._known = Known(self._loaded.identity, _quick_folder(self._name, self._loaded))
            if seen is not None:
                _remember(self._folder, seen, self._known)
        return self._loaded

    @property
    def identity(self) -> str:
        return self._known.identity if self._known is not None else self.loaded().identity

    def read(self, words: str) -> np.ndarray:
        """Words → fp32 [D], of length 1."""
        if self._loaded is None and self._known is not None and self._known.quick is not None:
            if self._quick is None:
                from dinorankclip.search.numpy_text import QuickText

                self._quick = QuickText(Path(self._known.quick))
            return self._quick(words)
        return self.loaded().encode_text([words])[0].cpu().numpy()

    def see(self, image: bytes) -> np.ndarray:
        """An encoded image → fp32 [D], of length 1."""
        model = self.loaded()
        return model.encode_image(model.preprocess(image)[None])[0].cpu().numpy()


def stamp(model: str) -> str | None:
    """A name for a model as it is on disk now; None if nothing there stands behind it."""
    if model.startswith(_OPEN_CLIP):
        name = model.removeprefix(_OPEN_CLIP)
        places = [Path(name), Path(name.partition(":")[2] or name)]
    else:
        places = [Path(model), Path(model, CHECKPOINTS, LAST), Path(model, LAST)]
    files: list[Path] = []
    for place in (place.resolve() for place in places if place.exists()):
        files += sorted(file for file in place.iterdir() if file.is_file()) if place.is_dir() else [place]
    return digest(__version__, model, *files, sizes_and_times(files).tobytes()) if files else None


def _quick_folder(name: str, model: Any) -> str | None:
    if name.startswith(_OPEN_CLIP):
        return None
    from dinorankclip.models.folder import find_model
    from dinorankclip.search.numpy_text import agrees

    folder = find_model(name)
    return str(folder) if agrees(folder, model) else None


def _recall(folder: Path, seen: str | None) -> Known | None:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        return Known(**json.loads((folder / FILE).read_text())[seen])
    return None


def _remember(folder: Path, seen: str, known: Known) -> None:
    """Add to the table; if it cannot be read or written, the next process has to load the model again."""
    table: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        table = json.loads((folder / FILE).read_text())
    table = dict(list((table | {seen: asdict(known)}).items())[-MOST:])
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / FILE, table)


# -------- photo_search
# Find photos by words or by another photo, with as little loaded as the question needs.
#
# * The index is fresh and the query was asked before: arrays and a dot product.
# * The index is fresh, the query is new and in words: also the text tower, in NumPy if the model allows (`quick_text`).
# * Photos have changed, or a photo from elsewhere is the query: the model itself, with torch and open_clip.


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
