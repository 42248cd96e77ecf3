"""Runs a model once over images and captions, for scores taken during training and for the suite.

`embed_images` and `embed_texts` compute rows. `EmbeddingStore` stores them in built/embeddings/KEY (see
data/row_store.py) and goes on where a killed process stopped. KEY is a digest of the model's weights and design, its
precision, the bytes of the data, and the result of preprocessing one fixed picture and caption: code or libraries that
show another picture lead to another key, so rows are never stale. The folder can be deleted at any time.

Shapes: N images, T texts, D width of a kind of row, S image side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
import torch
from torch import Tensor
from tqdm import tqdm

from dinorankclip.data.damage import DamageCount
from dinorankclip.data.decode import MAX_PIXELS, decode
from dinorankclip.data.row_store import CAUSE_NAMES, GOOD, RowStore, can_read, embed_rows
from dinorankclip.data.samples import render_whole
from dinorankclip.io import digest, home
from dinorankclip.models.loaded import refuse_non_finite
from dinorankclip.types import ImageSpec, Source, UserError

FOLDER = home() / "embeddings"
VERSION = 2  # format version of the stored files
TEXTS_AT_ONCE = 512
IMAGES_AT_ONCE = 256
KINDS = {"embedding": "encode_image", "features": "image_features"}  # kind of row → method of a loaded model
TRIAL_CAPTION = "a photo of a cat, 2 dogs & a boat"
Encode = Callable[[Tensor], Tensor]
Tokenize = Callable[[Sequence[str]], Tensor]
Progress = Callable[[int, int], Any]  # gets the items that are done, and all items


@dataclass
class EmbeddedImages:
    """Holds rows of the usable images of a source, by kind; `indices` are their places in the source."""

    rows: dict[str, Tensor]  # kind → fp32 [n, D]
    indices: np.ndarray  # [n]
    damaged: list[tuple[str, str]]  # (key, cause) of the other images


def embed_images(
    encoders: Mapping[str, Encode],
    source: Source,
    image: ImageSpec,
    *,
    label: str = "",
    max_pixels: int = MAX_PIXELS,
    stores: Mapping[str, RowStore] | None = None,
    progress: Progress | None = None,
) -> EmbeddedImages:
    """Compute all kinds of rows in one pass over the images.

    `label` names the progress bar; without a label there is none. An image of more than `max_pixels` is damaged.
    `stores` hold the rows of each kind; by default they are held in memory, as on a disk that cannot be written.
    `progress` is called after every batch.
    """
    stores = dict(stores or {kind: RowStore(None, len(source)) for kind in encoders})
    missing = {kind: store.missing(partial(can_read, source)) for kind, store in stores.items()}
    blocks = sorted({block for of_kind in missing.values() for block in of_kind}, key=lambda block: block.start)
    total, done = sum(map(len, blocks)), 0
    with tqdm(total=total, desc=label, unit="image", disable=None if label and total else True, leave=False) as bar:

        def advance(count: int) -> None:
            nonlocal done
            done += count
            bar.update(count)
            if progress is not None:
                progress(done, total)

        for block in blocks:
            kinds = {kind: encode for kind, encode in encoders.items() if block in missing[kind]}
            rows, causes = embed_rows(
                kinds, source, block, image, batch=IMAGES_AT_ONCE, max_pixels=max_pixels, progress=advance
            )
            for kind in kinds:
                refuse_non_finite(torch.from_numpy(rows[kind]), kind)
                try:
                    stores[kind].write(block, rows[kind], causes)
                except OSError:
                    stores[kind] = stores[kind].in_memory()
                    stores[kind].write(block, rows[kind], causes)
    causes = stores[next(iter(encoders))].causes
    damaged = [(source.key(int(at)), CAUSE_NAMES[causes[at]]) for at in np.flatnonzero(causes != GOOD)]
    if len(damaged) == len(source):
        count = DamageCount()
        count.add(0, damaged)
        raise UserError(f"none of the {len(source)} images can be read:\n{count.summary()}")
    usable = np.flatnonzero(causes == GOOD)
    tables = {kind: stores[kind].rows() for kind in encoders}
    rows_of = {kind: torch.from_numpy(table[usable] if damaged else table) for kind, table in tables.items()}
    return EmbeddedImages(rows_of, usable, damaged)


def embed_texts(
    encode: Encode, tokenize: Tokenize, texts: Sequence[str], *, label: str = "", progress: Progress | None = None
) -> Tensor:
    """Return fp32 [T, D] in the order of `texts`. Captions of similar length share a batch, to pad them less."""
    if not texts:
        raise UserError("there is no caption to embed")
    by_length = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    parts = []
    with tqdm(total=len(texts), desc=label, unit="text", disable=None if label else True, leave=False) as bar:
        for start in range(0, len(texts), TEXTS_AT_ONCE):
            batch = by_length[start : start + TEXTS_AT_ONCE]
            parts.append(encode(tokenize([texts[i] for i in batch])).float().cpu())
            bar.update(len(batch))
            if progress is not None:
                progress(start + len(batch), len(texts))
    table = torch.cat(parts)[torch.tensor(by_length).argsort()]
    refuse_non_finite(table, "text")
    return table


class EmbeddingStore:
    """Stores rows of loaded models (`load_model`) over sources and texts; `folder=None` stores nothing."""

    def __init__(self, folder: Path | None = FOLDER) -> None:
        self.folder = folder

    def images(
        self,
        model: Any,
        source: Source,
        kinds: Sequence[str] = ("embedding",),
        label: str = "",
        max_pixels: int = MAX_PIXELS,
        progress: Progress | None = None,
    ) -> EmbeddedImages:
        """Return rows of every kind; missing rows are computed in one pass over the images."""
        keys = {kind: _image_key(model, source, kind, max_pixels) for kind in kinds}
        stores = {kind: self._store(key, len(source), model, kind) for kind, key in keys.items()}
        encoders = {kind: getattr(model, KINDS[kind]) for kind in kinds}
        return embed_images(
            encoders, source, model.image_spec, label=label, max_pixels=max_pixels, stores=stores, progress=progress
        )

    def stored_images(self, model: Any, source: Source, max_pixels: int = MAX_PIXELS) -> RowStore | None:
        """Return the stored embeddings of all images of a source; None if some are not stored."""
        key = _image_key(model, source, "embedding", max_pixels)
        store = self._store(key, len(source), model, "embedding")
        return None if store.missing() else store

    def texts(self, model: Any, texts: Sequence[str], label: str = "", progress: Progress | None = None) -> Tensor:
        """Return the rows of captions or prompts, fp32 [T, D]."""
        ids = model.tokenizer([TRIAL_CAPTION]).numpy().tobytes()
        key = digest("text", VERSION, model.identity, model.placement.precision, model.text_spec, ids, *texts)
        store = self._store(key, len(texts), model, "text")
        if texts and not store.missing():
            return torch.from_numpy(store.rows())
        rows = embed_texts(model.encode_text, model.tokenizer, texts, label=label, progress=progress)
        with suppress(OSError):  # scoring also works with a full or read-only disk
            store.write(range(len(texts)), rows.numpy(), np.full(len(texts), GOOD, np.int8))
        return rows

    def _store(self, key: str, count: int, model: Any, kind: str) -> RowStore:
        about = {"kind": kind, "rows": count, "model": model.name, "identity": model.identity}
        return RowStore(self.folder / key if self.folder is not None else None, count, about)


def _image_key(model: Any, source: Source, kind: str, max_pixels: int) -> str:
    shown: tuple[Any, ...] = (model.image_spec, _trial_picture(model.image_spec))
    shown += (max_pixels,) if max_pixels != MAX_PIXELS else ()  # the bound decides which images are damaged
    return digest("image", VERSION, model.identity, model.placement.precision, kind, source.fingerprint, *shown)


@lru_cache(maxsize=8)
def _trial_picture(spec: ImageSpec) -> bytes:
    """Preprocess a fixed picture: smooth waves of all colours, higher than wide."""
    rows, columns = np.mgrid[0:131, 0:97]
    waves = [np.sin(rows / (5 + 3 * c)) * np.cos(columns / (9 - 2 * c)) for c in range(3)]
    data = simplejpeg.encode_jpeg(np.ascontiguousarray((127.5 + 127 * np.stack(waves, -1)).astype(np.uint8)))
    return render_whole(decode(data), spec.size, spec.resize, spec.interpolation).numpy().tobytes()
