"""Embeds whole collections for `dinorankclip embed`, into a folder that survives a kill.

    manifest.json     the model and the data, how far the work has come, and at the end "complete": true
    images.npy        [N, D], fp32 or fp16; the header says 0 rows until all rows are written
    image_keys.txt    line n is the key of row n
    texts.npy         likewise, one row a caption, with text_keys.txt and texts.txt, the captions themselves
    images.parquet    key and embedding of each row (texts.parquet: key, caption, embedding); needs pyarrow
    damaged.tsv       key and cause of every damaged item

Rows are flushed, then the manifest, which records every file's length, is replaced. Bytes beyond that length were being
written when the process died, and are cut off. Part boundaries do not change, so a resumed run gives the same bytes.
Rows that `search` and `serve` (a folder of photos) or `score` and `explore` (pairs) have stored of the same model are
taken as they are: they are equal up to rounding. embed_pieces.py makes the parts.
Line breaks and tabs inside keys and captions are written as \\n, \\r and \\t.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dinorankclip.checked_files import UnfitFile, naming
from dinorankclip.checksums import bytes_hash, file_hash, read_sealed, sealed
from dinorankclip.data.decode import MAX_PIXELS
from dinorankclip.data.row_store import npy_header
from dinorankclip.io import digest, remove_left_files, whole_file, write_json
from dinorankclip.json_shape import COUNT, FLAG, OBJECT, entries, named
from dinorankclip.search.index import computed_in
from dinorankclip.stored_settings import flatten
from dinorankclip.types import CaptionSource, ImageSource, UserError

Side = Literal["images", "texts"]
MANIFEST, DAMAGED = "manifest.json", "damaged.tsv"
HASHES = "hashes"  # entry of the manifest: [end, SHA-256] of each piece of each file, in the order of writing
COLUMNS: dict[Side, dict[str, str]] = {  # files of the columns beside the embeddings
    "images": {"key": "image_keys.txt"},
    "texts": {"key": "text_keys.txt", "caption": "texts.txt"},
}
PART = 2048  # most items that must be recomputed after a kill
_GROWING = [DAMAGED] + [name for side, files in COLUMNS.items() for name in (f"{side}.npy", *files.values())]
_HEADER = 128  # length of the header of an .npy file, in bytes
_ROWS_AT_ONCE = 16384  # size of a row group of a Parquet file


def plan_of(
    model: Any,
    images: ImageSource | None,
    captions: CaptionSource | None,
    part: int = PART,
    max_pixels: int = MAX_PIXELS,
) -> dict[str, Any]:
    """Describe the inputs that must not change before a folder is resumed, in words that an error message can use."""
    size, mean, std = model.image_spec.size, list(model.image_spec.mean), list(model.image_spec.std)
    spec = model.image_spec
    shown = {"resize": f"short side, {spec.interpolation} with antialiasing", "crop": "centre, after resizing"}
    if spec.resize == "squash":
        shown = {"resize": f"both sides, {spec.interpolation} with antialiasing", "crop": "none"}
    plan = {
        "the model": model.identity,
        "computed in": computed_in(model),
        "preprocessing": {"size": size, **shown, "mean": mean, "std": std},
        "the images": _summary(images),
        "the captions": _summary(captions),
        "items of a part": part,
    }
    if images is not None and max_pixels != MAX_PIXELS:  # else left out: folders made without this entry stay valid
        plan["--reading.max-pixels"] = max_pixels
    return plan


def _summary(source: ImageSource | CaptionSource | None) -> str:
    if source is None:
        return "none"
    return f"{len(source)} items, fingerprint {digest(source.fingerprint, source.stamps().tobytes())}"


SHAPE = entries(
    {"plan": OBJECT, "complete": FLAG, **dict.fromkeys(("items", "rows", "damaged", "bytes"), named(COUNT))},
    required=("plan", "complete", "items", "rows", "damaged", "bytes"),
)


class EmbeddingFolder:
    """Opens `folder` for a plan (`plan_of`): a new folder, or a folder of the same plan, finished or not. `about` is
    stored beside the plan and may differ."""

    def __init__(self, folder: Path, plan: dict[str, Any], about: dict[str, Any], dim: int, half: bool) -> None:
        self.folder, self.dim = folder, dim
        self.dtype = np.dtype("<f2" if half else "<f4")
        plan = plan | {"the numbers": self.dtype.name, "the width": dim}
        new = {
            "plan": plan,
            "about": about,
            "complete": False,
            "items": {},
            "rows": {},
            "damaged": {},
            "bytes": {},
            HASHES: {},
        }
        self.manifest: dict[str, Any] = _read_manifest(folder, plan) or new
        remove_left_files(folder)
        if not self.complete:
            self._cut_off()

    @property
    def complete(self) -> bool:
        return self.manifest["complete"]

    def items(self, side: Side) -> int:
        """Count the items of the source that are done, damaged items included."""
        return self.manifest["items"].get(side, 0)

    def rows(self, side: Side) -> int:
        return self.manifest["rows"].get(side, 0)

    @property
    def damaged(self) -> dict[str, int]:
        """Count damaged items by cause."""
        return self.manifest["damaged"]

    def append(
        self,
        side: Side,
        items: int,
        embeddings: np.ndarray,
        columns: Mapping[str, Sequence[str]],
        damaged: Sequence[tuple[str, str]],
    ) -> None:
        """Add `items` items of the source: rows [n, D] of usable items with columns, and (key, cause) of the others."""
        name = f"{side}.npy"
        if name not in self.manifest["bytes"]:
            self._extend(name, npy_header((0, self.dim), self.dtype, _HEADER))
        self._extend(name, np.ascontiguousarray(embeddings, self.dtype).tobytes())
        for column, file in COLUMNS[side].items():
            self._extend(file, _lines(map(one_line, columns[column])))
        if damaged:
            self._extend(DAMAGED, _lines(f"{one_line(key)}\t{cause}" for key, cause in damaged))
        for _, cause in damaged:
            self.damaged[cause] = self.damaged.get(cause, 0) + 1
        self.manifest["items"][side] = self.items(side) + items
        self.manifest["rows"][side] = self.rows(side) + len(embeddings)
        self._commit()

    def finish(self) -> bool:
        """Write the counts into the headers, the Parquet files, and "complete". Returns False without Parquet."""
        parquet = True
        for side in self.manifest["rows"]:
            with open(self.folder / f"{side}.npy", "r+b") as file:
                header = npy_header((self.rows(side), self.dim), self.dtype, _HEADER)
                file.write(header)
                os.fsync(file.fileno())
            if HASHES in self.manifest:  # the header is the first piece of the file
                self.manifest[HASHES][f"{side}.npy"][0] = [_HEADER, bytes_hash([header])]
            columns = {name: self.folder / file for name, file in COLUMNS[side].items()}
            path = self.folder / f"{side}.parquet"
            parquet = parquet and write_parquet(path, self.folder / f"{side}.npy", columns)
            if parquet:
                self.manifest["bytes"][path.name] = path.stat().st_size
                if HASHES in self.manifest:
                    self.manifest[HASHES][path.name] = [[path.stat().st_size, file_hash(path)]]
        self.manifest["complete"] = True
        self._commit()
        return parquet

    def _extend(self, name: str, data: bytes) -> None:
        with naming(self.folder / name), open(self.folder / name, "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            self.manifest["bytes"][name] = file.tell()
        if HASHES in self.manifest:
            pieces = self.manifest[HASHES].setdefault(name, [])
            pieces.append([self.manifest["bytes"][name], bytes_hash([data])])

    def _commit(self) -> None:
        write_json(self.folder / MANIFEST, sealed(self.manifest))

    def _cut_off(self) -> None:
        """Cut off the bytes that were written after the last commit."""
        committed = self.manifest["bytes"]
        for name in _GROWING:
            path = self.folder / name
            size = path.stat().st_size if path.exists() else 0
            if size < committed.get(name, 0):
                raise UserError(
                    f"{path} has lost its end: {size} of {committed[name]} bytes. Delete {self.folder} and begin anew."
                )
            if name in committed:
                os.truncate(path, committed[name])
            else:
                path.unlink(missing_ok=True)
        if not committed:
            self._commit()
        demand_as_written(self.folder, self.manifest)


def committed_items(folder: Path) -> dict[Side, int]:
    """Return how many items of each side a folder has, for a process that does not write to it."""
    try:
        return read_sealed(folder / MANIFEST, SHAPE)["items"]
    except UnfitFile as error:
        raise UserError(f"{folder / MANIFEST} is no manifest of embeddings ({error}); choose another --out") from None


def _read_manifest(folder: Path, plan: dict[str, Any]) -> dict[str, Any] | None:
    """Return the manifest of a folder that belongs to this plan; None for a new folder."""
    path = folder / MANIFEST
    if not path.exists():
        if folder.exists() and any(not file.name.startswith(".") for file in folder.iterdir()):
            raise UserError(f"{folder} is not empty and holds no embeddings; choose another --out")
        folder.mkdir(parents=True, exist_ok=True)
        return None
    try:
        manifest = read_sealed(path, SHAPE)
    except UnfitFile as error:
        raise UserError(f"{path} is no manifest of embeddings ({error}); choose another --out") from None
    old, sizes, complete = manifest["plan"], manifest["bytes"], manifest["complete"]
    old, new = flatten(old), flatten(plan)
    lines = [f"{name}: {old.get(name)} → {new.get(name)}" for name in old | new if old.get(name) != new.get(name)]
    if lines:
        raise UserError(f"{folder} holds other embeddings:\n  " + "\n  ".join(lines) + "\nUse another --out.")
    for name, size in sizes.items() if complete else ():
        actual = (folder / name).stat().st_size if (folder / name).exists() else None
        if actual != size:
            damage = "is missing" if actual is None else f"has {actual} bytes instead of {size}"
            raise UserError(f"{folder} is damaged: {name} {damage}. Delete the folder and run the command again.")
    if complete:
        demand_as_written(folder, manifest)
    return manifest


def demand_as_written(folder: Path, manifest: dict[str, Any]) -> None:
    """Refuse a folder whose committed bytes are not those that were written. Old folders have no hashes."""
    headers = {f"{side}.npy" for side in COLUMNS} if not manifest["complete"] else set()
    for name, pieces in manifest.get(HASHES, {}).items():
        start = 0
        if len(pieces) == 1 and file_hash(folder / name) == pieces[0][1]:
            continue  # a Parquet file is one large piece
        with (folder / name).open("rb") as file:
            for place, (end, expected) in enumerate(pieces):
                # `finish` replaces the header before the manifest: a kill between them leaves either header.
                if bytes_hash([file.read(end - start)]) != expected and not (place == 0 and name in headers):
                    raise UserError(
                        f"{folder / name} is damaged: bytes {start} to {end} are not those that were written. Delete "
                        f"{folder} and run the command again."
                    )
                start = end


def one_line(text: str) -> str:
    return text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def _lines(texts: Iterable[str]) -> bytes:
    return "".join(text + "\n" for text in texts).encode("utf-8", "surrogateescape")


def write_parquet(path: Path, rows: Path, columns: dict[str, Path]) -> bool:
    """Write a Parquet file from an .npy of rows [N, D] and text files with a line per row. Returns False if pyarrow is
    not installed. Parquet holds Unicode only: bytes that are not UTF-8 become replacement characters."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        return False
    embeddings = np.load(rows, mmap_mode="r")
    vector = arrow.list_(arrow.from_numpy_dtype(embeddings.dtype), embeddings.shape[1])
    schema = arrow.schema([*((name, arrow.string()) for name in columns), ("embedding", vector)])
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        files = [enter(file.open(encoding="utf-8", errors="replace", newline="\n")) for file in columns.values()]
        writer = enter(parquet.ParquetWriter(enter(whole_file(path)), schema))
        for start in range(0, len(embeddings), _ROWS_AT_ONCE):
            group = np.asarray(embeddings[start : start + _ROWS_AT_ONCE])
            words = [[line.removesuffix("\n") for line in itertools.islice(file, len(group))] for file in files]
            numbers = arrow.FixedSizeListArray.from_arrays(arrow.array(group.reshape(-1)), type=vector)
            writer.write_table(arrow.table([*words, numbers], schema=schema))
    return True
