"""Run a model once over images and captions. One path for scores taken during training and for the suite.

`embed_images` and `embed_texts` compute; `EmbeddingStore` keeps what they computed under a key that holds the model's
weights, the data's bytes and the preprocessing, so nothing is ever stale and nothing is computed twice.

Shapes: N images, T texts, D width of a kind of row, S image side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from dinorankclip.data.damage import DamageCount
from dinorankclip.data.evaluation import iterate_pairs
from dinorankclip.data.images import MAX_PIXELS
from dinorankclip.joint.finite_rows import refuse_non_finite
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


