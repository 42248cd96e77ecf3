"""Small pieces of pictures: thumbnails with a coloured frame, wrapped text, a font. Everything by Pillow."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from dinorankclip.data.decode import decode, read_header
from dinorankclip.evaluate.examples import HardClass, ImageQuery, Projection, TextQuery

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


# -------- retrieval_picture
# Retrieval as one picture: captions with the images they found, images with the captions they found.

_MARGIN, _GAP, _TEXT = 12, 8, 250  # pixels; width of a column of text
_CELL = SIDE + 2 * FRAME


def draw_retrieval(title: str, by_text: Sequence[TextQuery], by_image: Sequence[ImageQuery]) -> Image.Image:
    """Green frames and lines are right, red ones wrong; the grey picture is the one that was meant."""
    shown = max((len(query.images) for query in by_text), default=0)
    width = 2 * _MARGIN + max(_TEXT + (shown + 1) * (_CELL + _GAP) + 2 * _GAP, _CELL + _GAP + 2 * _TEXT)
    row = _CELL + _GAP
    height = 2 * _MARGIN + 3 * 30 + (len(by_text) + len(by_image)) * row
    sheet = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(sheet)
    top = _heading(pen, _MARGIN, title, 16)
    top = _heading(pen, top, "a caption, the images nearest to it, and (grey) the image that was meant", 13)
    for query in by_text:
        write_lines(pen, (_MARGIN, top), query.caption, 38, 5)
        pen.text((_MARGIN, top + SIDE - 10), f"first right one at place {query.place + 1}", fill=FAINT, font=font(11))
        left = _MARGIN + _TEXT
        for image, right in zip(query.images, query.right):
            sheet.paste(tile(image, RIGHT if right else WRONG), (left, top))
            left += _CELL + _GAP
        sheet.paste(tile(query.wanted, PLAIN), (left + 2 * _GAP, top))
        top += row
    top = _heading(pen, top, "an image and the captions nearest to it", 13)
    for asked in by_image:
        sheet.paste(tile(asked.image, RIGHT if asked.right[0] else WRONG), (_MARGIN, top))
        left = _MARGIN + _CELL + 2 * _GAP
        for number, (caption, right) in enumerate(zip(asked.captions, asked.right)):
            write_lines(pen, (left, top + number * 16), caption, 90, 1, RIGHT if right else WRONG)
        if not any(asked.right):
            place = f"first right one at place {asked.place + 1}, e.g. {asked.wanted}"
            write_lines(pen, (left, top + len(asked.captions) * 16 + 4), place, 90, 1, FAINT, 11)
        top += row
    return sheet


def _heading(pen: ImageDraw.ImageDraw, top: int, text: str, size: int) -> int:
    pen.text((_MARGIN, top + 4), text, fill=INK, font=font(size))
    return top + 30


# -------- confusion_picture
# The hardest classes as one picture: a missed image of each, its recall, and bars for what it is taken for.

_CLASS_MARGIN, _CLASS_GAP = 12, 8
_CLASS_CELL = SIDE + 2 * FRAME
_NAME, _BARS, _BAR = 190, 300, 16  # widths of the name and of a full bar, height of a bar


def draw_hardest(title: str, classes: Sequence[HardClass]) -> Image.Image:
    row = _CLASS_CELL + _CLASS_GAP
    width = 2 * _CLASS_MARGIN + _CLASS_CELL + _NAME + _BARS + 240
    sheet = Image.new("RGB", (width, 2 * _CLASS_MARGIN + 30 + len(classes) * row), "white")
    pen = ImageDraw.Draw(sheet)
    pen.text((_CLASS_MARGIN, _CLASS_MARGIN), title, fill=INK, font=font(16))
    for number, hard in enumerate(classes):
        top = _CLASS_MARGIN + 30 + number * row
        if hard.example is not None:
            sheet.paste(tile(hard.example), (_CLASS_MARGIN, top))
        left = _CLASS_MARGIN + _CLASS_CELL + _CLASS_GAP
        write_lines(pen, (left, top), hard.name, 26, 3)
        pen.text((left, top + SIDE - 10), f"{hard.images} images", fill=FAINT, font=font(11))
        bars = [(hard.name, hard.recall, RIGHT)] + [(name, share, WRONG) for name, share in hard.taken_for]
        for line, (name, share, colour) in enumerate(bars):
            at = (left + _NAME, top + line * (_BAR + 3))
            pen.rectangle((*at, at[0] + max(1, round(share * _BARS)), at[1] + _BAR - 2), fill=colour)
            label = f"{100 * share:.0f} %  {name}"
            write_lines(pen, (at[0] + round(share * _BARS) + 6, at[1] + 1), label, 36, 1, INK, 11)
    return sheet


# -------- projection_picture
# Embeddings in the plane as one picture: images and captions in two colours, and where the middle of each lies.

# Colours that colour-blind readers can tell apart; the marks differ in shape too.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_SIDE, _PLANE_MARGIN, _HEAD, _FOOT = 640, 16, 62, 30  # pixels
_DOT, _MIDDLE = 3, 9  # half the width of a mark
_OPAQUE = 110  # of 255: where many marks lie, the colour is full
_SMOOTH = 2  # everything is drawn this much larger and made smaller, for smooth edges


def draw_projection(title: str, found: Projection) -> Image.Image:
    """Groups in turn get a colour; marks are drawn in a mixed order, so that no group hides another."""
    sheet = Image.new("RGB", (_SIDE + 2 * _PLANE_MARGIN, _HEAD + _SIDE + _FOOT), "white")
    sheet.paste(_plot(found), (_PLANE_MARGIN, _HEAD))
    pen = ImageDraw.Draw(sheet)
    pen.text((_PLANE_MARGIN, _PLANE_MARGIN - 4), title, fill=INK, font=font(16))
    left = _PLANE_MARGIN
    for number, (name, points) in enumerate(found.points.items()):
        _mark(pen, (left + 6, _HEAD - 13), 5, number, _COLOURS[number % len(_COLOURS)])
        label = f"{len(points)} {name}"
        pen.text((left + 18, _HEAD - 21), label, fill=INK, font=font(13))
        left += 18 + round(pen.textlength(label, font=font(13))) + 24
    pen.text((left, _HEAD - 21), "crosses: their means", fill=FAINT, font=font(13))
    pen.text((_PLANE_MARGIN, _HEAD + _SIDE + 8), _axes(found), fill=FAINT, font=font(12))
    return sheet


def _axes(found: Projection) -> str:
    if found.explained is None:
        return f"{found.method.upper()}: near neighbours stay near; distances and the gap between groups mean little"
    across, up = (f"{100 * share:.0f} %" for share in found.explained)
    return f"{found.method.upper()}: {across} of the variance across, {up} up, on one scale"


def _plot(found: Projection) -> Image.Image:
    """The marks alone, a square of side _SIDE."""
    side = _SIDE * _SMOOTH
    sheet = Image.new("RGB", (side, side), "#fafafa")
    pen = ImageDraw.Draw(sheet, "RGBA")
    rows = np.concatenate(list(found.points.values()))
    group = np.repeat(np.arange(len(found.points)), [len(points) for points in found.points.values()])
    places = _places(rows, side)
    for at in np.random.default_rng(0).permutation(len(rows)):
        number = int(group[at])
        colour = f"{_COLOURS[number % len(_COLOURS)]}{_OPAQUE:02x}"
        _mark(pen, tuple(places[at]), _DOT * _SMOOTH, number, colour)
    for number in range(len(found.points)):
        _cross(pen, tuple(places[group == number].mean(0)), _COLOURS[number % len(_COLOURS)])
    return sheet.resize((_SIDE, _SIDE), Image.Resampling.LANCZOS)


def _places(rows: np.ndarray, side: int) -> np.ndarray:
    """Pixels [N, 2]. One scale for both axes, else the picture would show distances that are not there."""
    low, high = rows.min(0), rows.max(0)
    scale = (side - 6 * _DOT * _SMOOTH) / max(float((high - low).max()), 1e-12)
    centred = (rows - (low + high) / 2) * scale
    return side / 2 + centred * (1, -1)  # up is up


def _mark(pen: ImageDraw.ImageDraw, at: tuple[float, float], half: float, number: int, colour: str) -> None:
    """A disc, or for every second group a square of like area."""
    draw, half = (pen.ellipse, half) if number % 2 == 0 else (pen.rectangle, 0.88 * half)
    draw((at[0] - half, at[1] - half, at[0] + half, at[1] + half), fill=colour)


def _cross(pen: ImageDraw.ImageDraw, at: tuple[float, float], colour: str) -> None:
    """White around it, for the marks below have its colour."""
    reach = _MIDDLE * _SMOOTH
    for width, ink, over in ((5, "#ffffff", 1.25), (3, colour, 1.0)):
        for dx, dy in ((reach * over, reach * over), (reach * over, -reach * over)):
            pen.line((at[0] - dx, at[1] - dy, at[0] + dx, at[1] + dy), fill=ink, width=width * _SMOOTH)
