"""Names the files of a teacher cache on disk and decides whether a folder may be used.

    plan.json         teachers, data and coding: written first, the same on every resumption
    basis.safetensors PCA directions, if tokens are kept
    train-00000.bin   records of 2048 images, one after the other, all of the same size; written aside and renamed
    train.keys.npy    hash of the key of each record
    text-00000.bin    records of captions; text-00000.at.npy holds the offset of each
    text.keys.npy     hash of each caption
    manifest.json     the plan and the size of every file: written last, so that its presence means "complete"

feature_codecs.py says what a record holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dinorankclip.io import write_json
from dinorankclip.teachers.feature_codecs import Coding, Keep
from dinorankclip.types import UserError

FORMAT = 1
PLAN, MANIFEST, BASIS = "plan.json", "manifest.json", "basis.safetensors"
IMAGE_BASIS, TEXT_BASIS = "image", "text"  # tensors of BASIS
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
        plan = _read_json(folder / PLAN)
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
        stored = _read_json(path)
        if stored != plan:
            raise UserError(
                f"{folder} is a cache of something else: {'; '.join(differences(stored, plan))}. Use another --out."
            )
        return
    if folder.exists() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise UserError(f"{folder} is not empty and not a teacher cache; choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, plan)


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
    for leftover in folder.glob(".*"):
        with contextlib.suppress(FileNotFoundError):  # its process has just renamed it
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
    """Read the manifest of a complete cache after checking the presence and size of all its files."""
    if not (folder / PLAN).is_file():
        raise UserError(f"{folder} is no teacher cache; make one: dinorankclip teacher cache --out {folder} …")
    if not (folder / MANIFEST).is_file():
        raise UserError(f"{folder} is not complete: run the command that began it again, it goes on where it stopped")
    manifest = _read_json(folder / MANIFEST)
    if manifest["plan"].get("format") != FORMAT:
        raise UserError(f"{folder} has format {manifest['plan'].get('format')}; this version reads format {FORMAT}")
    for name, size in manifest["files"].items():
        actual = (folder / name).stat().st_size if (folder / name).is_file() else None
        if actual != size:
            problem = "is missing" if actual is None else f"has {actual} bytes instead of {size}"
            raise UserError(
                f"{folder} is damaged: {name} {problem}. Delete that file and {MANIFEST}, and run the command that "
                "made the cache again: it makes what is missing."
            )
    return manifest


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error
