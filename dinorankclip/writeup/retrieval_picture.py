"""Retrieval as one picture: captions with the images they found, images with the captions they found."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw

from dinorankclip.scoring.pictures import ImageQuery, TextQuery
from dinorankclip.writeup.tiles import FAINT, FRAME, INK, PLAIN, RIGHT, SIDE, WRONG, font, tile, write_lines

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
