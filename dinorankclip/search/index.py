"""Stores embeddings of a folder of photos beside the photos, and brings them up to date when photos change.

    photos/.dinorankclip/IDENTITY.npz             the index of one model: name, size, time and embedding of every photo
    photos/.dinorankclip/IDENTITY.queries.npz     recent queries with their embeddings (`QueryMemo`)
    photos/.dinorankclip/IDENTITY.background.npz  neutral queries with their embeddings (background.py)
    photos/.dinorankclip/models.json              facts about models that need no loading (photo_search.py)
    photos/.dinorankclip/serving-STAMP.json       where a server of these photos answers (served.py)

If the folder of photos cannot be written, all of these lie in built/photo-index/. A photo is embedded again when its
size or its time of change differs. Nothing here imports torch, unless photos have to be embedded.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip.checked_files import UnfitFile, open_regular, read_arrays
from dinorankclip.data.damage import DamageCount
from dinorankclip.data.folders_and_tables import find_images, sizes_and_times
from dinorankclip.data.row_store import CAUSE_NAMES, GOOD, MISSING, UNREADABLE, embed_rows
from dinorankclip.io import digest, home, whole_file
from dinorankclip.types import UserError

HIDDEN = ".dinorankclip"
QUERIES, BACKGROUND = ".queries.npz", ".background.npz"
BESIDE = (QUERIES, BACKGROUND)  # ends of the names of files that lie beside an index
ELSEWHERE = home() / "photo-index"
KEPT_MODELS = 4  # most indexes of a folder; the index that was written longest ago is removed
KEPT_QUERIES = 1000
SAVE_EVERY = 60.0  # seconds of embedding that a kill can cost
PIECE, BATCH = 512, 64  # photos between two looks at the clock, and in a batch of the model
_FORMAT = 2  # in format 1, photos were cropped to their centre before they were resized
EMBEDDED = ("manifest.json", "images.npy")  # files of a folder that `embed` wrote
DAMAGED_FILE = (OSError, ValueError, UnfitFile)  # raised for a damaged or foreign .npz


@dataclass
class Photos:
    """Lists photos in a folder: sorted names inside the folder, and int64 [N, 2] of bytes and times."""

    folder: Path
    names: list[str]
    stamps: np.ndarray


def is_embedded(folder: Path) -> bool:
    """Return whether a folder holds embeddings rather than photos. Here, because embedded.py needs torch."""
    return all((folder / name).is_file() for name in EMBEDDED)


def find_photos(folder: Path) -> Photos:
    if not folder.is_dir():
        problem = "is a file; search takes a folder of photos" if folder.exists() else "does not exist"
        raise UserError(f"--images {folder} {problem}")
    names, _ = find_images(folder)
    if not names:
        raise UserError(f"no images in {folder} or below")
    return Photos(folder, names, sizes_and_times(folder / name for name in names))


def index_folder(photos: Path) -> Path:
    """Return the folder that holds the indexes of a folder of photos."""
    beside = photos / HIDDEN
    if os.access(beside if beside.exists() else photos, os.W_OK):
        return beside
    return ELSEWHERE / digest(photos.resolve())


@dataclass
class PhotoIndex:
    """Holds rows of one model over photos. `causes[n]` is -1, or says why photo n is damaged; its row is then zero."""

    names: list[str] = field(default_factory=list)
    stamps: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.int64))
    rows: np.ndarray = field(default_factory=lambda: np.empty((0, 0), np.float32))
    causes: np.ndarray = field(default_factory=lambda: np.empty(0, np.int8))
    computed: str = ""  # precision and device of all rows; "" if that is not known, or if they differ

    def fits(self, photos: Photos) -> bool:
        """Return whether the index is up to date: the same photos, and no unreadable photo that can be read now."""
        same = self.names == photos.names and np.array_equal(self.stamps, photos.stamps)
        unreadable = np.flatnonzero(self.causes == UNREADABLE)
        return same and not any(_is_readable(photos.folder / self.names[place]) for place in unreadable)

    def damaged(self) -> DamageCount:
        count = DamageCount(max_damaged=1.0)
        count.add(int((self.causes == GOOD).sum()))
        bad = np.flatnonzero(self.causes != GOOD)
        count.add(0, [(self.names[place], CAUSE_NAMES[self.causes[place]]) for place in bad])
        return count

    def usable_rows(self) -> np.ndarray:
        """Return the rows of photos that are not damaged, in the order of their names."""
        return self.rows[self.causes == GOOD]

    def nearest(self, query: np.ndarray, top: int) -> list[tuple[str, float]]:
        """Return names and cosines of the `top` photos nearest to a unit-norm query [D]; ties are ordered by name."""
        scores = self.rows @ query
        order = np.argsort(-scores, kind="stable")
        places = order[self.causes[order] == GOOD][:top]
        return [(self.names[place], float(scores[place])) for place in places]

    def row_of(self, name: str) -> np.ndarray | None:
        """Return the embedding of a photo; None if the photo is not in the index, or is damaged."""
        place = self.names.index(name) if name in self.names else None
        return None if place is None or self.causes[place] != GOOD else self.rows[place]

    def save(self, path: Path) -> None:
        """Replace the file at once; no reader sees half of it."""
        names = np.array([name.encode("utf-8", "surrogateescape") for name in self.names], dtype=np.bytes_)
        save_arrays(path, names=names, stamps=self.stamps, rows=self.rows, causes=self.causes,
                    computed=np.array(self.computed))  # fmt: skip
        indexes = [file for file in path.parent.glob("*.npz") if not file.name.endswith(BESIDE)]
        for old in sorted(indexes, key=lambda file: file.stat().st_mtime_ns)[:-KEPT_MODELS]:
            old.unlink(missing_ok=True)
            for kind in BESIDE:
                old.with_suffix(kind).unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path) -> PhotoIndex:
        """Read a stored index; raises one of `DAMAGED_FILE` (FileNotFoundError if there is none)."""
        arrays = load_arrays(path)
        names = _names(arrays.get("names", np.empty(0)))
        stamps, rows, causes = (
            stored_numbers(arrays, *what) for what in (("stamps", "i", 2), ("rows", "f", 2), ("causes", "i", 1))
        )
        computed = str(arrays.get("computed", ""))  # absent from indexes of earlier versions
        index = cls(names, stamps, rows, causes, computed)
        if len(causes) and not (causes.min() >= GOOD and causes.max() < len(CAUSE_NAMES)):
            raise ValueError("it holds unknown causes")
        if not (len(names) == len(index.rows) == len(index.causes) and index.stamps.shape == (len(names), 2)):
            raise ValueError(f"{path} contradicts itself")
        return index


def _is_readable(path: Path) -> bool:
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            return bool(file.read(1))
    except (OSError, UnfitFile):
        return False


def updated_index(
    old: PhotoIndex,
    photos: Photos,
    model: Any,
    path: Path,
    say: Callable[[str], None],
    progress: Callable[[int, int], Any] | None = None,
) -> PhotoIndex:
    """Index `photos` and save the index at `path`. Rows of `old` are reused; `model` computes the others. `progress`
    gets the photos that are done and all photos to do, in place of a bar on the terminal."""
    from tqdm import tqdm

    from dinorankclip.data.open_data import ImageFiles, WithoutCaptions

    count = len(photos.names)
    rows, causes = np.zeros((count, model.dim), np.float32), np.full(count, MISSING, np.int8)
    old_places = {(name, *stamp): place for place, (name, stamp) in enumerate(zip(old.names, old.stamps.tolist()))}
    for new, (name, stamp) in enumerate(zip(photos.names, photos.stamps.tolist())):
        place = old_places.get((name, *stamp))
        if place is not None and old.causes[place] != UNREADABLE:
            rows[new], causes[new] = old.rows[place], old.causes[place]

    now = computed_in(model)
    computed = now if (causes == MISSING).all() or old.computed == now else ""

    def save() -> PhotoIndex:
        """Save the rows that are computed so far."""
        done = np.flatnonzero(causes != MISSING)
        names = [photos.names[place] for place in done]
        index = PhotoIndex(names, photos.stamps[done], rows[done], causes[done], computed)
        try:
            index.save(path)
        except OSError as error:
            say(f"the index cannot be stored, and photos are embedded again next time: {error}")
        return index

    source, todo = WithoutCaptions(ImageFiles(photos.folder, photos.names)), np.flatnonzero(causes == MISSING)
    saved = time.monotonic()
    quiet = progress is not None or not len(todo)
    with tqdm(total=len(todo), desc="indexing", unit="photo", disable=quiet) as bar:
        done = 0

        def advance(number: int) -> None:
            nonlocal done
            done += number
            bar.update(number)
            if progress is not None:
                progress(done, len(todo))

        for start in range(0, len(todo), PIECE):
            places = todo[start : start + PIECE]
            piece_rows, piece_causes = embed_rows(
                {"image": model.encode_image}, source, places, model.image_spec, batch=BATCH, progress=advance
            )
            causes[places] = piece_causes
            if (piece_causes == GOOD).any():
                rows[places[piece_causes == GOOD]] = piece_rows["image"]
            if time.monotonic() - saved > SAVE_EVERY:
                save()
                saved = time.monotonic()
    return save()


def computed_in(model: Any) -> str:
    """Return the precision and device of a loaded model's rows, as `embed` writes them."""
    return f"{model.placement.precision} on {model.device.type}"


