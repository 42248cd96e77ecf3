"""Defines the format of a teacher cache (its files and the records in them) and checks that a folder may be used.

plan.json         teachers, data and coding: written first, the same on every resumption
basis.safetensors PCA directions, if the cache holds tokens
train-00000.bin   records of 2048 images, one after the other, all of the same size; written aside and renamed
train.keys.npy    hash of the key of each record
text-00000.bin    records of captions; text-00000.at.npy holds the offset of each
text.keys.npy     hash of each caption
manifest.json     the plan, the size and the SHA-256 of every file: written last, so that its presence means "complete"
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dinorankclip import json_shape
from dinorankclip.checksums import DamagedFile, file_hash, read_sealed, sealed
from dinorankclip.io import remove_left_files, write_json
from dinorankclip.json_shape import NONE, OBJECT, WHOLE, either, entries, fault, listed, named, whole, word
from dinorankclip.types import UserError

Coding = Literal["8bit", "fp16", "fp32"]
Keep = Literal["gram", "tokens", "both"]
FORMAT = 1
PLAN, MANIFEST, BASIS = "plan.json", "manifest.json", "basis.safetensors"
HASHES = "hashes"  # entry of the manifest: SHA-256 by name of a file
LARGE = (".bin", ".at.npy")  # ends of the names of files that are checked on first use
MAKE_AGAIN = "Delete {}, and run the command that made the cache again: it makes what is missing."
IMAGE_BASIS, TEXT_BASIS = "image", "text"  # names of the tensors in BASIS
TEXT = "text"
REDUCED = 256  # PCA directions of tokens
STALE_AFTER = 3600  # seconds without a change after which a half-written file belongs to a killed process

# Words for entries of a plan, for messages about differences.
_ENTRIES = {
    "data": "the data",
    "teacher": "the teacher",
    "weights": "the teacher's weights",
    "preprocessing": "the teacher's preprocessing",
    "text": "the text teacher",
    "max_pixels": "--reading.max-pixels",
}


_SIZE = whole(1, 1 << 24)
_PLAN = entries(
    {
        "format": WHOLE,
        "teacher": json_shape.TEXT,
        "note": json_shape.TEXT,
        "grid": listed(_SIZE, 2, 2),
        **dict.fromkeys(("width", "summary_width", "reduced", "rows", "captions"), _SIZE),
        "keep": word("gram", "tokens", "both"),
        "coding": word("8bit", "fp16", "fp32"),
        "data": named(entries({"fingerprint": json_shape.TEXT, "images": WHOLE}, required=("fingerprint",))),
        "text": either(
            entries(
                {"teacher": json_shape.TEXT, "note": json_shape.TEXT, "summary_width": _SIZE, "reduced": _SIZE},
                required=("teacher", "summary_width", "reduced"),
            ),
            NONE,
        ),
    },
    required=("teacher", "grid", "width", "summary_width", "reduced", "keep", "coding", "rows", "data", "text"),
)
_TEACHER = {"teacher": json_shape.TEXT, "note": json_shape.TEXT}
_NOTES = entries(
    {
        **_TEACHER,
        "text": either(entries(_TEACHER, required=("teacher",)), NONE),
        "data": named(entries({"images": WHOLE})),
    },
    required=("teacher",),
)
_MANIFEST = entries(
    {"plan": entries({"format": WHOLE}, required=("format",)), "files": named(WHOLE), "licences": OBJECT},
    required=("plan", "files"),
)


@dataclass(frozen=True)
class CacheLayout:
    """Parts that a cache keeps of each image and caption, their coding, and the number of records a file."""

    keep: Keep = "gram"
    coding: Coding = "8bit"
    rows: int = 2048  # a killed process loses one file at most
    captions: int = 2048

    def as_begun(self, folder: Path) -> CacheLayout:
        """Return the layout with the numbers of records that the folder was begun with, so that old caches go on."""
        if not (folder / PLAN).is_file():
            return self
        plan = read_plan(folder)
        return replace(self, rows=plan.get("rows", self.rows), captions=plan.get("captions", self.captions))


def shard_name(part: str, number: int) -> str:
    return f"{part}-{number:05d}.bin"


def offsets_name(number: int) -> str:
    return f"{TEXT}-{number:05d}.at.npy"


def keys_name(part: str) -> str:
    return f"{part}.keys.npy"


def shard_count(rows: int, rows_per_shard: int) -> int:
    return -(-rows // rows_per_shard)


def hashes(names: Iterable[str]) -> np.ndarray:
    """Return a uint64 for each name. Among ten million names, two share a hash with a chance of 3 in a million."""
    digest = b"".join(
        hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest() for name in names
    )
    return np.frombuffer(digest, np.uint64)


def claim(folder: Path, plan: dict[str, Any]) -> None:
    """Reserve the folder for this plan: it must be new or begun with the same plan."""
    path = folder / PLAN
    if path.exists():
        stored = read_plan(folder)
        if stored != plan:
            raise UserError(
                f"{folder} is a cache of something else: {'; '.join(differences(stored, plan))}. Use another --out."
            )
        return
    if folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise UserError(f"{folder} is not empty and not a teacher cache; choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, sealed(plan))


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return "the teacher: a → b" for each entry that differs."""
    names = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    return [f"{_ENTRIES.get(name, name)}: {_short(old.get(name))} → {_short(new.get(name))}" for name in names]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "…"


