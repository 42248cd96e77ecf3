"""Makes the parts of `embed` as pieces of work, and joins them in the order of the data.

A part is `PART` items, images first, then captions. The process that has the folder appends the next part directly. Any
other part is written aside, to FOLDER/.parts/SIDE-START-IDENTITY.npz, and appended when all parts before it are there.
So the folder is the same whoever made which part, and a folder that one process began goes on with many. The identity
is that of model, data and settings: a part of another call is never taken.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip.checked_files import UnfitFile, read_arrays
from dinorankclip.data.damage import Damage, refuse_transient
from dinorankclip.data.decode import MAX_PIXELS
from dinorankclip.data.open_data import ImageFiles, WithoutCaptions
from dinorankclip.data.row_store import CAUSE_NAMES, GOOD, embed_rows
from dinorankclip.evaluate.embeddings import EmbeddingStore
from dinorankclip.io import digest, remove_left_files, whole_file
from dinorankclip.pieces.contract import Pieces, Progress
from dinorankclip.search.embed_collection import PART, EmbeddingFolder, Side, committed_items, plan_of
from dinorankclip.search.index import DAMAGED_FILE, PhotoIndex, computed_in, find_photos, index_folder
from dinorankclip.types import CaptionSource, ImageSource, Source, UserError

ASIDE = ".parts"
BATCH = 128
CAPTIONS_AT_ONCE = 1024


@dataclass(frozen=True)
class KnownRows:
    """Holds rows [N, D] and causes [N] of all images of a source."""

    rows: np.ndarray
    causes: np.ndarray


@dataclass(frozen=True)
class Part:
    """Holds rows [n, D] of the usable items of a part with columns, and (key, cause) of the others."""

    rows: np.ndarray
    columns: Mapping[str, Sequence[str]]
    damaged: Sequence[tuple[str, str]]

    def write(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        words = json.dumps({"columns": self.columns, "damaged": self.damaged}).encode("ascii")
        with whole_file(path) as aside, open(aside, "wb") as file:
            np.savez(file, rows=self.rows, words=np.frombuffer(words, np.uint8))

    @classmethod
    def read(cls, path: Path) -> Part:
        arrays = read_arrays(path)
        words = json.loads(arrays["words"].tobytes())
        return cls(arrays["rows"], words["columns"], words["damaged"])


class EmbedPieces(Pieces):
    """All parts of a folder of embeddings. Only the leading process `lead`s: it opens the folder and joins parts."""

    title = "embed"

    def __init__(
        self,
        out: Path,
        model: Any,
        images: ImageSource | None,
        captions: CaptionSource | None,
        half: bool = False,
        part: int = PART,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.out, self.model, self.images, self.captions = out, model, images, captions
        self.part, self.half, self.max_pixels = part, half, max_pixels
        self.plan = plan_of(model, images, captions, part, max_pixels)
        self.identity = digest(json.dumps(self.plan), half, model.dim)
        self.known: KnownRows | None = None
        self.folder: EmbeddingFolder | None = None
        self._places: list[tuple[Side, range]] = []
        sides: tuple[tuple[Side, ImageSource | CaptionSource | None], ...] = (("images", images), ("texts", captions))
        for side, source in sides:
            count = 0 if source is None else len(source)
            self._places += [(side, range(at, min(at + part, count))) for at in range(0, count, part)]

    @property
    def sizes(self) -> list[int]:
        return [len(places) for _, places in self._places]

    def lead(self, about: dict[str, Any]) -> EmbeddingFolder:
        """Open the folder, new or begun, in the process that joins parts."""
        self.folder = EmbeddingFolder(self.out, self.plan, about, self.model.dim, self.half)
        remove_left_files(self.out / ASIDE)
        for path in (self.out / ASIDE).glob("[!.]*.npz"):
            if not path.stem.endswith(f"-{self.identity}"):
                path.unlink()
        self.gather()
        return self.folder

    def missing(self) -> list[int]:
        joined = self.folder.manifest["items"] if self.folder is not None else committed_items(self.out)
        aside = set(os.listdir(self.out / ASIDE)) if (self.out / ASIDE).is_dir() else set()
        return [
            number
            for number, (side, places) in enumerate(self._places)
            if places.start >= joined.get(side, 0) and self._path(number).name not in aside
        ]

    def make(self, number: int, progress: Progress) -> None:
        side, places = self._places[number]
        part = self._image_part(places, progress) if side == "images" else self._caption_part(places, progress)
        refuse_transient(part.damaged)
        if self.folder is not None and number == self._next(self.folder):
            self._append(self.folder, number, part)
        else:
            part.write(self._path(number))

    def gather(self) -> None:
        """Append the parts that wait aside, as far as none is missing before them."""
        if self.folder is None or self.folder.complete:
            return
        while (number := self._next(self.folder)) < len(self._places):
            path = self._path(number)
            try:
                self._append(self.folder, number, Part.read(path))
            except FileNotFoundError:
                return
            except (UnfitFile, KeyError, ValueError):
                path.unlink()  # damaged since: it is made again
                return
            path.unlink()
        with suppress(OSError):
            (self.out / ASIDE).rmdir()

    def _next(self, folder: EmbeddingFolder) -> int:
        """Return the first part that the folder does not have."""
        images = -(-len(self.images) // self.part) if self.images is not None else 0
        joined = -(-folder.items("images") // self.part)
        return joined if joined < images else images + -(-folder.items("texts") // self.part)

    def _append(self, folder: EmbeddingFolder, number: int, part: Part) -> None:
        side, places = self._places[number]
        folder.append(side, len(places), part.rows, part.columns, part.damaged)

    def _path(self, number: int) -> Path:
        side, places = self._places[number]
        return self.out / ASIDE / f"{side}-{places.start:010d}-{self.identity}.npz"

    def _image_part(self, places: range, progress: Progress) -> Part:
        assert self.images is not None
        source = WithoutCaptions(self.images)
        if self.known is not None:
            causes = self.known.causes[places.start : places.stop]
            rows = self.known.rows[places.start : places.stop][causes == GOOD]
            progress(len(places))
        else:
            of_kinds, causes = embed_rows(
                {"image": self.model.encode_image}, source, places, self.model.image_spec, batch=BATCH,
                threads=max(2, min(8, os.cpu_count() or 1)), max_pixels=self.max_pixels, progress=progress,
            )  # fmt: skip
            rows = of_kinds["image"]
        keys = [source.key(at) for at, cause in zip(places, causes) if cause == GOOD]
        damaged = [(source.key(at), CAUSE_NAMES[cause]) for at, cause in zip(places, causes) if cause != GOOD]
        return Part(rows, {"key": keys}, damaged)

    def _caption_part(self, places: range, progress: Progress) -> Part:
        """Embed all captions of some items; all captions of an image carry its key."""
        assert self.captions is not None
        keys: list[str] = []
        texts: list[str] = []
        damaged: list[tuple[str, str]] = []
        for index in places:
            try:
                of_item = self.captions.captions(index)
            except Damage as damage:
                damaged.append((self.captions.key(index), damage.cause))
                continue
            keys += [self.captions.key(index)] * len(of_item)
            texts += of_item
        rows = [np.empty((0, self.model.dim), np.float32)]
        for at in range(0, len(texts), CAPTIONS_AT_ONCE):
            batch = texts[at : at + CAPTIONS_AT_ONCE]
            rows.append(self.model.encode_text(batch).cpu().numpy())
            progress(len(places) * len(batch) / len(texts))
        if not texts:
            progress(len(places))
        return Part(np.concatenate(rows), {"key": keys, "caption": texts}, damaged)


def known_rows(
    model: Any, images: ImageSource, photos: Path | None, pairs: Source | None, max_pixels: int = MAX_PIXELS
) -> KnownRows | None:
    """Return rows that another command has stored: of a folder of `photos`, or of `pairs`; None if some are missing."""
    if photos is not None and photos.is_dir() and isinstance(images, ImageFiles) and max_pixels == MAX_PIXELS:
        with suppress(*DAMAGED_FILE, UserError):
            index = PhotoIndex.load(index_folder(photos) / f"{model.identity}.npz")
            same = ImageFiles(photos, index.names).fingerprint == images.fingerprint
            if same and index.computed == computed_in(model) and index.fits(find_photos(photos)):
                return KnownRows(index.rows, index.causes)
    if pairs is not None:
        store = EmbeddingStore().stored_images(model, pairs, max_pixels)
        # An item whose caption is damaged has no row there, and one here.
        if store is not None and (store.causes == GOOD).all():
            return KnownRows(store.rows(), store.causes)
    return None
