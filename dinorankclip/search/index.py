"""Recent queries of a photo index with their embeddings: asked again, they need no model at all."""

from __future__ import annotations

import contextlib
import os
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip.data.damage import CAUSES, PASSING, DamageCount
from dinorankclip.data.folders import find_images, sizes_and_times
from dinorankclip.io import digest, whole_file
from dinorankclip.types import UserError

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


# -------- photo_index
# The embeddings of a folder of photos, kept beside them and brought up to date for what has changed.
#
#     photos/.dinorankclip/IDENTITY.npz          the index of one model: name, size, time and embedding of every photo
#     photos/.dinorankclip/IDENTITY.queries.npz  recent queries (`query_memo`)
#     photos/.dinorankclip/models.json           what is known of models without loading them (`model_on_demand`)
#
# If the folder of photos cannot be written, all this lies in built/photo-index/. A photo is embedded again when its
# size or its time of change differs. Nothing here imports torch, unless photos have to be embedded.

HIDDEN = ".dinorankclip"
ELSEWHERE = Path("built/photo-index")
KEPT_MODELS = 4  # indexes of a folder; the one written longest ago goes
SAVE_EVERY = 60.0  # seconds of embedding that a kill can cost
BATCH = 64
_FORMAT = 2  # 1: of photos whose centre was cut out before they were resized
_CAUSES = list(CAUSES)
_GOOD = -1
_PASSING = _CAUSES.index(PASSING)
# What reading a damaged or foreign .npz can raise.
DAMAGED_FILE = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile)


@dataclass
class Photos:
    """The photos that are there: names inside the folder, sorted, and int64 [N, 2] of bytes and times."""

    folder: Path
    names: list[str]
    stamps: np.ndarray


def look_at(folder: Path) -> Photos:
    if not folder.is_dir():
        what = "is a file; search takes a folder of photos" if folder.exists() else "does not exist"
        raise UserError(f"--images {folder} {what}")
    names, _ = find_images(folder)
    if not names:
        raise UserError(f"no images in {folder} or below")
    return Photos(folder, names, sizes_and_times(folder / name for name in names))


def index_folder(photos: Path) -> Path:
    """Where the indexes of a folder of photos are kept."""
    beside = photos / HIDDEN
    if os.access(beside if beside.exists() else photos, os.W_OK):
        return beside
    return ELSEWHERE / digest(photos.resolve())


@dataclass
class PhotoIndex:
    """What one model makes of photos. `causes[n]` is -1, or says why photo n is damaged; its row is then zero."""

    names: list[str] = field(default_factory=list)
    stamps: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.int64))
    rows: np.ndarray = field(default_factory=lambda: np.empty((0, 0), np.float32))
    causes: np.ndarray = field(default_factory=lambda: np.empty(0, np.int8))

    def fits(self, photos: Photos) -> bool:
        same = self.names == photos.names and np.array_equal(self.stamps, photos.stamps)
        unread = np.flatnonzero(self.causes == _PASSING)
        return same and not any(_readable(photos.folder / self.names[place]) for place in unread)

    def damaged(self) -> DamageCount:
        count = DamageCount(max_damaged=1.0)
        count.add(int((self.causes == _GOOD).sum()))
        bad = np.flatnonzero(self.causes != _GOOD)
        count.add(0, [(self.names[place], _CAUSES[self.causes[place]]) for place in bad])
        return count

    def best(self, query: np.ndarray, top: int) -> list[tuple[str, float]]:
        """Names and cosines of the `top` photos nearest to a unit-norm query [D]; equal ones by name."""
        scores = self.rows @ query
        order = np.argsort(-scores, kind="stable")
        nearest = order[self.causes[order] == _GOOD][:top]
        return [(self.names[place], float(scores[place])) for place in nearest]

    def row_of(self, name: str) -> np.ndarray | None:
        """The embedding of one of the photos; None if it is not there, or damaged."""
        place = self.names.index(name) if name in self.names else None
        return None if place is None or self.causes[place] != _GOOD else self.rows[place]

    def save(self, path: Path) -> None:
        """Replace the file at once; nobody reads half of it."""
        names = np.array([name.encode("utf-8", "surrogateescape") for name in self.names], dtype=np.bytes_)
        save_arrays(path, names=names, stamps=self.stamps, rows=self.rows, causes=self.causes)
        indexes = [file for file in path.parent.glob("*.npz") if not file.name.endswith(".queries.npz")]
        for old in sorted(indexes, key=lambda file: file.stat().st_mtime_ns)[:-KEPT_MODELS]:
            old.unlink(missing_ok=True)
            old.with_suffix(".queries.npz").unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path) -> PhotoIndex:
        """The index that is kept; raises one of `DAMAGED_FILE` (FileNotFoundError if there is none)."""
        found = load_arrays(path)
        names = [name.decode("utf-8", "surrogateescape") for name in found["names"].tolist()]
        index = cls(names, found["stamps"], found["rows"], found["causes"])
        if not (len(names) == len(index.rows) == len(index.causes) and index.stamps.shape == (len(names), 2)):
            raise ValueError(f"{path} contradicts itself")
        return index