def finish(folder: Path, plan: dict[str, Any], damaged: int, licences: dict[str, str]) -> dict[str, Any]:
    """Write the manifest, which makes the cache complete, and delete half-written files of killed processes.

    A hidden file that changed lately may belong to a living process and stays. Model cards print the `licences` of
    the teachers ("image", "text").
    """
    remove_left_files(folder)
    for leftover in folder.glob(".*"):
        with contextlib.suppress(FileNotFoundError):  # its process has just renamed it
            if leftover.is_file() and time.time() - leftover.stat().st_mtime > STALE_AFTER:
                leftover.unlink()
    files = {
        path.name: path.stat().st_size
        for path in sorted(folder.iterdir())
        if path.name not in (PLAN, MANIFEST) and not path.name.startswith(".")
    }
    hashed = {name: file_hash(folder / name) for name in (PLAN, *files)}
    manifest = {"plan": plan, "files": files, HASHES: hashed, "damaged": damaged, "licences": licences}
    write_json(folder / MANIFEST, sealed(manifest))
    return manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a complete cache after checking the presence and size of all its files, and the bytes of its
    small files. Readers check the bytes of a large file before they use it (`demand_as_written`)."""
    if not (folder / PLAN).is_file():
        raise UserError(f"{folder} is no teacher cache; make one: dinorankclip teacher cache --out {folder} …")
    if not (folder / MANIFEST).is_file():
        raise UserError(f"{folder} is not complete: run the command that began it again, it goes on where it stopped")
    manifest = read_sealed(folder / MANIFEST, _MANIFEST, advice=MAKE_AGAIN.format("it"))
    if manifest["plan"].get("format") != FORMAT:
        raise UserError(f"{folder} has format {manifest['plan'].get('format')}; this version reads format {FORMAT}")
    if text := fault(manifest["plan"], _PLAN):
        raise UserError(f"{folder / MANIFEST} is damaged: plan: {text}; make the cache again")
    for name, size in manifest["files"].items():
        actual = (folder / name).stat().st_size if (folder / name).is_file() else None
        if actual != size:
            problem = "is missing" if actual is None else f"has {actual} bytes instead of {size}"
            raise UserError(f"{folder} is damaged: {name} {problem}. {MAKE_AGAIN.format(_both(name))}")
    for name in manifest.get(HASHES, {}):
        if not name.endswith(LARGE):
            demand_as_written(folder, manifest, name)
    return manifest


def demand_as_written(folder: Path, manifest: dict[str, Any], name: str) -> None:
    """Refuse a file of a cache whose bytes are not those that were written. Old caches have no hashes."""
    expected = manifest.get(HASHES, {}).get(name)
    if expected is not None and file_hash(folder / name) != expected:
        raise DamagedFile(
            f"{folder / name} is damaged: its bytes are not those that were written. {MAKE_AGAIN.format(_both(name))}"
        )


def _both(name: str) -> str:
    return f"{name} and {MANIFEST}"


def read_plan_notes(folder: Path) -> dict[str, Any]:
    """Read plan.json for what it says of teachers and data alone, as cards and comparisons of costs show it."""
    return read_sealed(folder / PLAN, _NOTES)


def read_plan(folder: Path) -> dict[str, Any]:
    """Read plan.json of a cache that is complete or not."""
    return read_sealed(folder / PLAN, _PLAN)


# --- records: features as bytes
#
# A cache of millions of images must be small. Three codings trade size for precision:
#     8bit   blocks of numbers, each with an fp16 offset and step of its own: a byte a number
#     fp16   half precision
#     fp32   without loss: for tests, and for measuring what the others lose
# Shapes: N items, K numbers of each, L tokens, W words.

BLOCK = 64  # numbers in a block of features, whose channels differ in size
COSINE_BLOCK = 256  # numbers in a block of cosines, which are alike and need fewer offsets and steps
_LEVELS = 255


class NumberCodec:
    """Codes K numbers an item: float [N, K] ↔ uint8 [N, `bytes`]."""

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
        """Convert uint8 [N, `bytes`] to float32 [N, K]."""
        raw = np.ascontiguousarray(raw)
        if self.coding == "fp32":
            return raw.view(np.float32).reshape(len(raw), self.count).copy()  # the bytes of the file are read-only
        if self.coding == "fp16":
            return raw.view(np.float16).reshape(len(raw), self.count).astype(np.float32)
        scales = np.ascontiguousarray(raw[:, : 4 * self.blocks]).view(np.float16).astype(np.float32)
        low, step = np.split(scales.reshape(len(raw), 2 * self.blocks), 2, axis=1)
        values = raw[:, 4 * self.blocks :].astype(np.float32)
        whole = self.count // self.block * self.block
        for part, where in ((values[:, :whole], slice(0, whole)), (values[:, whole:], slice(whole, self.count))):
            if part.size:  # whole blocks as one array, without a copy; then the incomplete block
                own = slice(where.start // self.block, -(-where.stop // self.block))
                shaped = part.reshape(len(raw), -1, min(self.block, part.shape[1]))
                values[:, where] = (shaped * step[:, own, None] + low[:, own, None]).reshape(len(raw), -1)
        return values


class GramCodec:
    """Codes the unnormalised Gram V·Vᵀ of L tokens, float [N, L, L] ↔ uint8 [N, `bytes`], as lengths and cosines.

    Lengths differ by a factor of ten within an image, so a long token would take the steps of all others; cosines share
    one range. Errors are then relative to the length of each token, which is what counts after normalisation.
    """

    def __init__(self, tokens: int, coding: Coding) -> None:
        self._lengths = NumberCodec(tokens, "fp32" if coding == "fp32" else "fp16")
        self._cosines = NumberCodec(tokens * (tokens - 1) // 2, coding, COSINE_BLOCK)
        self.bytes = self._lengths.bytes + self._cosines.bytes
        self._above = np.triu_indices(tokens, 1)
        # Place of entry (i, j) of the matrix among the cosines; the diagonal takes the 1 put behind them.
        self._place = np.full((tokens, tokens), len(self._above[0]), np.int64)
        self._place[self._above] = self._place.T[self._above] = np.arange(len(self._above[0]))

    def encode(self, tokens: np.ndarray) -> np.ndarray:
        """Code the Gram of tokens, float [N, L, C]."""
        tokens = np.asarray(tokens, np.float32)
        lengths = np.linalg.norm(tokens, axis=-1)
        unit = tokens / np.where(lengths > 0, lengths, 1)[..., None]
        cosines = (unit @ unit.transpose(0, 2, 1))[:, self._above[0], self._above[1]]
        return np.concatenate([self._lengths.encode(lengths), self._cosines.encode(cosines)], 1)

    def parts(self, raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Convert uint8 [N, `bytes`] to lengths [N, L] and cosines [N, L, L]: G_ij = length_i·length_j·cosine_ij."""
        lengths = self._lengths.decode(raw[:, : self._lengths.bytes])
        cosines = self._cosines.decode(raw[:, self._lengths.bytes :])
        cosines = np.concatenate([cosines, np.ones((len(raw), 1), np.float32)], 1)
        return lengths, cosines.take(self._place, axis=1)

    def decode(self, raw: np.ndarray) -> np.ndarray:
        """Convert uint8 [N, `bytes`] to float32 [N, L, L]."""
        lengths, gram = self.parts(raw)
        gram *= lengths[:, :, None]
        gram *= lengths[:, None, :]
        return gram


