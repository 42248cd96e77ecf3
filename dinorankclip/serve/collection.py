"""Opens the set that is served: images and captions by index, and the rows that models give for them.

The index of an image is its place in the data, damaged images included. The index of a caption is its place among the
captions of usable images, image by image. Pairs (`--data`) take their rows from the store that `score` uses, a folder
of photos (`--images`) from the index that `search` uses, so that no row is computed twice.

Shapes: N images of the data, U usable images, T captions, D embedding width.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip.config import FindingSettings
from dinorankclip.data.damage import CAUSES
from dinorankclip.data.open_data import ImageFiles, WithoutCaptions, open_stored, splits_of
from dinorankclip.data.row_store import CAUSE_NAMES, GOOD
from dinorankclip.evaluate.embeddings import EmbeddingStore
from dinorankclip.evaluate.retrieval import Right, alike, right_items
from dinorankclip.search.background import Background
from dinorankclip.search.index import Photos, find_photos
from dinorankclip.search.photo_search import PhotoSearch
from dinorankclip.search.served import photos_digest
from dinorankclip.serve.answers import Refused, shown
from dinorankclip.serve.long_work import Advance
from dinorankclip.train.cost import run_data
from dinorankclip.types import Source, UserError


@dataclass
class Rows:
    """Holds a model's rows, unit-norm: images [U, D] and captions [T, D]; `background` if photos are searched."""

    images: np.ndarray
    texts: np.ndarray
    background: Background | None = None
    hub: str | None = None  # the photo that is first for most neutral queries


@dataclass
class Embedded:
    """Holds a model's rows of the images that are usable to it, [n, D], and the cause of every image, int8 [N]."""

    rows: np.ndarray
    causes: np.ndarray
    finder: PhotoSearch | None = None


