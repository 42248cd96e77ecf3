"""Embeddings in the plane as one picture: images and captions in two colours, and where the middle of each lies."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from dinorankclip.scoring.projection import Projection
from dinorankclip.writeup.tiles import FAINT, INK, font

# Colours that colour-blind readers can tell apart; the marks differ in shape too.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_SIDE, _MARGIN, _HEAD, _FOOT = 640, 16, 62, 30  # pixels
_DOT, _MIDDLE = 3, 9  # half the width of a mark
_OPAQUE = 110  # of 255: where many marks lie, the colour is full
_SMOOTH = 2  # everything is drawn this much larger and made smaller, for smooth edges


def draw_projection(title: str, found: Projection) -> Image.Image:
    """Groups in turn get a colour; marks are drawn in a mixed order, so that no group hides another."""
    sheet = Image.new("RGB", (_SIDE + 2 * _MARGIN, _HEAD + _SIDE + _FOOT), "white")
    sheet.paste(_plot(found), (_MARGIN, _HEAD))
    pen = ImageDraw.Draw(sheet)
    pen.text((_MARGIN, _MARGIN - 4), title, fill=INK, font=font(16))
    left = _MARGIN
    for number, (name, points) in enumerate(found.points.items()):
        _mark(pen, (left + 6, _HEAD - 13), 5, number, _COLOURS[number % len(_COLOURS)])
        label = f"{len(points)} {name}"
        pen.text((left + 18, _HEAD - 21), label, fill=INK, font=font(13))
        left += 18 + round(pen.textlength(label, font=font(13))) + 24
    pen.text((left, _HEAD - 21), "crosses: their means", fill=FAINT, font=font(13))
    pen.text((_MARGIN, _HEAD + _SIDE + 8), _axes(found), fill=FAINT, font=font(12))
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
