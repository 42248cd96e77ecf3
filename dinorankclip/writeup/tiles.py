"""Small pieces of pictures: thumbnails with a coloured frame, wrapped text, a font. Everything by Pillow."""

from __future__ import annotations

import sys
import textwrap

from PIL import Image, ImageDraw, ImageFont, ImageOps

from dinorankclip.data.images import decode, read_header

SIDE = 96  # of a thumbnail, in pixels
FRAME = 4
RIGHT, WRONG, PLAIN = "#2a8c3c", "#c03028", "#999999"
INK, FAINT = "#111111", "#777777"


def font(size: int = 12) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=size)


def tile(image: bytes, colour: str = PLAIN) -> Image.Image:
    """A stored image as a square thumbnail in a frame of this colour, SIDE + 2·FRAME pixels wide and high."""
    pixels = Image.fromarray(decode(image, read_header(image, max_pixels=sys.maxsize)))  # a model has seen it
    shown = ImageOps.pad(pixels, (SIDE, SIDE), color="white")
    return ImageOps.expand(shown, FRAME, colour)


def write_lines(
    pen: ImageDraw.ImageDraw, at: tuple[int, int], text: str, letters: int, most: int, colour: str = INK, size: int = 12
) -> None:
    """Text in at most `most` lines of `letters` letters."""
    lines = textwrap.wrap(text, letters, max_lines=most, placeholder=" …") or [""]
    for number, line in enumerate(lines):
        pen.text((at[0], at[1] + number * (size + 3)), line, fill=colour, font=font(size))
