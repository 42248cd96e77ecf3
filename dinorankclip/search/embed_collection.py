"""A folder of embeddings that grows part by part and survives a kill.

    manifest.json     what is embedded by which model, how far it has come, and at the end "complete": true
    images.npy        [N, D], fp32 or fp16; the header says 0 rows until all of them are there
    image_keys.txt    line n is the key of row n
    texts.npy         likewise, one row a caption, with text_keys.txt and texts.txt, the captions themselves
    images.parquet    key and embedding of each row (texts.parquet: key, caption, embedding); needs pyarrow
    damaged.tsv       what was left out, and why

Rows are appended and flushed, then the manifest is replaced, which says how long every file is. Whatever lies
beyond that length was being written when the process died, and is cut off before the next part.
Line breaks and tabs inside keys and captions are written as \n, \r and \t.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from dinorankclip.config import flatten
from dinorankclip.data.damage import Damage, DamageCount, refuse_passing
from dinorankclip.data.decode import MAX_PIXELS
from dinorankclip.data.loader import iterate_pairs
from dinorankclip.data.splits import Part
from dinorankclip.data.unpaired import WithoutCaptions
from dinorankclip.io import digest, whole_file, write_json
from dinorankclip.types import CaptionSource, ImageSource, UserError

Kind = Literal["images", "texts"]
MANIFEST, DAMAGED = "manifest.json", "damaged.tsv"
# The columns beside the embeddings, each in a file of its own.
COLUMNS: dict[Kind, dict[str, str]] = {
    "images": {"key": "image_keys.txt"},
    "texts": {"key": "text_keys.txt", "caption": "texts.txt"},
}
_GROWING = [DAMAGED] + [name for kind, files in COLUMNS.items() for name in (f"{kind}.npy", *files.values())]
_HEADER = 128  # bytes of an .npy header, wide enough for any count of rows
_ONE_LINE = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})


class EmbeddingFolder:
    """Take `folder` for `plan`: a new one, or one that was begun (or finished) with the same plan.

    `plan` maps words to what must be the same for rows to belong together, e.g. "the model" to its identity;
    `about` is remembered beside it and may differ.
    """

    def __init__(self, folder: Path, plan: dict[str, Any], about: dict[str, Any], dim: int, half: bool) -> None:
        self.folder, self.dim = folder, dim
        self.dtype = np.dtype("<f2" if half else "<f4")
        plan = plan | {"the numbers": self.dtype.name, "the width": dim}
        self.manifest = _claimed(folder, plan) or {
            "plan": plan,
            "about": about,
            "complete": False,
            "items": {},
            "rows": {},
            "damaged": {},
            "bytes": {},
        }
        if not self.complete:
            self._cut_off()

    @property
    def complete(self) -> bool:
        return self.manifest["complete"]

    def items(self, kind: Kind) -> int:
        """Items of the source that are dealt with, damaged ones included."""
        return self.manifest["items"].get(kind, 0)

    def rows(self, kind: Kind) -> int:
        return self.manifest["rows"].get(kind, 0)

    @property
    def damaged(self) -> dict[str, int]:
        """Damaged items by cause."""
        return self.manifest["damaged"]

    def append(
        self,
        kind: Kind,
        items: int,
        embeddings: np.ndarray,
        columns: Mapping[str, Sequence[str]],
        damaged: Sequence[tuple[str, str]],
    ) -> None:
        """Add what `items` further items of the source gave: rows [n, D] with their columns, and (key, cause)."""
        name = f"{kind}.npy"
        if name not in self.manifest["bytes"]:
            self._extend(name, _npy_header(0, self.dim, self.dtype))
        self._extend(name, np.ascontiguousarray(embeddings, self.dtype).tobytes())
        for column, file in COLUMNS[kind].items():
            self._extend(file, _lines(map(one_line, columns[column])))
        if damaged:
            self._extend(DAMAGED, _lines(f"{one_line(key)}\t{cause}" for key, cause in damaged))
        for _, cause in damaged:
            self.damaged[cause] = self.damaged.get(cause, 0) + 1
        self.manifest["items"][kind] = self.items(kind) + items
        self.manifest["rows"][kind] = self.rows(kind) + len(embeddings)
        self._commit()

    def finish(self) -> bool:
        """Write the counts into the headers, the Parquet files, and "complete". False: without Parquet."""
        parquet = True
        for kind in self.manifest["rows"]:
            with open(self.folder / f"{kind}.npy", "r+b") as file:
                file.write(_npy_header(self.rows(kind), self.dim, self.dtype))
                os.fsync(file.fileno())
            beside = {name: self.folder / file for name, file in COLUMNS[kind].items()}
            path = self.folder / f"{kind}.parquet"
            parquet = parquet and write_parquet(path, self.folder / f"{kind}.npy", beside)
            if parquet:
                self.manifest["bytes"][path.name] = path.stat().st_size
        self.manifest["complete"] = True
        self._commit()
        return parquet

    def _extend(self, name: str, data: bytes) -> None:
        with open(self.folder / name, "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            self.manifest["bytes"][name] = file.tell()

    def _commit(self) -> None:
        write_json(self.folder / MANIFEST, self.manifest)

    def _cut_off(self) -> None:
        """Undo what was written after the last commit."""
        known = self.manifest["bytes"]
        for name in _GROWING:
            path = self.folder / name
            there = path.stat().st_size if path.exists() else 0
            if there < known.get(name, 0):
                raise UserError(
                    f"{path} has lost its end: {there} of {known[name]} bytes. Delete {self.folder} and begin anew."
                )
            if name in known:
                os.truncate(path, known[name])
            else:
                path.unlink(missing_ok=True)
        if not known:
            self._commit()


def one_line(text: str) -> str:
    return text.translate(_ONE_LINE)


def _claimed(folder: Path, plan: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest of a folder that belongs to this plan; None for a new folder."""
    path = folder / MANIFEST
    if not path.exists():
        if folder.exists() and any(not file.name.startswith(".") for file in folder.iterdir()):
            raise UserError(f"{folder} is not empty and holds no embeddings; choose another --out")
        folder.mkdir(parents=True, exist_ok=True)
        return None
    try:
        manifest = json.loads(path.read_text())
        old, sizes, complete = manifest["plan"], manifest["bytes"], manifest["complete"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is no manifest of embeddings; choose another --out") from None
    old, new = flatten(old), flatten(plan)
    lines = [f"{name}: {old.get(name)} → {new.get(name)}" for name in old | new if old.get(name) != new.get(name)]
    if lines:
        raise UserError(f"{folder} holds other embeddings:\n  " + "\n  ".join(lines) + "\nUse another --out.")
    for name, size in sizes.items() if complete else ():
        there = (folder / name).stat().st_size if (folder / name).exists() else None
        if there != size:
            what = "is missing" if there is None else f"has {there} bytes instead of {size}"
            raise UserError(f"{folder} is damaged: {name} {what}. Delete the folder and run the command again.")
    return manifest


def _npy_header(rows: int, width: int, dtype: np.dtype) -> bytes:
    """A header of format 1.0 whose length does not depend on the count of rows."""
    words = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    start = b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little")
    return start + words.ljust(_HEADER - 11).encode("ascii") + b"\n"


def _lines(texts: Iterable[str]) -> bytes:
    return "".join(text + "\n" for text in texts).encode("utf-8", "surrogateescape")


# -------- embedding_parquet
# Embeddings as a Parquet file, for tables and vector stores: the columns beside each row, and `embedding`.

_ROWS_AT_ONCE = 16384  # of a row group


def write_parquet(path: Path, rows: Path, columns: dict[str, Path]) -> bool:
    """Write the file from an .npy of rows [N, D] and text files with a line for each row. False: no pyarrow here.

    Parquet holds Unicode only: a name whose bytes are no UTF-8 gets replacement characters.
    """
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        return False
    embeddings = np.load(rows, mmap_mode="r")
    number = arrow.from_numpy_dtype(embeddings.dtype)
    vector = arrow.list_(number, embeddings.shape[1])
    schema = arrow.schema([*((name, arrow.string()) for name in columns), ("embedding", vector)])
    with contextlib.ExitStack() as stack:
        aside = stack.enter_context(whole_file(path))
        files = [
            stack.enter_context(open(file, encoding="utf-8", errors="replace", newline="\n"))
            for file in columns.values()
        ]
        writer = stack.enter_context(parquet.ParquetWriter(aside, schema))
        for start in range(0, len(embeddings), _ROWS_AT_ONCE):
            some = np.asarray(embeddings[start : start + _ROWS_AT_ONCE])
            words = [[line.removesuffix("\n") for line in itertools.islice(file, len(some))] for file in files]
            numbers = arrow.FixedSizeListArray.from_arrays(arrow.array(some.reshape(-1), number), type=vector)
            writer.write_table(arrow.table([*words, numbers], schema=schema))
    return True


# -------- embedding_run
# Run a model over images and captions into an `EmbeddingFolder`, part by part.
#
# A part is a fixed stretch of the source and its batches lie inside it, so every row is computed in the same company
# whether or not the run was interrupted: the bytes come out the same.

PART = 2048  # items of the source: what a kill costs at most
BATCH = 128
CAPTIONS_AT_ONCE = 1024
_MOST_THREADS = 8


def plan_of(
    model: Any,
    images: ImageSource | None,
    captions: CaptionSource | None,
    part: int = PART,
    max_pixels: int = MAX_PIXELS,
) -> dict[str, Any]:
    """What must be the same for a folder to be resumed, in words that a refusal can use."""
    spec = model.image_spec
    plan = {
        "the model": model.identity,
        "computed in": f"{model.placement.precision} on {model.device.type}",
        "preprocessing": {
            "size": spec.size,
            "resize": "short side, bicubic with antialiasing",
            "crop": "centre, after resizing",
            "mean": list(spec.mean),
            "std": list(spec.std),
        },
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


def embed_images(
    folder: EmbeddingFolder,
    model: Any,
    images: ImageSource,
    part: int = PART,
    max_pixels: int = MAX_PIXELS,
    show: bool = True,
) -> None:
    """Every image of a source (`data.images_only`, or pairs) that `folder` does not have yet."""
    source = WithoutCaptions(images)
    threads = max(2, min(_MOST_THREADS, os.cpu_count() or 1))
    with _bar("images", folder.items("images"), len(source), show) as bar:
        for start in range(folder.items("images"), len(source), part):
            stretch = Part(source, np.arange(start, min(start + part, len(source))))
            damage = DamageCount(max_damaged=1.0)
            rows, names = [np.empty((0, model.dim), np.float32)], []
            batches = iterate_pairs(
                stretch, model.image_spec, BATCH, threads=threads, max_pixels=max_pixels, damage=damage
            )
            for keys, pixels, _ in batches:
                rows.append(model.encode_image(pixels).cpu().numpy())
                names += keys
                bar.update(len(keys))
            refuse_passing(damage.keys.items())
            folder.append("images", len(stretch), np.concatenate(rows), {"key": names}, list(damage.keys.items()))
            bar.update(len(stretch) - len(names))


def embed_captions(
    folder: EmbeddingFolder, model: Any, captions: CaptionSource, part: int = PART, show: bool = True
) -> None:
    """Every caption of a source that `folder` does not have yet; all captions of an image carry its key."""
    with _bar("captions of", folder.items("texts"), len(captions), show) as bar:
        for start in range(folder.items("texts"), len(captions), part):
            stop = min(start + part, len(captions))
            keys: list[str] = []
            texts: list[str] = []
            damaged: list[tuple[str, str]] = []
            for index in range(start, stop):
                try:
                    found = captions.captions(index)
                except Damage as damage:
                    damaged.append((captions.key(index), damage.cause))
                    continue
                keys += [captions.key(index)] * len(found)
                texts += found
            refuse_passing(damaged)
            rows = [np.empty((0, model.dim), np.float32)]
            for at in range(0, len(texts), CAPTIONS_AT_ONCE):
                some = texts[at : at + CAPTIONS_AT_ONCE]
                rows.append(model.encode_text(some).cpu().numpy())
                bar.update((stop - start) * len(some) / len(texts))
            columns = {"key": keys, "caption": texts}
            folder.append("texts", stop - start, np.concatenate(rows), columns, damaged)
            bar.n = stop
            bar.refresh()


def _bar(what: str, done: int, total: int, show: bool) -> tqdm:
    """Rate and time left, on the error stream; nothing if all is done already."""
    return tqdm(
        desc=what, initial=done, total=total, unit="item", disable=not show or done == total, dynamic_ncols=True,
        bar_format="{l_bar}{bar}| {n:.0f}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]",
    )  # fmt: skip
