"""Real pairs for the benches: read once, one caption each, written again as shards or as a folder of files."""

from __future__ import annotations

import io
import math
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from PIL import Image

from dinorankclip.data.open_data import open_pairs
from dinorankclip.data.pack import Writer
from dinorankclip.data.tar_shards import IMAGE_KINDS
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.types import RawSample, UserError

LARGE = (512, 384)  # width and height of the enlarged photos, about what web corpora are stored at
JPEG_QUALITY = 90


def read_pairs(where: str, count: int) -> list[RawSample]:
    """The first `count` training pairs, image n with one of its captions (n modulo their number)."""
    source = open_pairs(where)
    if len(source) < count:
        raise UserError(f"{where} has {len(source)} pairs, this bench needs {count}; --quick needs fewer")
    found = []
    for index in range(count):
        raw = source.read(index)
        found.append(replace(raw, captions=(raw.captions[index % len(raw.captions)],)))
    return found


def whole_batches(where: str, wanted: int, batch: int) -> int:
    """How many pairs there are, at most `wanted`, without a rest that fills no batch."""
    return min(wanted, len(open_pairs(where))) // batch * batch


def enlarged(samples: list[RawSample], size: tuple[int, int] = LARGE) -> list[RawSample]:
    """The same photos scaled to `size` and stored as JPEG again: decoding small photos would understate its cost."""
    return [replace(sample, image=_enlarge(sample.image, size)) for sample in samples]


def _enlarge(data: bytes, size: tuple[int, int]) -> bytes:
    stored = io.BytesIO()
    picture = Image.open(io.BytesIO(data)).convert("RGB").resize(size, Image.Resampling.BICUBIC)
    picture.save(stored, "JPEG", quality=JPEG_QUALITY)
    return stored.getvalue()


@contextmanager
def stored(samples: list[RawSample], layout: str, shards: int = 4) -> Iterator[Path]:
    """A folder that holds the pairs for a while: tars for `layout` "shards", else .jpg and .txt files."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        part = "" if layout == "folder" else "train"
        Writer(folder, layout, shard_size=math.ceil(len(samples) / shards)).write(part, samples)
        yield folder / part
    finally:
        shutil.rmtree(folder)


def caption_lengths(captions: list[str], tokenizer: Tokenizer) -> tuple[float, int]:
    """Mean and greatest number of tokens, start and end included."""
    lengths = [len(tokenizer.encode(caption)) for caption in captions]
    return sum(lengths) / len(lengths), max(lengths)


# Photos that are not square, from a set of square ones: each loses a third, in turn of its height and of its width.

LOST = 6  # a sixth on either side


def oblong_set(folder: Path, out: Path) -> Path:
    """A copy of the test part of a set in the clip-benchmark layout, with cut images."""
    shutil.rmtree(out, ignore_errors=True)
    (out / "test").mkdir(parents=True)
    for file in [*folder.glob("*.txt"), *(folder / "test").iterdir()]:
        target = out / file.relative_to(folder)
        if file.suffix == ".tar":
            _cut_shard(file, target)
        else:
            shutil.copy(file, target)
    return out


def _cut_shard(shard: Path, out: Path) -> None:
    images = 0
    with tarfile.open(shard) as given, tarfile.open(out, "w") as cut:
        for member in given:
            file = given.extractfile(member)
            assert file is not None, "a regular file has content"
            content = file.read()
            if member.name.rpartition(".")[2] in IMAGE_KINDS:
                content = _cut(content, images % 2 == 1)
                images += 1
            member.size = len(content)
            cut.addfile(member, io.BytesIO(content))


def _cut(content: bytes, flat: bool) -> bytes:
    with Image.open(io.BytesIO(content)) as image:
        width, height = image.size
        sides = (0, height // LOST) if flat else (width // LOST, 0)
        box = (*sides, width - sides[0], height - sides[1])
        data = io.BytesIO()
        image.convert("RGB").crop(box).save(data, "JPEG", quality=95)
    return data.getvalue()
