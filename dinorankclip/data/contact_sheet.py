"""Pairs to look at: a picture (PNG) or a page (HTML) of images with their captions."""

from __future__ import annotations

import base64
import html
import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from dinorankclip.data import draws as streams
from dinorankclip.data.damage import Damage, DamageCount
from dinorankclip.data.images import decode, read_header
from dinorankclip.types import Source

_SIDE, _MARGIN, _LINE, _LETTERS = 200, 10, 14, 34  # pixels; letters in a line of caption
_MOST_LINES = 7


@dataclass(frozen=True)
class Shown:
    key: str
    image: Image.Image
    captions: tuple[str, ...]


def choose(source: Source, count: int, seed: int, max_pixels: int) -> tuple[list[Shown], DamageCount]:
    """`count` random pairs, the same for the same seed; damaged ones are counted and passed over."""
    damage = DamageCount(max_damaged=1.0)
    shown: list[Shown] = []
    for index in streams.permutation(seed, 0, len(source)):
        if len(shown) == count:
            break
        try:
            raw = source.read(int(index))
            pixels = decode(raw.image, read_header(raw.image, max_pixels))
        except Damage as found:
            damage.add(0, [(source.key(int(index)), found.cause)])
            continue
        damage.add(1)
        shown.append(Shown(raw.key, _fitted(pixels), raw.captions))
    return shown, damage


def _fitted(pixels: np.ndarray) -> Image.Image:
    """The whole image at the size of a cell; small ones are enlarged in whole steps so that pixels stay sharp."""
    image = Image.fromarray(pixels)
    if max(image.size) <= _SIDE // 2:
        times = _SIDE // max(image.size)
        return image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    return ImageOps.contain(image, (_SIDE, _SIDE))


def as_png(shown: Sequence[Shown], path: Path) -> None:
    columns = max(1, min(6, round(len(shown) ** 0.5 * 1.2)))
    cell_width, cell_height = _SIDE + 2 * _MARGIN, _SIDE + 2 * _MARGIN + _MOST_LINES * _LINE
    rows = -(-len(shown) // columns)
    sheet = Image.new("RGB", (columns * cell_width, rows * cell_height), "white")
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=11)
    for place, pair in enumerate(shown):
        left = place % columns * cell_width + _MARGIN
        top = place // columns * cell_height + _MARGIN
        sheet.paste(pair.image, (left + (_SIDE - pair.image.width) // 2, top + (_SIDE - pair.image.height) // 2))
        for number, line in enumerate(_caption_lines(pair.captions)):
            pen.text((left, top + _SIDE + 4 + number * _LINE), line, fill="black", font=font)
    sheet.save(path)


def _caption_lines(captions: Sequence[str]) -> list[str]:
    """As many whole captions as fit; of a single long one its beginning."""
    lines: list[str] = []
    for caption in captions:
        more = textwrap.wrap(caption, _LETTERS, initial_indent="· ", subsequent_indent="  ")
        if lines and len(lines) + len(more) > _MOST_LINES:
            break
        lines += more
    return lines[:_MOST_LINES]


def as_html(shown: Sequence[Shown], path: Path, title: str) -> None:
    """One self-contained file. Keys and captions come from the data and are escaped."""
    cells = []
    for pair in shown:
        data = io.BytesIO()
        pair.image.save(data, "PNG")
        source = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode("ascii")
        lines = "".join(f"<li>{html.escape(caption)}</li>" for caption in pair.captions)
        key = html.escape(pair.key)
        cells.append(f'<figure><img src="{source}" alt="{key}"><figcaption>{key}<ul>{lines}</ul></figcaption></figure>')
    title = html.escape(title)
    style = (
        "body{font:14px sans-serif;display:flex;flex-wrap:wrap;gap:16px}h1{width:100%;font-size:18px}"
        "figure{width:220px;margin:0}figcaption{color:#777;font-size:12px;overflow-wrap:anywhere}"
        "ul{color:#000;font-size:14px;padding-left:1.1em;margin:.3em 0}"
    )
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{style}</style>'
        f"<h1>{title}</h1>\n" + "\n".join(cells) + "</html>\n"
    )
    path.write_text(page, encoding="utf-8", errors="replace")
