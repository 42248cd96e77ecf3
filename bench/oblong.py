"""Photos that are not square, from a set of square ones: each loses a third, in turn of its height and of its width."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

from PIL import Image

from dinorankclip.data.tar_shards import IMAGE_KINDS

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
