"""Searches the images of a folder that `embed` has written, with the index that fits their number (large_index.py).

The index, recent queries and neutral queries lie beside the rows in EMBEDDED/.dinorankclip, as for a folder of photos.
An index depends on the bytes of images.npy, which the manifest names by hashes; the model must be the one that embedded
the images. Images that were added or changed since then are found after they are embedded again, in another folder.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from dinorankclip.checked_files import TABLE_BYTES, UnfitFile, file_bytes
from dinorankclip.checksums import read_sealed
from dinorankclip.data.damage import CAUSES, DamageCount
from dinorankclip.data.open_data import TextLines
from dinorankclip.io import digest, one_at_a_time
from dinorankclip.search.background import FEWEST_PHOTOS, NearBackground, background_rows
from dinorankclip.search.codes import RowFile
from dinorankclip.search.embed_collection import COLUMNS, DAMAGED, HASHES, MANIFEST, SHAPE
from dinorankclip.search.index import QUERIES, QueryMemo, index_folder
from dinorankclip.search.large_index import TOP, Kind, LargeIndex, kind_for, make_index, open_index, sample_queries
from dinorankclip.search.photo_search import Answer, Hit, ModelOnDemand, row_of_photo, row_of_words
from dinorankclip.types import UserError

ROWS = "images.npy"


class EmbeddedSearch:
    """Searches embedded images with the methods of `PhotoSearch`; `kind` chooses the index, None by their number."""

    def __init__(
        self,
        model: str,
        folder: Path,
        load: Callable[[], Any],
        say: Callable[[str], None],
        kind: Kind | None = None,
    ) -> None:
        manifest = _manifest(folder)
        beside = index_folder(folder)
        self._model = ModelOnDemand(model, load, beside)
        if (made_by := manifest["plan"].get("the model")) != self._model.identity:
            raise UserError(f"{folder} was embedded by another model ({made_by}) than {model}: embed the images again")
        self._rows, self._keys = RowFile(folder / ROWS), TextLines(folder / COLUMNS["images"]["key"])
        count = manifest["rows"].get("images", 0)
        if not count or not len(self._rows) == len(self._keys) == count:
            raise UserError(
                f"{folder} is damaged, or holds no images: {len(self._rows)} rows for {len(self._keys)} keys"
            )
        self.damaged, source = _damaged(folder), manifest.get("about", {}).get("images")
        self.photos = Path(source) if isinstance(source, str) and Path(source).is_dir() else Path()
        path = beside / f"{self._model.identity}.npz"
        self._memo, self._words = QueryMemo(path.with_suffix(QUERIES)), np.empty((0, self._rows.dim), np.float32)
        if count >= FEWEST_PHOTOS:
            self._words = background_rows(path, self._model.embed_queries)
        state = (folder / ROWS).stat()  # of a folder without hashes: size and time
        stamp = digest(
            str(manifest[HASHES].get(ROWS)) if HASHES in manifest else f"{state.st_size} {state.st_mtime_ns}"
        )
        self.index = self._index(beside, kind or kind_for(count), stamp, say)

    def _index(self, beside: Path, kind: Kind, stamp: str, say: Callable[[str], None]) -> LargeIndex:
        with one_at_a_time(f".index-{kind}", folder=beside):
            if (index := open_index(self._rows, beside, kind, stamp)) is not None:
                return index
            with tqdm(total=len(self._rows), unit="row", dynamic_ncols=True) as bar:

                def progress(what: str, done: int, of: int) -> None:
                    bar.set_description(what, refresh=False)
                    bar.n = done
                    bar.refresh()

                queries = sample_queries(self._rows, self._words)
                index = make_index(self._rows, beside, kind, stamp, queries, progress, self._background_facts)
            how = "by its making" if kind == "exact" else f"measured on {len(queries)} queries"
            say(f"{kind} index of {len(self._rows):,} images: recall@{TOP} against a scan {index.recall:.3f}, {how}")
            return index

    def _background_facts(self, index: LargeIndex) -> dict[str, Any]:
        return NearBackground.measured(self._words, index).facts() if len(self._words) else {}

    @property
    def searched(self) -> int:
        return len(self._rows)

    def by_words(self, words: str, top: int) -> Answer:
        text, row = row_of_words(words, self._memo, self._model)
        background = self._background()
        standing = background.standing(row, self.index) if background is not None else None
        return Answer(text, self._nearest(row, top), standing)

    def by_photo(self, path: Path, top: int) -> Answer:
        return Answer(path, self._nearest(row_of_photo(path, self._memo, self._model), top))

    def hub(self) -> tuple[str, float]:
        """Return the image that is first for most neutral queries, and the share of queries for which it is."""
        background = self._background()
        assert background is not None, "the collection is large enough"
        return self._key(background.hub), background.hub_share

    def _background(self) -> NearBackground | None:
        return NearBackground(self._words, **self.index.facts) if self.index.facts else None

    def _nearest(self, row: np.ndarray, top: int) -> list[Hit]:
        places, scores = self.index.nearest(row, top)
        return [Hit(self.photos / self._key(place), float(score)) for place, score in zip(places, scores)]

    def _key(self, place: int) -> str:
        return self._keys[int(place)].decode("utf-8", "surrogateescape")


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = read_sealed(folder / MANIFEST, SHAPE)
    except UnfitFile as error:
        raise UserError(f"{folder} cannot be searched: {error}") from None
    if not manifest["complete"]:
        raise UserError(f"{folder} is not complete: run its embed command again, which goes on where it stopped")
    if (size := manifest["bytes"].get(ROWS)) != (folder / ROWS).stat().st_size:
        raise UserError(f"{folder / ROWS} has another size than the {size} bytes that were written: embed again")
    return manifest


def _damaged(folder: Path) -> DamageCount:
    count = DamageCount(max_damaged=1.0)
    data = file_bytes(folder / DAMAGED, TABLE_BYTES) if (folder / DAMAGED).is_file() else b""
    lines = data.decode("utf-8", "surrogateescape").split("\n")  # as they were written: names need not be UTF-8
    pairs = (line.rpartition("\t")[::2] for line in lines)
    count.add(0, [(key, cause) for key, cause in pairs if cause in CAUSES])
    return count
