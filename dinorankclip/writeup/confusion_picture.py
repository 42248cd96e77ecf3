"""The hardest classes as one picture: a missed image of each, its recall, and bars for what it is taken for."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw

from dinorankclip.scoring.pictures import HardClass
from dinorankclip.writeup.tiles import FAINT, FRAME, INK, RIGHT, SIDE, WRONG, font, tile, write_lines

_MARGIN, _GAP = 12, 8
_CELL = SIDE + 2 * FRAME
_NAME, _BARS, _BAR = 190, 300, 16  # widths of the name and of a full bar, height of a bar


def draw_hardest(title: str, classes: Sequence[HardClass]) -> Image.Image:
    row = _CELL + _GAP
    width = 2 * _MARGIN + _CELL + _NAME + _BARS + 240
    sheet = Image.new("RGB", (width, 2 * _MARGIN + 30 + len(classes) * row), "white")
    pen = ImageDraw.Draw(sheet)
    pen.text((_MARGIN, _MARGIN), title, fill=INK, font=font(16))
    for number, hard in enumerate(classes):
        top = _MARGIN + 30 + number * row
        if hard.example is not None:
            sheet.paste(tile(hard.example), (_MARGIN, top))
        left = _MARGIN + _CELL + _GAP
        write_lines(pen, (left, top), hard.name, 26, 3)
        pen.text((left, top + SIDE - 10), f"{hard.images} images", fill=FAINT, font=font(11))
        bars = [(hard.name, hard.recall, RIGHT)] + [(name, share, WRONG) for name, share in hard.taken_for]
        for line, (name, share, colour) in enumerate(bars):
            at = (left + _NAME, top + line * (_BAR + 3))
            pen.rectangle((*at, at[0] + max(1, round(share * _BARS)), at[1] + _BAR - 2), fill=colour)
            label = f"{100 * share:.0f} %  {name}"
            write_lines(pen, (at[0] + round(share * _BARS) + 6, at[1] + 1), label, 36, 1, INK, 11)
    return sheet
