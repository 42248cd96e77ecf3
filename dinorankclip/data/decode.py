"""Decodes stored bytes: images to upright RGB pixels, caption files to captions (one caption a line, in UTF-8).

JPEG is decoded by simplejpeg (libjpeg-turbo), everything else by Pillow.

* The size is read from the header and checked before a pixel is decoded, so a pixel bomb costs nothing.
* EXIF orientation is applied: `height` and `width` below are always those of the upright image.
* A truncated or corrupt image raises `Damage`. (Left alone, decoders fill the missing part with grey and go on.)
* Transparency is laid on white (product photos are cut out that way); 16-bit values keep their upper 8 bits.
* libjpeg can decode a photo at 1/2, 1/4 or 1/8 of its size for a fraction of the time. The pixels then differ from a
  full decode and a resize, so this happens only where the caller says how many pixels are enough (`least`): training
  does, evaluation never. A crop drawn on the full size is moved to whole pixels of the smaller image (`samples.snap`).
"""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import simplejpeg
from PIL import Image, ImageFile, UnidentifiedImageError

from dinorankclip.checked_files import parsed_json
from dinorankclip.data.damage import Damage

# Pillow warns about large images and odd metadata. `max_pixels` is our own limit, and damage is counted.
warnings.filterwarnings("ignore", module=r"PIL\.")

MAX_PIXELS = 50_000_000
_JPEG = b"\xff\xd8\xff"
_ORIENTATION = 0x0112  # the EXIF tag
_PNG_EXIF = (b"eXIf", b"Raw profile type exif", b"com.adobe.xmp")  # without any of these, a PNG is upright


@dataclass(frozen=True)
class Header:
    """Holds the size of the upright image, known before decoding. `turn` is the EXIF orientation, 1 (upright) to 8."""

    height: int
    width: int
    turn: int = 1
    by_simplejpeg: bool = False


def read_header(data: bytes, max_pixels: int = MAX_PIXELS) -> Header:
    """Read size and orientation of the upright image; raise `Damage` if the bytes are no image or too large."""
    if not data:
        raise Damage("empty-image")
    header = (_jpeg_header(data) if data.startswith(_JPEG) else None) or _pillow_header(data, max_pixels)
    _refuse_too_many(header.width, header.height, max_pixels)
    if not header.height or not header.width:
        raise Damage("empty-image")
    return header


def decode(data: bytes, header: Header | None = None, *, least: tuple[int, int] = (0, 0)) -> np.ndarray:
    """Return the upright image, uint8 [H, W, 3]. `least` is a sufficient (height, width); (0, 0) means full size."""
    header = header or read_header(data)
    if header.by_simplejpeg:
        pixels = _decode_jpeg(data, least[::-1] if header.turn >= 5 else least, header.height * header.width)
    else:
        pixels = _decode_pillow(data, header.height * header.width)
    return _upright(pixels, header.turn)


def from_pillow(image: Image.Image) -> np.ndarray:
    """Treat an image that Pillow has opened as `decode` treats bytes: upright, uint8 [H, W, 3]."""
    turn = 1 if image.format == "TIFF" else _turn(image.getexif)  # Pillow's TIFF reader turns the image itself
    return _upright(_as_rgb(image), turn)


def _refuse_too_many(width: int, height: int, max_pixels: int) -> None:
    if height * width > max_pixels:
        raise Damage("too-many-pixels", f"{width}×{height}")


def _jpeg_header(data: bytes) -> Header | None:
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data, strict=False)
    except (ValueError, KeyError):
        return None  # cut off, or a rare layout that libjpeg-turbo does not name: Pillow decides
    turn = _jpeg_orientation(data)
    upright = (width, height) if turn >= 5 else (height, width)
    # CMYK needs Adobe's inversion, which Pillow knows.
    return Header(*upright, turn, by_simplejpeg=colours not in ("CMYK", "YCCK"))


