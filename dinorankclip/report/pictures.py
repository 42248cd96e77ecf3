"""Draws the pictures that `score` writes: retrieval examples, the hardest classes, embeddings in one plane.

Pillow draws everything; widths and heights are in pixels.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from dinorankclip.data.decode import decode, read_header
from dinorankclip.evaluate.examples import HardClass, ImageQuery, Projection, TextQuery

SIDE, FRAME = 96, 4  # side and frame of a thumbnail
RIGHT, WRONG, PLAIN = "#2a8c3c", "#c03028", "#999999"
INK, FAINT = "#111111", "#777777"
_CELL = SIDE + 2 * FRAME
_MARGIN, _GAP = 12, 8
_ROW = _CELL + _GAP
_TEXT = 250  # width of a column of text
_NAME, _BARS, _BAR = 190, 300, 16  # widths of a class name and of a full bar, height of a bar

# The plane: colours that colour-blind readers can tell apart; marks differ in shape, too.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_PLANE, _PLANE_MARGIN, _HEAD, _FOOT = 640, 16, 62, 30
_DOT, _CROSS = 3, 9  # half the width of a mark
_OPAQUE = 110  # opacity of a mark out of 255: where many marks lie, the colour is full
_SMOOTH = 2  # the plane is drawn this much larger and then reduced, for smooth edges


def font(size: int = 12) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=size)


def tile(image: bytes, colour: str = PLAIN) -> Image.Image:
    """Return a stored image as a square thumbnail in a frame, SIDE + 2·FRAME pixels wide and high."""
    pixels = Image.fromarray(decode(image, read_header(image, max_pixels=sys.maxsize)))  # a model decoded it before
    return ImageOps.expand(ImageOps.pad(pixels, (SIDE, SIDE), color="white"), FRAME, colour)


def write_lines(
    pen: ImageDraw.ImageDraw, at: tuple[int, int], text: str, letters: int, most: int, colour: str = INK, size: int = 12
) -> None:
    """Write text in at most `most` lines of `letters` letters."""
    lines = textwrap.wrap(text, letters, max_lines=most, placeholder=" …") or [""]
    for number, line in enumerate(lines):
        pen.text((at[0], at[1] + number * (size + 3)), line, fill=colour, font=font(size))


def draw_retrieval(title: str, by_text: Sequence[TextQuery], by_image: Sequence[ImageQuery]) -> Image.Image:
    """Draw captions with the images they found, and images with the captions they found.

    Green frames and lines are right, red ones wrong. A grey frame shows the image that belongs to the caption.
    """
    shown = max((len(query.images) for query in by_text), default=0)
    width = 2 * _MARGIN + max(_TEXT + (shown + 1) * _ROW + 2 * _GAP, _ROW + 2 * _TEXT)
    height = 2 * _MARGIN + 3 * 30 + (len(by_text) + len(by_image)) * _ROW
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
            left += _ROW
        sheet.paste(tile(query.answer, PLAIN), (left + 2 * _GAP, top))
        top += _ROW
    top = _heading(pen, top, "an image and the captions nearest to it", 13)
    for query_image in by_image:
        sheet.paste(tile(query_image.image, RIGHT if query_image.right[0] else WRONG), (_MARGIN, top))
        left = _MARGIN + _CELL + 2 * _GAP
        for number, (caption, right) in enumerate(zip(query_image.captions, query_image.right)):
            write_lines(pen, (left, top + number * 16), caption, 90, 1, RIGHT if right else WRONG)
        if not any(query_image.right):
            place = f"first right one at place {query_image.place + 1}, e.g. {query_image.answer}"
            write_lines(pen, (left, top + len(query_image.captions) * 16 + 4), place, 90, 1, FAINT, 11)
        top += _ROW
    return sheet


def _heading(pen: ImageDraw.ImageDraw, top: int, text: str, size: int) -> int:
    pen.text((_MARGIN, top + 4), text, fill=INK, font=font(size))
    return top + 30


def draw_hardest(title: str, classes: Sequence[HardClass]) -> Image.Image:
    """Draw a missed image of each class, its recall, and bars for the classes that it is taken for."""
    width = 2 * _MARGIN + _CELL + _NAME + _BARS + 240
    sheet = Image.new("RGB", (width, 2 * _MARGIN + 30 + len(classes) * _ROW), "white")
    pen = ImageDraw.Draw(sheet)
    pen.text((_MARGIN, _MARGIN), title, fill=INK, font=font(16))
    for number, hard in enumerate(classes):
        top = _MARGIN + 30 + number * _ROW
        if hard.example is not None:
            sheet.paste(tile(hard.example), (_MARGIN, top))
        left = _MARGIN + _ROW
        write_lines(pen, (left, top), hard.name, 26, 3)
        pen.text((left, top + SIDE - 10), f"{hard.images} images", fill=FAINT, font=font(11))
        bars = [(hard.name, hard.recall, RIGHT)] + [(name, share, WRONG) for name, share in hard.taken_for]
        for line, (name, share, colour) in enumerate(bars):
            at = (left + _NAME, top + line * (_BAR + 3))
            pen.rectangle((*at, at[0] + max(1, round(share * _BARS)), at[1] + _BAR - 2), fill=colour)
            label = f"{100 * share:.0f} %  {name}"
            write_lines(pen, (at[0] + round(share * _BARS) + 6, at[1] + 1), label, 36, 1, INK, 11)
    return sheet


def draw_projection(title: str, projection: Projection) -> Image.Image:
    """Draw groups of embeddings in the plane, one colour per group, with a cross at the mean of each group."""
    sheet = Image.new("RGB", (_PLANE + 2 * _PLANE_MARGIN, _HEAD + _PLANE + _FOOT), "white")
    sheet.paste(_plane(projection), (_PLANE_MARGIN, _HEAD))
    pen = ImageDraw.Draw(sheet)
    pen.text((_PLANE_MARGIN, _PLANE_MARGIN - 4), title, fill=INK, font=font(16))
    left = _PLANE_MARGIN
    for number, (name, points) in enumerate(projection.points.items()):
        _mark(pen, (left + 6, _HEAD - 13), 5, number, _COLOURS[number % len(_COLOURS)])
        label = f"{len(points)} {name}"
        pen.text((left + 18, _HEAD - 21), label, fill=INK, font=font(13))
        left += 18 + round(pen.textlength(label, font=font(13))) + 24
    pen.text((left, _HEAD - 21), "crosses: their means", fill=FAINT, font=font(13))
    pen.text((_PLANE_MARGIN, _HEAD + _PLANE + 8), _axes(projection), fill=FAINT, font=font(12))
    return sheet


def _axes(projection: Projection) -> str:
    method = projection.method.upper()
    if projection.explained is None:
        return f"{method}: near neighbours stay near; distances and the gap between groups mean little"
    across, up = (f"{100 * share:.0f} %" for share in projection.explained)
    return f"{method}: {across} of the variance across, {up} up, on one scale"


def _plane(projection: Projection) -> Image.Image:
    """Draw the marks in a mixed order, so that no group hides another."""
    side = _PLANE * _SMOOTH
    sheet = Image.new("RGB", (side, side), "#fafafa")
    pen = ImageDraw.Draw(sheet, "RGBA")
    rows = np.concatenate(list(projection.points.values()))
    group = np.repeat(np.arange(len(projection.points)), [len(points) for points in projection.points.values()])
    places = _places(rows, side)
    for at in np.random.default_rng(0).permutation(len(rows)):
        number = int(group[at])
        colour = f"{_COLOURS[number % len(_COLOURS)]}{_OPAQUE:02x}"
        _mark(pen, tuple(places[at]), _DOT * _SMOOTH, number, colour)
    for number in range(len(projection.points)):
        _cross(pen, tuple(places[group == number].mean(0)), _COLOURS[number % len(_COLOURS)])
    return sheet.resize((_PLANE, _PLANE), Image.Resampling.LANCZOS)


def _places(rows: np.ndarray, side: int) -> np.ndarray:
    """Return pixels [N, 2]. Both axes share one scale, since two scales would distort distances."""
    low, high = rows.min(0), rows.max(0)
    scale = (side - 6 * _DOT * _SMOOTH) / max(float((high - low).max()), 1e-12)
    centred = (rows - (low + high) / 2) * scale
    return side / 2 + centred * (1, -1)  # pixels count downwards


def _mark(pen: ImageDraw.ImageDraw, at: tuple[float, float], half: float, number: int, colour: str) -> None:
    """Draw a disc, or for every second group a square of like area."""
    draw, half = (pen.ellipse, half) if number % 2 == 0 else (pen.rectangle, 0.88 * half)
    draw((at[0] - half, at[1] - half, at[0] + half, at[1] + half), fill=colour)


def _cross(pen: ImageDraw.ImageDraw, at: tuple[float, float], colour: str) -> None:
    """Draw a cross with a white edge, because the marks below have the same colour."""
    for width, ink, reach in ((5, "#ffffff", 1.25 * _CROSS * _SMOOTH), (3, colour, _CROSS * _SMOOTH)):
        for rise in (reach, -reach):
            pen.line((at[0] - reach, at[1] - rise, at[0] + reach, at[1] + rise), fill=ink, width=width * _SMOOTH)
