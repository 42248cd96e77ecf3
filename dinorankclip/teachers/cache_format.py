"""Features ↔ bytes. A cache of millions of images is worth every byte, and every bit that is dropped is measured.

    8bit   blocks of numbers, each with an offset and a step of its own (fp16): entries cost one byte
    fp16   half precision
    fp32   nothing is lost: for tests, and for measuring what the others lose

A token Gram V·Vᵀ is coded as the tokens' lengths and the cosines above the diagonal. Lengths differ by a factor of ten
within an image, and a long token's row would spend the steps of all others; cosines share one range. Errors are then
relative to each token's own length, which is what counts after normalisation.

Shapes: N items, K numbers of each, L tokens.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dinorankclip.io import write_json
from dinorankclip.types import UserError

Coding = Literal["8bit", "fp16", "fp32"]
BLOCK = 64  # features: channels differ in size
COSINE_BLOCK = 256  # cosines are alike: fewer offsets and steps
_LEVELS = 255


class NumberCodec:
    """K numbers an item: float [N, K] ↔ uint8 [N, `bytes`]."""

    def __init__(self, count: int, coding: Coding, block: int = BLOCK) -> None:
        self.count, self.coding, self.block = count, coding, block
        self.blocks = -(-count // block)
        self.bytes = {"8bit": count + 4 * self.blocks, "fp16": 2 * count, "fp32": 4 * count}[coding]

    def encode(self, values: np.ndarray) -> np.ndarray:
        values = np.ascontiguousarray(values, dtype=np.float32)
        if self.coding == "fp32":
            return values.view(np.uint8).reshape(len(values), -1)
        if self.coding == "fp16":
            return _half(values).view(np.uint8).reshape(len(values), -1)
        padded = np.pad(values, ((0, 0), (0, self.blocks * self.block - self.count)), mode="edge")
        parts = padded.reshape(len(values), self.blocks, self.block)
        low = _half_not_above(parts.min(-1)) if self.count else np.empty((len(values), 0), np.float16)
        reach = parts.max(-1) - low if self.count else np.empty((len(values), 0), np.float32)
        step = -_half_not_above(-reach / _LEVELS)  # not below, so that the last level reaches the largest value
        divisor = np.where(step > 0, step, 1).astype(np.float32)[..., None]
        codes = np.rint((parts - low.astype(np.float32)[..., None]) / divisor).clip(0, _LEVELS).astype(np.uint8)
        codes = codes.reshape(len(values), -1)[:, : self.count]
        scales = np.concatenate([low, step], 1).view(np.uint8).reshape(len(values), -1)
        return np.concatenate([scales, codes], 1)

    def decode(self, raw: np.ndarray) -> np.ndarray:
        """uint8 [N, `bytes`] → float32 [N, K]."""
        raw = np.ascontiguousarray(raw)
        if self.coding == "fp32":
            return raw.view(np.float32).reshape(len(raw), self.count).copy()  # the file's own bytes are read-only
        if self.coding == "fp16":
            return raw.view(np.float16).reshape(len(raw), self.count).astype(np.float32)
        scales = np.ascontiguousarray(raw[:, : 4 * self.blocks]).view(np.float16).astype(np.float32)
        low, step = np.split(scales.reshape(len(raw), 2 * self.blocks), 2, axis=1)
        values = raw[:, 4 * self.blocks :].astype(np.float32)
        whole = self.count // self.block * self.block
        for part, where in ((values[:, :whole], slice(0, whole)), (values[:, whole:], slice(whole, self.count))):
            if part.size:  # whole blocks as one array, without a copy; then what is left over
                own = slice(where.start // self.block, -(-where.stop // self.block))
                shaped = part.reshape(len(raw), -1, min(self.block, part.shape[1]))
                values[:, where] = (shaped * step[:, own, None] + low[:, own, None]).reshape(len(raw), -1)
        return values


class Gram:
    """The unnormalised Gram of L tokens: float [N, L, L] ↔ uint8 [N, `bytes`]."""

    def __init__(self, tokens: int, coding: Coding) -> None:
        self.tokens = tokens
        self._lengths = NumberCodec(tokens, "fp32" if coding == "fp32" else "fp16")
        self._cosines = NumberCodec(tokens * (tokens - 1) // 2, coding, COSINE_BLOCK)
        self.bytes = self._lengths.bytes + self._cosines.bytes
        self._above = np.triu_indices(tokens, 1)
        # Where entry (i, j) of the whole matrix stands among the cosines; the diagonal takes the 1 put behind them.
        self._place = np.full((tokens, tokens), len(self._above[0]), np.int64)
        self._place[self._above] = self._place.T[self._above] = np.arange(len(self._above[0]))

    def encode(self, tokens: np.ndarray) -> np.ndarray:
        """From the tokens themselves, float [N, L, C]."""
        tokens = np.asarray(tokens, np.float32)
        lengths = np.linalg.norm(tokens, axis=-1)
        unit = tokens / np.where(lengths > 0, lengths, 1)[..., None]
        cosines = unit @ unit.transpose(0, 2, 1)
        return np.concatenate(
            [self._lengths.encode(lengths), self._cosines.encode(cosines[:, self._above[0], self._above[1]])], 1
        )

    def parts(self, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """uint8 [N, `bytes`] → lengths [N, L] and cosines [N, L, L]: G_ij = length_i · length_j · cosine_ij."""
        lengths = self._lengths.decode(raw[:, : self._lengths.bytes])
        cosines = self._cosines.decode(raw[:, self._lengths.bytes :])
        cosines = np.concatenate([cosines, np.ones((len(raw), 1), np.float32)], 1)
        return lengths, cosines.take(self._place, axis=1)

    def decode(self, raw: np.ndarray) -> np.ndarray:
        """uint8 [N, `bytes`] → float32 [N, L, L]."""
        lengths, gram = self.parts(raw)
        gram *= lengths[:, :, None]
        gram *= lengths[:, None, :]
        return gram


def _half(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if not np.isfinite(half).all():
        raise ValueError("features beyond ±65504 or not finite cannot be kept in half precision")
    return half


def _half_not_above(values: np.ndarray) -> np.ndarray:
    half = _half(values)
    return np.where(half.astype(np.float32) > values, np.nextafter(half, np.float16(-np.inf)), half)


# -------- layout
# How a teacher cache lies on disk, and when it may be used.
#
#     plan.json         whose features of which data, in which coding: written first, the same on every resumption
#     basis.safetensors PCA directions, if tokens are kept
#     train-00000.bin   records of 2048 images, one after the other, all of the same size; written aside and renamed
#     train.keys.npy    hash of the key of each record
#     text-00000.bin    records of captions, with text-00000.at.npy: where each begins
#     text.keys.npy     hash of each caption
#     manifest.json     the plan and the size of every file: written last, so that its presence says "complete"
#
# A record of an image: one byte (1: good, 0: the image was damaged), then what is kept: Gram, tokens, summary.

FORMAT = 1
PLAN, MANIFEST, BASIS = "plan.json", "manifest.json", "basis.safetensors"
ROWS = 2048  # records of a file: what a kill costs at most
CAPTIONS = 2048
TEXT = "text"
STALE_AFTER = 3600  # seconds without a change: what a process was writing then is not being written any more
Keep = Literal["gram", "tokens", "both"]

# What a differing entry of two plans means to the user.
_MEANING = {
    "data": "the data",
    "teacher": "the teacher",
    "weights": "the teacher's weights",
    "preprocessing": "the teacher's preprocessing",
    "text": "the text teacher",
    "max_pixels": "--reading.max-pixels",
}


@dataclass(frozen=True)
class CacheLayout:
    """What is kept of each image and caption, in how many bits, and how many to a file."""

    keep: Keep = "gram"
    coding: Coding = "8bit"
    rows: int = ROWS
    captions: int = CAPTIONS


class ImageRecord:
    """Where the parts of an image's record lie."""

    def __init__(self, tokens: int, summary: int, reduced: int, keep: Keep, coding: Coding) -> None:
        self.coders: dict[str, Gram | NumberCodec] = {}
        if keep in ("gram", "both"):
            self.coders["gram"] = Gram(tokens, coding)
        if keep in ("tokens", "both"):
            self.coders["tokens"] = NumberCodec(tokens * reduced, coding)
        self.coders["summary"] = NumberCodec(summary, coding)
        self._start: dict[str, int] = {}
        self.bytes = 1
        for name, coder in self.coders.items():
            self._start[name] = self.bytes
            self.bytes += coder.bytes

    def encode(self, **values: np.ndarray) -> np.ndarray:
        """Each part as its coder wants it → uint8 [N, `bytes`]."""
        coded = [coder.encode(values[name]) for name, coder in self.coders.items()]
        return np.concatenate([np.ones((len(coded[0]), 1), np.uint8), *coded], 1)

    def bytes_of(self, name: str, raw: np.ndarray) -> np.ndarray:
        return raw[:, self._start[name] : self._start[name] + self.coders[name].bytes]

    def decode(self, name: str, raw: np.ndarray) -> np.ndarray:
        """uint8 [N, `bytes`] → that part of each record."""
        return self.coders[name].decode(self.bytes_of(name, raw))


