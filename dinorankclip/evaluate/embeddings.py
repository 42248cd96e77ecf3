"""Run a model once over images and captions. One path for scores taken during training and for the suite.

`embed_images` and `embed_texts` compute; `EmbeddingStore` keeps what they computed under a key that holds the model's
weights, the data's bytes and the preprocessing, so nothing is ever stale and nothing is computed twice.

Shapes: N images, T texts, D width of a kind of row, S image side.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import simplejpeg
import torch
from torch import Tensor
from tqdm import tqdm

from dinorankclip.data.damage import PASSING, DamageCount
from dinorankclip.data.decode import MAX_PIXELS, decode
from dinorankclip.data.loader import iterate_pairs
from dinorankclip.data.samples import render_whole
from dinorankclip.io import digest
from dinorankclip.models.loaded import refuse_non_finite
from dinorankclip.types import ImageSpec, Source, UserError

TEXTS_AT_ONCE = 512
IMAGES_AT_ONCE = 256
Encode = Callable[[Tensor], Tensor]
Allocate = Callable[[str, tuple[int, int]], np.ndarray]


class Tokenize(Protocol):
    def __call__(self, captions: Sequence[str]) -> Tensor: ...


@dataclass
class EmbeddedImages:
    """Rows of the usable images of a source, by kind; `indices` are their places in the source."""

    rows: dict[str, Tensor]  # kind → fp32 [n, D]
    indices: np.ndarray  # [n]
    damaged: list[tuple[str, str]]  # (key, cause) of the others


def embed_images(
    encoders: Mapping[str, Encode],
    source: Source,
    image: ImageSpec,
    *,
    label: str = "",
    allocate: Allocate | None = None,
    max_pixels: int = MAX_PIXELS,
) -> EmbeddedImages:
    """Every kind of row in one pass over the images. `label` names the progress bar; without one there is none.

    `allocate(kind, shape)` makes room for the rows, in memory by default. Images of more than `max_pixels` are damaged.
    """
    allocate = allocate or (lambda _kind, shape: np.empty(shape, np.float32))
    damage = DamageCount(max_damaged=1.0)
    tables: dict[str, np.ndarray] = {}
    done = 0
    with tqdm(total=len(source), desc=label, unit="image", disable=None if label else True, leave=False) as bar:
        batches = iterate_pairs(source, image, IMAGES_AT_ONCE, max_pixels=max_pixels, damage=damage)
        for keys, pixels, _captions in batches:
            for kind, encode in encoders.items():
                rows = encode(pixels).float().cpu().numpy()
                if kind not in tables:
                    tables[kind] = allocate(kind, (len(source), rows.shape[1]))
                tables[kind][done : done + len(keys)] = rows
            done += len(keys)
            bar.update(len(keys))
    if not done:
        raise UserError(f"none of the {len(source)} images can be read:\n{damage.summary()}")
    indices = np.array([n for n in range(len(source)) if source.key(n) not in damage.keys], dtype=np.int64)
    found = {kind: torch.from_numpy(table)[:done] for kind, table in tables.items()}
    for kind, whole in found.items():
        refuse_non_finite(whole, kind)
    return EmbeddedImages(found, indices, list(damage.keys.items()))


def embed_texts(encode: Encode, tokenize: Tokenize, texts: Sequence[str], *, label: str = "") -> Tensor:
    """fp32 [T, D] in the order of `texts`. Captions of like length go together, so that short ones are not padded."""
    by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    table: Tensor | None = None
    with tqdm(total=len(texts), desc=label, unit="text", disable=None if label else True, leave=False) as bar:
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            some = by_length[start : start + TEXTS_AT_ONCE]
            rows = encode(tokenize([texts[i] for i in some])).float().cpu()
            if table is None:
                table = torch.empty(len(texts), rows.shape[1])
            table[torch.tensor(some)] = rows
            bar.update(len(some))
    if table is None:
        raise UserError("there is no caption to embed")
    refuse_non_finite(table, "text")
    return table


# -------- embedding_store
# Embeddings kept on disk: built/embeddings/KEY/{rows.npy, indices.npy, keys.txt, about.json}. They can be deleted.
#
# KEY holds the model's identity (weights and design), its precision, the fingerprint of the data, and what preprocessing
# makes of one fixed picture and caption: code or libraries that show another picture lead to another key. Rows are fp32
# and read as a memory map. A folder appears under its name when it is whole.

FOLDER = Path("built/embeddings")
VERSION = 1  # of this file's layout
KNOWN_CAPTION = "a photo of a cat, 2 dogs & a boat"
STALE_AFTER = 24 * 3600  # seconds; nobody fills one folder for longer
KINDS = {"embedding": "encode_image", "features": "image_features"}  # kind of row → method of a loaded model
ROWS, INDICES, KEYS, ABOUT = "rows.npy", "indices.npy", "keys.txt", "about.json"


class EmbeddingStore:
    """What loaded models (`load_model`) say of sources and texts; `folder=None` keeps nothing."""

    def __init__(self, folder: Path | None = FOLDER) -> None:
        self.folder = folder

    def images(
        self,
        model: Any,
        source: Source,
        kinds: Sequence[str] = ("embedding",),
        label: str = "",
        max_pixels: int = MAX_PIXELS,
    ) -> EmbeddedImages:
        """Rows of every kind: those not kept yet are computed in one pass over the images."""
        keys = {kind: _image_key(model, source, kind, max_pixels) for kind in kinds}
        known = {kind: found for kind in kinds if (found := self._load(keys[kind])) is not None}
        missing = {kind: keys[kind] for kind in kinds if kind not in known}
        if missing:
            made = self._make(model, source, missing, label, max_pixels)
            for kind in missing:
                known[kind] = EmbeddedImages({kind: made.rows[kind]}, made.indices, made.damaged)
        first = known[kinds[0]]
        return EmbeddedImages({kind: known[kind].rows[kind] for kind in kinds}, first.indices, first.damaged)

    def texts(self, model: Any, texts: Sequence[str], label: str = "") -> Tensor:
        """fp32 [T, D] of captions or prompts."""
        ids = model.tokenizer([KNOWN_CAPTION]).numpy().tobytes()
        key = digest("text", VERSION, model.identity, _precision(model), model.text_spec, ids, *texts)
        found = self._load(key)
        if found is None:
            rows = embed_texts(model.encode_text, model.tokenizer, texts, label=label)
            with self._new(key) as folder, suppress(OSError):
                if folder is not None:
                    np.save(folder / ROWS, rows.numpy())
                    _describe(folder, "text", np.arange(len(texts)), texts, [], model)
            return rows
        return found.rows["text"]

    def _make(
        self, model: Any, source: Source, wanted: Mapping[str, str], label: str, max_pixels: int
    ) -> EmbeddedImages:
        """`wanted`: kind of row → its key."""
        with ExitStack() as stack:
            folders = {kind: stack.enter_context(self._new(key)) for kind, key in wanted.items()}

            def allocate(kind: str, shape: tuple[int, int]) -> np.ndarray:
                if folders[kind] is not None:
                    try:
                        return _rows_on_disk(folders[kind] / ROWS, shape)
                    except OSError:
                        folders[kind] = None  # no room: in memory, and not kept
                return np.empty(shape, np.float32)

            encoders = {kind: getattr(model, KINDS[kind]) for kind in wanted}
            made = embed_images(
                encoders, source, model.image_spec, label=label, allocate=allocate, max_pixels=max_pixels
            )
            keys = [source.key(int(index)) for index in made.indices]
            # A disk that was away for a moment must not be remembered as damaged images.
            passing = any(cause == PASSING for _key, cause in made.damaged)
            for kind, folder in folders.items():
                if folder is not None and not passing:
                    with suppress(OSError):
                        _describe(folder, kind, made.indices, keys, made.damaged, model)
        return made

    @contextmanager
    def _new(self, key: str):
        """A folder to fill, which gets its name if nothing goes wrong; None if nothing can or should be kept."""
        aside = self._aside(key)
        if aside is None or self.folder is None:
            yield None
            return
        try:
            yield aside
            if (aside / ABOUT).is_file():
                _flush(aside)
                with suppress(OSError):  # another process was faster: the same rows
                    os.rename(aside, self.folder / key)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _aside(self, key: str) -> Path | None:
        if self.folder is None:
            return None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for left_over in self.folder.glob(f".{key}.*"):  # of a process that was killed
                if time.time() - left_over.stat().st_mtime > STALE_AFTER:
                    shutil.rmtree(left_over, ignore_errors=True)
            aside = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=self.folder))
            aside.chmod(0o755)  # mkdtemp makes folders that only their owner can read
            return aside
        except OSError:
            return None  # a read-only disk must not stop anybody from scoring

    def _load(self, key: str) -> EmbeddedImages | None:
        if self.folder is None:
            return None
        folder = self.folder / key
        try:
            about = json.loads((folder / ABOUT).read_text())
            indices = np.load(folder / INDICES)
            rows = np.load(folder / ROWS, mmap_mode="c")  # copy on write: torch wants arrays it may write to
        except (FileNotFoundError, ValueError, EOFError):
            shutil.rmtree(folder, ignore_errors=True)  # absent, or damaged by a disk
            return None
        except OSError:
            return None  # out of reach for now
        if any(cause == PASSING for _key, cause in about["damaged"]):
            shutil.rmtree(folder, ignore_errors=True)  # of an earlier version: perhaps all can be read now
            return None
        table = torch.from_numpy(rows)[: len(indices)]
        return EmbeddedImages({about["kind"]: table}, indices, [tuple(pair) for pair in about["damaged"]])


def _rows_on_disk(path: Path, shape: tuple[int, int]) -> np.ndarray:
    """Rows that live in a file. Its room is taken first: writing to a mapped file on a full disk kills the process."""
    table = np.lib.format.open_memmap(path, "w+", np.float32, shape)
    if hasattr(os, "posix_fallocate"):
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
    return table


def _flush(folder: Path) -> None:
    """To the disk before the name: after a power cut there is the whole folder or none."""
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def _image_key(model: Any, source: Source, kind: str, max_pixels: int) -> str:
    seen_as: tuple[Any, ...] = (model.image_spec, _known_picture(model.image_spec.size))
    seen_as += (max_pixels,) if max_pixels != MAX_PIXELS else ()  # it decides which images are damaged
    return digest("image", VERSION, model.identity, _precision(model), kind, source.fingerprint, *seen_as)


@lru_cache(maxsize=8)
def _known_picture(size: int) -> bytes:
    """What evaluation shows of a fixed picture: smooth waves of all colours, higher than wide."""
    rows, columns = np.mgrid[0:131, 0:97]
    waves = [np.sin(rows / (5 + 3 * c)) * np.cos(columns / (9 - 2 * c)) for c in range(3)]
    data = simplejpeg.encode_jpeg(np.ascontiguousarray((127.5 + 127 * np.stack(waves, -1)).astype(np.uint8)))
    return render_whole(decode(data), size).numpy().tobytes()


def _precision(model: Any) -> str:
    return model.placement.precision


def _describe(folder: Path, kind: str, indices: np.ndarray, keys: Sequence[str], damaged: list, model: Any) -> None:
    np.save(folder / INDICES, indices)
    lines = "".join(" ".join(key.splitlines()) + "\n" for key in keys)
    (folder / KEYS).write_text(lines, encoding="utf-8", errors="surrogateescape")
    about = {"kind": kind, "rows": len(indices), "damaged": damaged, "model": model.name, "identity": model.identity}
    (folder / ABOUT).write_text(json.dumps(about, indent=1) + "\n")