def _jpeg_orientation(data: bytes) -> int:
    """Walk the segments to the EXIF segment. Most images have none, and need no full EXIF parse."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], struct.unpack_from(">H", data, at + 2)[0]
        if marker == 0xDA:  # start of scan: pixels follow
            return 1
        if marker == 0xE1 and data[at + 4 : at + 10] == b"Exif\0\0":
            return _turn(partial(_exif, data[at + 4 : at + 2 + length]))
        at += 2 + length
    return 1


def _exif(data: bytes) -> Image.Exif:
    exif = Image.Exif()
    exif.load(data)
    return exif


def _turn(read_exif: Callable[[], Image.Exif]) -> int:
    try:
        turn = read_exif().get(_ORIENTATION, 1)
    except Exception:  # EXIF blocks in the wild are broken in every way; the picture itself may be fine
        return 1
    return turn if turn in range(1, 9) else 1


def _open(data: bytes, max_pixels: int) -> Image.Image:
    if max_pixels > MAX_PIXELS:
        # Pillow has a limit of its own, for the whole process. A limit above the default replaces it.
        Image.MAX_IMAGE_PIXELS = None
    assert not ImageFile.LOAD_TRUNCATED_IMAGES, "Pillow is set to fill truncated images with grey"
    try:
        return Image.open(io.BytesIO(data))
    except Image.DecompressionBombError as error:
        raise Damage("too-many-pixels", str(error)) from None
    except UnidentifiedImageError:
        known = data.startswith((_JPEG, b"\x89PNG\r\n\x1a\n"))
        raise Damage("corrupt" if known else "not-an-image") from None
    except Exception as error:  # each Pillow plugin has its own exceptions
        raise _damage_of(error) from None


def _pillow_header(data: bytes, max_pixels: int) -> Header:
    with _open(data, max_pixels) as image:
        width, height = image.size
        _refuse_too_many(width, height, max_pixels)  # first: in search of EXIF, Pillow may decode a whole PNG
        # Pillow's TIFF reader turns the image itself, and gives the upright size.
        upright = image.format == "TIFF" or (image.format == "PNG" and not any(mark in data for mark in _PNG_EXIF))
        turn = 1 if upright else _turn(image.getexif)
    return Header(width, height, turn) if turn >= 5 else Header(height, width, turn)


def _decode_jpeg(data: bytes, least: tuple[int, int], pixels: int) -> np.ndarray:
    # min_factor 2: libjpeg's odd scales (7/8, 3/4 …) take longer than no scaling at all.
    height, width = least
    try:
        if height and width:
            return simplejpeg.decode_jpeg(data, min_height=height, min_width=width, min_factor=2)
        return simplejpeg.decode_jpeg(data)
    except ValueError as error:
        text = str(error)
    if "remature end" in text:
        raise Damage("truncated", text)
    if text.startswith("Corrupt JPEG"):
        raise Damage("corrupt", text)
    return _decode_pillow(data, pixels)  # a complaint that spoils no pixels, such as an odd header field


def _decode_pillow(data: bytes, pixels: int) -> np.ndarray:
    with _open(data, pixels) as image:
        return _as_rgb(image)


def _damage_of(error: Exception) -> Damage:
    text = str(error)
    return Damage("truncated" if "truncat" in text.lower() else "corrupt", text[:200])


def _as_rgb(image: Image.Image) -> np.ndarray:
    try:
        image.load()
        return _converted(image)
    except Exception as error:
        raise _damage_of(error) from None


def _converted(image: Image.Image) -> np.ndarray:
    if image.mode.startswith("I") or image.mode == "F":  # 16 or 32 bits, one channel
        values = np.asarray(image)
        if image.mode == "F":
            values = values * 255 if values.max() <= 1 else values
        elif image.mode.startswith("I;16") or values.max() > 255:
            values = values >> 8
        return np.repeat(np.clip(values, 0, 255).astype(np.uint8)[:, :, None], 3, axis=2)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = Image.alpha_composite(Image.new("RGBA", image.size, (255, 255, 255, 255)), image.convert("RGBA"))
    return np.asarray(image.convert("RGB"))


def _upright(pixels: np.ndarray, turn: int) -> np.ndarray:
    """Undo EXIF orientation `turn` (numbering of the EXIF standard)."""
    if turn == 1:
        return pixels
    if turn in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    if turn in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if turn in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def captions_from_text(data: bytes) -> tuple[str, ...]:
    """Return the non-blank lines of a .txt file."""
    try:
        # Windows editors put a byte-order mark first; `splitlines` would break at form feeds inside web captions, too.
        return clean_captions(data.decode("utf-8-sig").split("\n"))
    except UnicodeDecodeError as error:
        raise Damage("not-utf8", str(error)) from None


def captions_from_json(data: bytes) -> tuple[str, ...]:
    """Return `caption` (a string) or `captions` (a list) of a .json file, as img2dataset and others write it."""
    try:
        record = parsed_json(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise Damage("not-utf8", str(error)) from None
    except ValueError as error:
        raise Damage("bad-json", str(error)) from None
    captions = record.get("captions", record.get("caption")) if isinstance(record, dict) else None
    captions = [captions] if isinstance(captions, str) else captions
    if not isinstance(captions, list) or not all(isinstance(caption, str) for caption in captions):
        raise Damage("bad-json", "no 'caption' in it")
    return clean_captions(captions)


def clean_captions(captions: list[str]) -> tuple[str, ...]:
    """Strip captions and drop blank captions; raise `Damage` if none is left or if UTF-8 cannot encode a caption."""
    cleaned = tuple(stripped for caption in captions if (stripped := caption.strip().strip("\0")))
    if not cleaned:
        raise Damage("empty-caption")
    for caption in cleaned:
        try:
            caption.encode("utf-8")
        except UnicodeEncodeError:  # half of an emoji in JSON; in a table, bytes that were no UTF-8
            raise Damage("not-utf8", repr(caption[:40])) from None
    return cleaned
