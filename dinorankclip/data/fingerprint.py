"""What data holds, as a short name: a fingerprint of all bytes.

A source's own fingerprint knows names and sizes, which is enough to resume a run. Kept embeddings must notice an image
that was replaced by another of the same size, so here every byte counts. That of a shard is remembered until it is
written again; other sources are read through, which takes a fraction of the time of embedding them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from dinorankclip import io
from dinorankclip.data.damage import Damage
from dinorankclip.data.splits import Part
from dinorankclip.data.tar_shards import ShardSource, file_stamp
from dinorankclip.io import digest
from dinorankclip.types import Source

_PIECE = 1 << 22
_WORTH_A_BAR = 1 << 30  # bytes; less than this takes a second or two


def source_digest(source: Source) -> str:
    """A name for all that a source of pairs holds."""
    if isinstance(source, ShardSource):
        return content_digest(source.shards)
    if isinstance(source, Part) and isinstance(source.source, ShardSource):
        return digest("part", content_digest(source.source.shards), source.indices.tobytes())
    summary = hashlib.blake2b(digest_size=16)
    for index in tqdm(range(len(source)), "fingerprint", unit="image", leave=False, disable=None):
        try:
            raw = source.read(index)
            pieces = [raw.key.encode("utf-8", "surrogateescape"), raw.image, "\n".join(raw.captions).encode()]
        except Damage as damage:
            pieces = [source.key(index).encode("utf-8", "surrogateescape"), damage.cause.encode()]
        for piece in pieces:
            summary.update(len(piece).to_bytes(8, "little") + piece)
    return digest("samples", summary.hexdigest())


def content_digest(paths: Sequence[Path]) -> str:
    """A name for the bytes of these files, in their order; their paths do not matter."""
    unknown = sum(path.stat().st_size for path in paths if io.load_table(_name(path)) is None)
    shown = tqdm(paths, "fingerprint", unit="file", leave=False, disable=None if unknown > _WORTH_A_BAR else True)
    return digest("contents", *(_digest_of(path) for path in shown))


def _digest_of(path: Path) -> str:
    name = _name(path)
    known = io.load_table(name)
    if known is not None:
        return str(known["digest"])
    summary = hashlib.blake2b(digest_size=16)
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            summary.update(piece)
    io.save_table(name, {"digest": np.array(summary.hexdigest())})
    return summary.hexdigest()


def _name(path: Path) -> str:
    return file_stamp(path, "contents")