class QueryMemo:
    """Maps recent queries to fp32 [D], so that repeated queries need no model. A damaged file only costs time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[str, np.ndarray] = {}
        with contextlib.suppress(*DAMAGED_FILE):
            arrays = load_arrays(path)
            queries = _names(arrays.get("queries", np.empty(0)))
            self._rows = dict(zip(queries, stored_numbers(arrays, "rows", "f", 2), strict=True))

    def get_or_add(self, query: str, compute: Callable[[], np.ndarray]) -> np.ndarray:
        if query not in self._rows:
            self._rows[query] = compute()
            self._rows = dict(list(self._rows.items())[-KEPT_QUERIES:])
            queries = np.array([text.encode("utf-8", "surrogateescape") for text in self._rows], dtype=np.bytes_)
            with contextlib.suppress(OSError):
                save_arrays(self._path, queries=queries, rows=np.stack(list(self._rows.values())))
        return self._rows[query]


def save_arrays(path: Path, **arrays: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as aside, open(aside, "wb") as file:
        np.savez(file, format=np.array(_FORMAT), **arrays)  # type: ignore[arg-type]  # taken for `allow_pickle`


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read arrays that `save_arrays` wrote; raises one of `DAMAGED_FILE`."""
    arrays = read_arrays(path)
    if "format" not in arrays or arrays["format"].shape or arrays["format"] != _FORMAT:
        raise ValueError("it was made by another version")
    return arrays


def _names(array: np.ndarray) -> list[str]:
    """Return stored names; raise ValueError if the array holds something else."""
    if array.ndim != 1 or array.dtype.kind != "S":
        raise ValueError("it holds no names")
    return [name.decode("utf-8", "surrogateescape") for name in array.tolist()]


def stored_numbers(arrays: dict[str, np.ndarray], name: str, kind: str, axes: int) -> np.ndarray:
    """Return an array of finite numbers with this many axes; raise ValueError if it is absent or something else."""
    array = arrays.get(name)
    if array is None or array.ndim != axes or array.dtype.kind != kind or not np.isfinite(array).all():
        raise ValueError(f"it holds no {name}")
    return array