def _readable(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return bool(file.read(1))
    except OSError:
        return False


def refreshed(
    old: PhotoIndex, photos: Photos, model: Any, path: Path, say: Callable[[str], None], show: bool = True
) -> PhotoIndex:
    """The index of `photos`, saved at `path`: what `old` knows is taken over, the rest embedded by `model`."""
    from tqdm import tqdm

    from dinorankclip.data.loader import iterate_pairs
    from dinorankclip.data.unpaired import ImageFiles, WithoutCaptions

    count = len(photos.names)
    rows, causes = np.zeros((count, model.dim), np.float32), np.full(count, _GOOD, np.int8)
    done = np.zeros(count, bool)
    known = {(name, *stamp): place for place, (name, stamp) in enumerate(zip(old.names, old.stamps.tolist()))}
    for new, (name, stamp) in enumerate(zip(photos.names, photos.stamps.tolist())):
        place = known.get((name, *stamp))
        if place is not None and old.causes[place] != _PASSING:
            rows[new], causes[new], done[new] = old.rows[place], old.causes[place], True

    def so_far() -> PhotoIndex:
        at = np.flatnonzero(done)
        return PhotoIndex([photos.names[place] for place in at], photos.stamps[at], rows[at], causes[at])

    places = {photos.names[place]: place for place in np.flatnonzero(~done)}
    source = WithoutCaptions(ImageFiles(photos.folder, list(places)))
    damage = DamageCount(max_damaged=1.0)
    saved = time.monotonic()
    with tqdm(total=len(places), desc="indexing", unit="photo", disable=not (show and places)) as bar:
        for keys, pixels, _ in iterate_pairs(source, model.image_spec, BATCH, damage=damage):
            at = [places[key] for key in keys]
            rows[at] = model.encode_image(pixels).cpu().numpy()
            done[at] = True
            bar.update(len(keys))
            if time.monotonic() - saved > SAVE_EVERY:
                _save(so_far(), path, say)
                saved = time.monotonic()
        bar.update(len(damage.keys))
    for key, cause in damage.keys.items():
        causes[places[key]], done[places[key]] = _CAUSES.index(cause), True
    index = so_far()
    _save(index, path, say)
    return index


def _save(index: PhotoIndex, path: Path, say: Callable[[str], None]) -> None:
    try:
        index.save(path)
    except OSError as error:
        say(f"the index cannot be kept, and photos are embedded again next time: {error}")


def save_arrays(path: Path, **arrays: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as aside, open(aside, "wb") as file:
        # The stubs take any name for `allow_pickle`.
        np.savez(file, format=np.array(_FORMAT), **arrays)  # type: ignore[arg-type]


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """What `save_arrays` wrote; raises one of `DAMAGED_FILE`."""
    with np.load(path, allow_pickle=False) as found:
        if int(found["format"]) != _FORMAT:
            raise ValueError("it was made by another version")
        return {name: found[name] for name in found.files}