def image_record(plan: dict[str, Any]) -> ImageRecord:
    height, width = plan["grid"]
    return ImageRecord(height * width, plan["summary_width"], plan["reduced"], plan["keep"], plan["coding"])


def shard_name(part: str, number: int) -> str:
    return f"{part}-{number:05d}.bin"


def offsets_name(number: int) -> str:
    return f"{TEXT}-{number:05d}.at.npy"


def keys_name(part: str) -> str:
    return f"{part}.keys.npy"


def shard_count(rows: int, rows_per_shard: int) -> int:
    return -(-rows // rows_per_shard)


def hashes(names: Iterable[str]) -> np.ndarray:
    """uint64 of each name. Among ten million names, two share one with a chance of 3 in a million."""
    digest = b"".join(
        hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest() for name in names
    )
    return np.frombuffer(digest, np.uint64)


def claim(folder: Path, plan: dict[str, Any]) -> None:
    """Take the folder for this plan: a new one, or one that was begun with the same."""
    stored = folder / PLAN
    if stored.exists():
        found = _read_json(stored)
        if found != plan:
            raise UserError(
                f"{folder} is a cache of something else: {'; '.join(differences(found, plan))}. Use another --out."
            )
        return
    if folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise UserError(f"{folder} is not empty and not a teacher cache; choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(stored, plan)


def as_begun(folder: Path, keeping: CacheLayout) -> CacheLayout:
    """How many records go into a file is settled by whoever began the folder: caches of other sizes stay valid."""
    stored = folder / PLAN
    if not stored.is_file():
        return keeping
    found = _read_json(stored)
    return replace(keeping, rows=found.get("rows", keeping.rows), captions=found.get("captions", keeping.captions))


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """`the teacher: a → b` for each entry that differs."""
    names = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    return [f"{_MEANING.get(name, name)}: {_short(old.get(name))} → {_short(new.get(name))}" for name in names]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "…"


def finish(folder: Path, plan: dict[str, Any], damaged: int, licences: dict[str, str]) -> dict[str, Any]:
    """Write the manifest: the cache is complete. What killed processes left half-written goes; what was written to
    lately may belong to a process that lives.

    `licences` of the teachers ("image", "text") are for the card of a model that learnt from the cache.
    """
    for leftover in folder.glob(".*"):
        with contextlib.suppress(FileNotFoundError):  # its process has just given it its name
            if leftover.is_file() and time.time() - leftover.stat().st_mtime > STALE_AFTER:
                leftover.unlink()
    files = {
        path.name: path.stat().st_size
        for path in sorted(folder.iterdir())
        if path.name not in (PLAN, MANIFEST) and not path.name.startswith(".")
    }
    manifest = {"plan": plan, "files": files, "damaged": damaged, "licences": licences}
    write_json(folder / MANIFEST, manifest)
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a complete cache whose files are all there, with all their bytes."""
    if not (folder / PLAN).is_file():
        raise UserError(f"{folder} is no teacher cache; make one: dinorankclip teacher cache --out {folder} …")
    if not (folder / MANIFEST).is_file():
        raise UserError(f"{folder} is not complete: run the command that began it again, it goes on where it stopped")
    manifest = _read_json(folder / MANIFEST)
    if manifest["plan"].get("format") != FORMAT:
        raise UserError(f"{folder} has format {manifest['plan'].get('format')}; this version reads format {FORMAT}")
    for name, size in manifest["files"].items():
        there = (folder / name).stat().st_size if (folder / name).is_file() else None
        if there != size:
            what = "is missing" if there is None else f"has {there} bytes instead of {size}"
            raise UserError(
                f"{folder} is damaged: {name} {what}. Delete that file and {MANIFEST}, and run the command that made "
                "the cache again: it makes what is missing."
            )
    return manifest


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error


# -------- reduction
# PCA of teacher tokens: the 256 directions that keep most of their energy.
#
# Uncentred: a mean would have to be added back before cosines mean anything, and the cropped, flipped and
# averaged tokens of a view are then plain linear functions of what is stored.

REDUCED = 256


def fit_basis(batches: Iterable[Tensor], most: int = REDUCED) -> Tensor:
    """Tokens [n, C], batch by batch → orthonormal rows [min(most, C), C], the strongest direction first."""
    moment: Tensor | None = None
    for tokens in batches:
        tokens = tokens.double()
        product = tokens.T @ tokens
        moment = product if moment is None else moment + product
    if moment is None:
        raise ValueError("no tokens to fit a basis to")
    basis = torch.linalg.eigh(moment).eigenvectors.T.flip(0)[:most]
    # The sign of a direction is arbitrary: make its largest entry positive, so that a basis is reproducible.
    largest = basis.gather(1, basis.abs().argmax(1, keepdim=True))
    return (basis * largest.sign()).float().contiguous()