class ImageRecord:
    """Codes an image's record: a byte (1: good, 0: damaged), then Gram, tokens and summary if the layout keeps them."""

    def __init__(self, tokens: int, summary: int, reduced: int, keep: Keep, coding: Coding) -> None:
        self.codecs = _token_codecs(tokens, reduced, keep, coding) | {"summary": NumberCodec(summary, coding)}
        self._start: dict[str, int] = {}
        self.bytes = 1
        for name, codec in self.codecs.items():
            self._start[name] = self.bytes
            self.bytes += codec.bytes

    def encode(self, **values: np.ndarray) -> np.ndarray:
        """Code the parts, each as its codec takes it, to uint8 [N, `bytes`]."""
        coded = [codec.encode(values[name]) for name, codec in self.codecs.items()]
        return np.concatenate([np.ones((len(coded[0]), 1), np.uint8), *coded], 1)

    def bytes_of(self, name: str, raw: np.ndarray) -> np.ndarray:
        return raw[:, self._start[name] : self._start[name] + self.codecs[name].bytes]

    def decode(self, name: str, raw: np.ndarray) -> np.ndarray:
        """Decode the part `name` of each record, uint8 [N, `bytes`]."""
        return self.codecs[name].decode(self.bytes_of(name, raw))


class TextRecord:
    """Codes a caption's record: its count of words (uint16), then summary, Gram and tokens if the layout keeps them.

    Captions differ in length, so records do too. A word without a token (cut off by the teacher) has length zero.
    """

    def __init__(self, summary: int, reduced: int, keep: Keep, coding: Coding) -> None:
        self._summary = NumberCodec(summary, coding)
        self._reduced, self._keep, self._coding = reduced, keep, coding
        self._codecs_by_words: dict[int, dict[str, GramCodec | NumberCodec]] = {}

    def _codecs(self, words: int) -> dict[str, GramCodec | NumberCodec]:
        if words not in self._codecs_by_words:
            codecs = _token_codecs(words, self._reduced, self._keep, self._coding)
            self._codecs_by_words[words] = {"summary": self._summary, **codecs}
        return self._codecs_by_words[words]

    def encode(self, words: np.ndarray, reduced: np.ndarray | None, summary: np.ndarray) -> list[bytes]:
        """Code N captions of W words: tokens [N, W, C], after PCA [N, W, K] if tokens are stored, summaries [N, C']."""
        values = {"summary": summary, "gram": words}
        if reduced is not None:
            values["tokens"] = reduced.reshape(len(words), -1)
        codecs = self._codecs(words.shape[1]).items()
        coded = np.concatenate([codec.encode(values[name]) for name, codec in codecs], axis=1)
        head = np.uint16(words.shape[1]).tobytes()
        return [head + row.tobytes() for row in coded]

    def decode(self, raw: np.ndarray, names: Container[str]) -> dict[str, np.ndarray]:
        """Decode the named parts that the layout keeps: `summary` [C'], `gram` [W, W], `tokens` [W, K]."""
        words = int(raw[:2].view(np.uint16)[0])
        values, at = {}, 2
        for name, codec in self._codecs(words).items():
            if name in names:
                value = codec.decode(raw[None, at : at + codec.bytes])[0]
                values[name] = value.reshape(words, self._reduced) if name == "tokens" else value
            at += codec.bytes
        return values


def image_record(plan: dict[str, Any]) -> ImageRecord:
    height, width = plan["grid"]
    return ImageRecord(height * width, plan["summary_width"], plan["reduced"], plan["keep"], plan["coding"])


def text_record(plan: dict[str, Any]) -> TextRecord:
    text = plan["text"]
    return TextRecord(text["summary_width"], text["reduced"], plan["keep"], plan["coding"])


def _token_codecs(tokens: int, reduced: int, keep: Keep, coding: Coding) -> dict[str, GramCodec | NumberCodec]:
    codecs: dict[str, GramCodec | NumberCodec] = {}
    if keep in ("gram", "both"):
        codecs["gram"] = GramCodec(tokens, coding)
    if keep in ("tokens", "both"):
        codecs["tokens"] = NumberCodec(tokens * reduced, coding)
    return codecs


def _half(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if not np.isfinite(half).all():
        raise ValueError("features beyond ±65504 or not finite cannot be stored in half precision")
    return half


def _half_not_above(values: np.ndarray) -> np.ndarray:
    half = _half(values)
    return np.where(half.astype(np.float32) > values, np.nextafter(half, np.float16(-np.inf)), half)