@dataclass
class Collection:
    """Describes a set. `usable` and what follows are known when images have been embedded (`use`)."""

    name: str
    split: str
    source: Source
    photos: Path | None = None  # a folder of photos, which `search` indexes
    reading: FindingSettings = field(default_factory=FindingSettings)
    usable: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # places of usable images, [U]
    causes: np.ndarray = field(default_factory=lambda: np.empty(0, np.int8))  # [N]
    captions: list[tuple[str, ...]] = field(default_factory=list)  # of each usable image
    photos_digest: str = ""  # names the photos as they were embedded

    def __len__(self) -> int:
        return len(self.source)

    @functools.cached_property
    def known_pairs(self) -> bool:
        """Return whether images have captions."""
        return not isinstance(self.source, WithoutCaptions)

    # --- rows of models

    def embed_images(self, model: Any, name: str, store: EmbeddingStore, advance: Advance) -> Embedded:
        """Return the rows of a loaded model, which the user calls `name`."""
        if self.photos is not None:
            finder = PhotoSearch(name, self.photos, lambda: model, lambda _: None, advance)
            index = finder.index
            if ImageFiles(self.photos, index.names).fingerprint != self.source.fingerprint:
                raise UserError(f"photos of {self.photos} changed while they were read; start again")
            self.photos_digest = photos_digest(Photos(self.photos, index.names, index.stamps))
            rows = index.rows if (index.causes == GOOD).all() else index.usable_rows()
            return Embedded(rows, index.causes, finder)
        images = store.images(model, self.source, max_pixels=self.reading.max_pixels, progress=advance)
        causes = np.full(len(self), GOOD, np.int8)
        cause_of = dict(images.damaged)
        for place in np.setdiff1d(np.arange(len(self)), images.indices):
            causes[place] = CAUSE_NAMES.index(cause_of[self.source.key(int(place))])
        return Embedded(images.rows["embedding"].numpy(), causes)

    def use(self, causes: list[np.ndarray]) -> None:
        """Set the usable images: those that no model found damaged."""
        worst = functools.reduce(np.maximum, causes)  # good is below all causes
        self.causes, self.usable = worst, np.flatnonzero(worst == GOOD)
        if not len(self.usable):
            raise UserError(f"none of the {len(self)} images of {self.name} can be read")
        if self.known_pairs:
            self.captions = [self.source.captions(int(place)) for place in self.usable]

    def embed_texts(self, model: Any, store: EmbeddingStore, advance: Advance) -> np.ndarray:
        if not self.texts:
            return np.zeros((0, model.dim), np.float32)
        return store.texts(model, self.texts, progress=advance).numpy()

    def rows(self, embedded: Embedded, texts: np.ndarray) -> Rows:
        """Return rows of the usable images, which may be fewer than those that are usable to one model."""
        own = np.flatnonzero(embedded.causes == GOOD)
        images = embedded.rows if len(own) == len(self.usable) else embedded.rows[np.isin(own, self.usable)]
        if embedded.finder is None or embedded.finder.background is None:
            return Rows(images, texts)
        return Rows(images, texts, embedded.finder.background, embedded.finder.hub()[0])

    # --- captions

    @functools.cached_property
    def texts(self) -> list[str]:
        """Return all captions, image by image."""
        return [text for group in self.captions for text in group]

    @functools.cached_property
    def owner(self) -> np.ndarray:
        """Return the row, among usable images, of each caption: [T]."""
        return np.repeat(np.arange(len(self.captions)), [len(group) for group in self.captions])

    @functools.cached_property
    def alike(self) -> np.ndarray:
        """Return a number for each usable image, the same for images with the same captions: [U]."""
        return alike(self.captions)

    @functools.cached_property
    def right(self) -> Right:
        """Return right captions of usable images, and right images of captions."""
        return right_items(self.captions)[1]

    # --- images by index

    def place(self, index: int) -> int:
        """Return an index that a request names, or refuse it."""
        if not 0 <= index < len(self):
            raise Refused(404, f"there is no image {index}: this set has images 0 to {len(self) - 1}")
        return index

    def row(self, index: int) -> int:
        """Return the row of an image among usable images; refuse a damaged image."""
        self.place(index)
        row = int(np.searchsorted(self.usable, index))
        if row == len(self.usable) or self.usable[row] != index:
            raise Refused(409, f"image {index} cannot be used: {self.cause(index)}")
        return row

    def cause(self, index: int) -> str:
        """Return why an image is damaged, in words; "" if it is usable or not known yet."""
        code = self.causes[index] if len(self.causes) else GOOD
        return CAUSES[CAUSE_NAMES[code]] if code >= 0 else ""

    def key(self, index: int) -> str:
        return shown(self.source.key(index))

    def captions_at(self, index: int) -> tuple[str, ...]:
        """Return the captions of an image; none of a damaged image, and none where captions are not known."""
        row = int(np.searchsorted(self.usable, index))
        if self.known_pairs and row < len(self.usable) and self.usable[row] == index:
            return self.captions[row]
        return ()

    def first_caption(self, row: int) -> str | None:
        """Return the first caption of a usable image."""
        return self.captions[row][0] if self.known_pairs else None

    def damaged(self) -> list[int]:
        return np.flatnonzero(self.causes != GOOD).tolist() if len(self.causes) else []


def open_photos(folder: Path) -> Collection:
    """Open a folder of photos without captions."""
    photos = find_photos(folder)
    return Collection(folder.name or str(folder), "all", WithoutCaptions(ImageFiles(folder, photos.names)), folder)


def open_data(where: str, split: str | None, reading: FindingSettings, models: list[str]) -> Collection:
    """Open a part of pairs: by default the test part, else the validation part that the models' runs set aside."""
    for trained_on in map(run_data, models):
        if trained_on is not None and trained_on.is_same(where):
            reading = trained_on.reading_for(reading)
    if split is None:
        split = "test" if "test" in splits_of(where, reading) else "val"
    source = open_stored(where, reading, split)
    if not len(source):
        raise UserError(f"the {split} part of {where} has no pairs")
    name = str(where) if where == "scenes" else Path(where).name or str(where)
    return Collection(name, split, source, reading=reading)
