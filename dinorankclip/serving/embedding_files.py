"""A folder of embeddings that grows part by part and survives a kill.

    manifest.json     what is embedded by which model, how far it has come, and at the end "complete": true
    images.npy        [N, D], fp32 or fp16; the header says 0 rows until all of them are there
    image_keys.txt    line n is the key of row n
    texts.npy         likewise, one row a caption, with text_keys.txt and texts.txt, the captions themselves
    images.parquet    key and embedding of each row (texts.parquet: key, caption, embedding); needs pyarrow
    damaged.tsv       what was left out, and why

Rows are appended and flushed, then the manifest is replaced, which says how long every file is. Whatever lies
beyond that length was being written when the process died, and is cut off before the next part.
Line breaks and tabs inside keys and captions are written as \\n, \\r and \\t.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dinorankclip.serving.embedding_parquet import write_parquet
from dinorankclip.settings_difference import flatten
from dinorankclip.types import UserError
from dinorankclip.whole_files import write_json

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
