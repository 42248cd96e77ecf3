"""Makes the cache that a user asks for (data, teachers) and names the folder of an automatic cache."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from dinorankclip import distributed
from dinorankclip.config import FindingSettings
from dinorankclip.data.damage import Damage
from dinorankclip.data.decode import MAX_PIXELS
from dinorankclip.data.open_data import open_stored, splits_of
from dinorankclip.data.splits import undivided
from dinorankclip.io import digest, home
from dinorankclip.pieces.contract import HERE, Where, Work
from dinorankclip.teachers import cache_format
from dinorankclip.teachers.cache_build import HELD_OUT, CacheBuilder
from dinorankclip.teachers.cache_format import CacheLayout
from dinorankclip.teachers.registry import open_teacher, open_text_teacher
from dinorankclip.types import Source, UserError

AUTOMATIC = home() / "teacher"
SAMPLED = 500  # images whose captions are counted
_FINDING = fields(FindingSettings)  # settings of a run have more, which do not matter here
SAMPLES, SAMPLE_BYTES = 64, 4096  # images of a table, or pieces of a weights file, that are hashed


@dataclass(frozen=True)
class CacheSpec:
    """Data, teachers and layout of a cache. `split` names parts of the data; empty means all parts."""

    data: str
    teacher: str
    input_size: int | None = None
    text_teacher: str | None = None
    layout: CacheLayout = field(default_factory=CacheLayout)
    split: tuple[str, ...] = ()

    @property
    def keeps_tokens(self) -> bool:
        return self.layout.keep != "gram"

    def __str__(self) -> str:
        size = f" at {self.input_size} px" if self.input_size else ""
        text = f" and {self.text_teacher}" if self.text_teacher else ""
        return f"{self.teacher}{size}{text}" + (", with tokens" if self.keeps_tokens else "")


def cache_of_data(
    out: str | Path, spec: CacheSpec, reading: FindingSettings, device: torch.device, where: Where = HERE
) -> dict[str, Any]:
    """Make (or finish) the cache and return its manifest. All processes must call it."""
    settings = {
        "out": str(out), "spec": asdict(spec), "reading": {f.name: getattr(reading, f.name) for f in _FINDING},
        "device": str(device),
    }  # fmt: skip
    builder = _builder(Path(out), spec, reading, device)
    if distributed.world().leads and builder.teacher.card.note:
        print(f"{builder.teacher.name}: {builder.teacher.card.note}")
    return builder.finished(where, Work(f"{__name__}:open_work", settings, device.type))


def open_work(settings: dict[str, Any]) -> CacheBuilder:
    """Open data and teachers in a worker elsewhere."""
    spec = settings["spec"] | {"layout": CacheLayout(**settings["spec"]["layout"])}
    spec["split"] = tuple(spec["split"])
    device = torch.device(settings["device"])
    return _builder(Path(settings["out"]), CacheSpec(**spec), FindingSettings(**settings["reading"]), device)


def _builder(out: Path, spec: CacheSpec, reading: FindingSettings, device: torch.device) -> CacheBuilder:
    parts = undivided_parts(spec, reading)
    teacher = open_teacher(spec.teacher, spec.input_size).to(device)
    text_teacher = open_text_teacher(spec.text_teacher).to(device) if spec.text_teacher else None
    return CacheBuilder(out, parts, teacher, text_teacher, spec.layout, reading.max_pixels)


def undivided_parts(spec: CacheSpec, reading: FindingSettings) -> dict[str, Source]:
    """Return the source of each part. A validation part carved from the data belongs to the cache of its source."""
    if spec.data.startswith("pipe:"):
        raise UserError("a cache is made of data that can be read in any order; pipe: shards cannot. Store them first.")
    parts = spec.split or splits_of(spec.data, reading)
    opened = {part: open_stored(spec.data, reading, part) for part in parts}
    return {part: undivided(source) for part, source in opened.items()}


def amount(spec: CacheSpec, reading: FindingSettings) -> tuple[int, int]:
    """Return the number of images and an estimate of the number of captions, from a sample of the images."""
    images = captions = 0
    for part, source in undivided_parts(spec, reading).items():
        images += len(source)
        if spec.text_teacher:
            captions += len(source) if part in HELD_OUT else round(len(source) * _captions_per_image(source))
    return images, captions


def _captions_per_image(source: Source) -> float:
    sample = range(0, len(source), max(1, len(source) // SAMPLED))
    captions = 0
    for index in sample:
        with contextlib.suppress(Damage):
            captions += len(source.captions(index))
    return captions / max(1, len(sample))


def automatic_folder(spec: CacheSpec, reading: FindingSettings) -> Path:
    """Return the folder for this data, these teachers and this layout.

    A complete folder is used as it is, so the name must change when images or weights are replaced under old names.
    """
    fingerprints = []
    for part, source in undivided_parts(spec, reading).items():
        fingerprints.append(f"{part} {source.fingerprint}")
        # Stamps of images that the fingerprint does not cover: sizes, and times, which copies change.
        stamps = source.stamps()
        fingerprints += [digest(stamps[:, 0].tobytes(), *_sampled_images(source))] if stamps.size else []
    # The text and its numbers are those of the first version, so that old folders keep their names. The number of
    # records a file does not distinguish caches.
    layout = f"Keeping(keep={spec.layout.keep!r}, coding={spec.layout.coding!r}, rows=2048, captions=16384)"
    identity = [spec.teacher, str(spec.input_size), str(spec.text_teacher), layout, *fingerprints]
    identity += [sample for name in (spec.teacher, spec.text_teacher) if name and (sample := _weights_sample(name))]
    identity += [f"{reading.max_pixels} pixels"] if reading.max_pixels != MAX_PIXELS else []
    teacher = spec.teacher.split(":")[1] if ":" in spec.teacher else spec.teacher
    data = re.sub(r"[*?]", "-", Path(spec.data).name)  # a shell would look for files that match
    return AUTOMATIC / f"{data}-{teacher}-{cache_format.hashes([' / '.join(identity)])[0]:016x}"


def _sampled_images(source: Source) -> Iterator[bytes]:
    """Yield some images: uncompressed images have equal sizes, which tell nothing apart."""
    for index in range(0, len(source), max(1, len(source) // SAMPLES)):
        with contextlib.suppress(Damage):
            yield source.image(index)


def _weights_sample(teacher: str) -> str:
    """Return a digest of the weights files that a teacher's spec names, or "" if it names none.

    Weights of one shape have files of one size, and hashing gigabytes takes long, so a sample of the bytes is hashed.
    """
    _, _, name = teacher.rpartition(":")
    path = Path(name).expanduser()
    if ":" not in teacher or not path.exists():
        return ""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return digest(*(part for file in files for part in (file.relative_to(path), *_sampled_bytes(file))))


def _sampled_bytes(file: Path) -> Iterator[bytes]:
    """Yield the size of a file and SAMPLES pieces, spread evenly."""
    with open(file, "rb") as opened:
        size = opened.seek(0, 2)
        yield size.to_bytes(8, "little")
        for place in range(SAMPLES):
            opened.seek(place * size // SAMPLES)
            yield opened.read(SAMPLE_BYTES)


def is_complete(folder: Path) -> bool:
    return (folder / cache_format.MANIFEST).is_file()
