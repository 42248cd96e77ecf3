"""Makes JPEGs of images of the set, by index. Pictures are encoded anew: no metadata of a photo leaves the server."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict

from PIL import Image, ImageDraw

from dinorankclip.data.damage import Damage
from dinorankclip.data.decode import decode, read_header
from dinorankclip.serve.answers import Refused
from dinorankclip.serve.collection import Collection

SMALLEST, LARGEST = 16, 1024
QUALITY = 85
KEPT_BYTES = 24_000_000
_GREY, _DARK = (208, 208, 208), (120, 120, 120)


def jpeg(data: bytes, size: int, max_pixels: int) -> tuple[bytes, tuple[int, int]]:
    """Return an encoded image with its longer side at most `size`, as JPEG, and the (width, height) it had."""
    header = read_header(data, max_pixels)
    pixels = decode(data, header, least=(size, size))
    picture = Image.fromarray(pixels)
    picture.thumbnail((size, size), Image.Resampling.LANCZOS)
    return _encoded(picture), (header.width, header.height)


def placeholder(size: int) -> bytes:
    """Return a grey picture with a cross, for an image that cannot be read."""
    picture = Image.new("RGB", (size, size), _GREY)
    pen, edge = ImageDraw.Draw(picture), size // 4
    width = max(1, size // 32)
    pen.line((edge, edge, size - edge, size - edge), _DARK, width)
    pen.line((edge, size - edge, size - edge, edge), _DARK, width)
    return _encoded(picture)


def _encoded(picture: Image.Image) -> bytes:
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=QUALITY)
    return out.getvalue()


class Pictures:
    """Makes pictures of a set and remembers recent ones."""

    def __init__(self, collection: Collection, max_pixels: int) -> None:
        self._collection, self._max_pixels = collection, max_pixels
        self._known: OrderedDict[tuple[int, int], tuple[bytes, bool]] = OrderedDict()
        self._bytes, self._lock = 0, threading.Lock()

    def get(self, index: int, size: int) -> tuple[bytes, bool]:
        """Return the JPEG of an image, and whether the image is damaged."""
        if not SMALLEST <= size <= LARGEST:
            raise Refused(422, f"size is between {SMALLEST} and {LARGEST} pixels, not {size}")
        index = self._collection.place(index)
        with self._lock:
            if (index, size) in self._known:
                self._known.move_to_end((index, size))
                return self._known[index, size]
        try:
            made = jpeg(self._collection.source.image(index), size, self._max_pixels)[0], False
        except Damage:
            made = placeholder(size), True
        with self._lock:
            if (index, size) not in self._known:
                self._known[index, size] = made
                self._bytes += len(made[0])
            while self._bytes > KEPT_BYTES:
                self._bytes -= len(self._known.popitem(last=False)[1][0])
        return made

    def size(self, index: int) -> tuple[int, int] | None:
        """Return width and height of an image; None if it is damaged."""
        try:
            header = read_header(self._collection.source.image(self._collection.place(index)), self._max_pixels)
        except Damage:
            return None
        return header.width, header.height
