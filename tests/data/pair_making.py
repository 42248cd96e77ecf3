"""Small images, good and damaged, and tars of them, for the tests of this folder."""

import io
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from dinorankclip.data.damage import Damage
from dinorankclip.types import RawSample


def picture(seed=0, height=40, width=48):
    """A smooth random picture, uint8 [H, W, 3]."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def encoded(pixels, kind="JPEG", **options):
    data = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(data, kind, **options)
    return data.getvalue()


def jpeg(seed=0, height=40, width=48):
    return encoded(picture(seed, height, width), quality=90)


def png_header(width, height):
    """A PNG that claims a size and has hardly any pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")


def broken_png(seed=0):
    data = bytearray(encoded(picture(seed), "PNG"))
    middle = len(data) // 2
    data[middle : middle + 200] = bytes(200)
    return bytes(data)


def write_tar(path: Path, members):
    """`members`: (name, bytes) in order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def good_members(count, first=0, captions=2):
    for number in range(first, first + count):
        yield f"k{number:05d}.jpg", jpeg(number)
        lines = "".join(f"caption {c} of picture {number}\n" for c in range(captions))
        yield f"k{number:05d}.txt", lines.encode()


def write_set(folder: Path, count=40, shards=2, part="train", first=0, captions=2):
    """A clip-benchmark retrieval part."""
    each = count // shards
    for shard in range(shards):
        write_tar(folder / part / f"{shard}.tar", good_members(each, first + shard * each, captions))
    (folder / part / "nshards.txt").write_text(f"{shards}\n")
    return folder


DAMAGED = {
    "truncated": lambda n: {"jpg": jpeg(n)[:-200], "txt": b"half a picture"},
    "not-an-image": lambda n: {"jpg": b"<html>404 not found</html>", "txt": b"a web page"},
    "corrupt": lambda n: {"png": broken_png(n), "txt": b"a garbled picture"},
    "too-many-pixels": lambda n: {"png": png_header(60_000, 60_000), "txt": b"a bomb"},
    "empty-image": lambda n: {"jpg": b"", "txt": b"nothing"},
    "missing-image": lambda n: {"txt": b"a caption alone"},
    "no-caption": lambda n: {"jpg": jpeg(n)},
    "empty-caption": lambda n: {"jpg": jpeg(n), "txt": b" \n\n"},
    "not-utf8": lambda n: {"jpg": jpeg(n), "txt": "caf\xe9 au lait".encode("latin-1")},
    "bad-json": lambda n: {"jpg": jpeg(n), "json": b'{"caption": '},
}


def damaged_members(each):
    """`each` samples of every kind of damage."""
    for number in range(each):
        for cause, make in DAMAGED.items():
            for kind, data in make(number).items():
                yield f"bad-{cause}-{number}.{kind}", data


class ListSource:
    """A source in memory. An entry is a RawSample, a cause, or a function to call first."""

    fingerprint = "list"

    def __init__(self, entries):
        self.entries = entries

    def __len__(self):
        return len(self.entries)

    def key(self, index):
        entry = self.entries[index]
        return entry.key if isinstance(entry, RawSample) else f"entry {index}"

    def read(self, index):
        entry = self.entries[index]
        if isinstance(entry, str):
            raise Damage(entry)
        return entry() if callable(entry) else entry


def raw(number, captions=("one", "two")):
    return RawSample(f"k{number}", jpeg(number), tuple(captions))
