"""The cache of a whole data set: from what a user types (data, teachers) to a finished folder."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from dinorankclip import distributed
from dinorankclip.config import FindingSettings
from dinorankclip.data.damage import Damage
from dinorankclip.data.decode import MAX_PIXELS
from dinorankclip.data.open_data import open_stored, splits_of
from dinorankclip.data.splits import whole
from dinorankclip.io import digest
from dinorankclip.teachers import cache_format
from dinorankclip.teachers.cache_build import HELD_OUT, make_cache
from dinorankclip.teachers.cache_format import CacheLayout
from dinorankclip.teachers.registry import open_teacher, open_text_teacher
from dinorankclip.types import Source, UserError

AUTOMATIC = Path("built/teacher")
SAMPLED = 500  # images whose captions are counted
SAMPLES, SAMPLE_BYTES = 64, 4096  # images of a table, or pieces of a file of weights, that are looked at
# How many records go into a file does not tell caches apart. These counts stand in every name, as in the first ones.
_NAMED_ROWS, _NAMED_CAPTIONS = 2048, 16384


@dataclass(frozen=True)
class CacheSpec:
    """What a cache is to be made of. `split`: parts of the data; all there are if empty."""

    data: str
    teacher: str
    input_size: int | None = None
    text_teacher: str | None = None
    keeping: CacheLayout = field(default_factory=CacheLayout)
    split: tuple[str, ...] = ()

    @property
    def keeps_tokens(self) -> bool:
        return self.keeping.keep != "gram"

    def __str__(self) -> str:
        size = f" at {self.input_size} px" if self.input_size else ""
        text = f" and {self.text_teacher}" if self.text_teacher else ""
        return f"{self.teacher}{size}{text}" + (", with tokens" if self.keeps_tokens else "")


def cache_of_data(out: str | Path, wish: CacheSpec, reading: FindingSettings, device: torch.device) -> dict[str, Any]:
    """Make (or finish) the cache. All processes call; returns the manifest."""
    parts = undivided_parts(wish, reading)
    frozen = open_teacher(wish.teacher, wish.input_size).to(device)
    reader = open_text_teacher(wish.text_teacher).to(device) if wish.text_teacher else None
    if distributed.world().leads and frozen.card.note:
        print(f"{frozen.name}: {frozen.card.note}")
    return make_cache(out, parts, frozen, reader, wish.keeping, reading.max_pixels)


def undivided_parts(wish: CacheSpec, reading: FindingSettings) -> dict[str, Source]:
    """Part → source. A validation part carved from the data belongs to the same cache as the rest."""
    if wish.data.startswith("pipe:"):
        raise UserError("a cache is made of data that can be read in any order; pipe: shards cannot. Store them first.")
    parts = wish.split or splits_of(wish.data, reading)
    opened = {part: open_stored(wish.data, reading, part) for part in parts}
    return {part: whole(source) for part, source in opened.items()}


def amount(wish: CacheSpec, reading: FindingSettings) -> tuple[int, int]:
    """Images, and about how many captions, a cache of this wish has to read: some of the images tell of the others."""
    images = captions = 0
    for part, source in undivided_parts(wish, reading).items():
        images += len(source)
        if wish.text_teacher:
            captions += len(source) if part in HELD_OUT else round(len(source) * _captions_an_image(source))
    return images, captions


def _captions_an_image(source: Source) -> float:
    asked = range(0, len(source), max(1, len(source) // SAMPLED))
    found = 0
    for index in asked:
        with contextlib.suppress(Damage):
            found += len(source.captions(index))
    return found / max(1, len(asked))


def automatic_folder(wish: CacheSpec, reading: FindingSettings) -> Path:
    """Where the cache of this wish lies: another name for other data, other teachers, other keeping. A complete folder
    is used as it is, so the name must tell images and weights apart that were replaced under their old names."""
    prints = []
    for part, source in undivided_parts(wish, reading).items():
        prints.append(f"{part} {source.fingerprint}")
        stamps = source.stamps()  # of images that the fingerprint does not cover: sizes, and times, which copies change
        prints += [digest(stamps[:, 0].tobytes(), *_some_images(source))] if stamps.size else []
    keeping = replace(wish.keeping, rows=_NAMED_ROWS, captions=_NAMED_CAPTIONS)
    said = [wish.teacher, str(wish.input_size), str(wish.text_teacher), str(keeping), *prints]
    said += [known for spec in (wish.teacher, wish.text_teacher) if spec and (known := _weights_sample(spec))]
    said += [f"{reading.max_pixels} pixels"] if reading.max_pixels != MAX_PIXELS else []
    kind = wish.teacher.split(":")[1] if ":" in wish.teacher else wish.teacher
    name = re.sub(r"[*?]", "-", Path(wish.data).name)  # a shell would look for files that match
    return AUTOMATIC / f"{name}-{kind}-{cache_format.hashes([' / '.join(said)])[0]:016x}"


def _some_images(source: Source) -> Iterator[bytes]:
    """Uncompressed images have equal sizes: a few are looked at."""
    for index in range(0, len(source), max(1, len(source) // SAMPLES)):
        with contextlib.suppress(Damage):
            yield source.image(index)


def _weights_sample(spec: str) -> str:
    """What tells the files that a teacher's weights were named by from others of the same name; "" without any.

    Weights of one shape have files of one size, and hashing gigabytes takes long: some of the bytes must do.
    """
    _, _, named = spec.rpartition(":")
    path = Path(named).expanduser()
    if ":" not in spec or not path.exists():
        return ""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return digest(*(part for file in files for part in (file.relative_to(path), *_some_bytes(file))))


def _some_bytes(file: Path) -> Iterator[bytes]:
    """SAMPLES pieces, spread evenly, and the size."""
    with open(file, "rb") as opened:
        size = opened.seek(0, 2)
        yield size.to_bytes(8, "little")
        for place in range(SAMPLES):
            opened.seek(place * size // SAMPLES)
            yield opened.read(SAMPLE_BYTES)


def is_complete(folder: Path) -> bool:
    return (folder / cache_format.MANIFEST).is_file()
