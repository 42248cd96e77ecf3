"""Pairs to look at: a picture (PNG) or a page (HTML) of images with their captions."""

from __future__ import annotations

import base64
import html
import io
import statistics
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps
from tqdm import tqdm

from dinorankclip import seeds as streams
from dinorankclip.config import CheckingSettings
from dinorankclip.data.damage import Damage, DamageCount
from dinorankclip.data.decode import decode, read_header
from dinorankclip.data.open_data import open_pairs, splits_of
from dinorankclip.data.streams import PipeSource
from dinorankclip.data.tar_shards import SHOWN_TARS
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.types import Finding, Source, UserError

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


# -------- checkup
# Looks at pairs as a doctor would: sizes of parts and shards, damaged samples, captions that repeat or are cut.

MANY_REPEATS = 0.2  # share of captions that another image also has
UNEVEN = 3.0  # largest shard over the median one
FEW_PAIRS = 1000


def examine_data(where: str, reading: CheckingSettings, most: int) -> Iterator[Finding]:
    """Findings on every part of the data; at most `most` samples of each are decoded, spread evenly."""
    parts = splits_of(where, reading)
    for part in ("train", "val") if parts == ("all",) else parts:
        try:
            source = open_pairs(where, reading, part)
        except UserError as error:
            yield Finding("problem", f"{part} cannot be opened: {error}")
            continue
        if isinstance(source, PipeSource):
            yield Finding("note", f"{part}: a stream, which cannot be examined without reading it all")
            continue
        carved = " (carved from the rest)" if part == "val" and "val" not in parts else ""
        yield Finding("fine", f"{part}: {len(source)} images{carved}")
        if part == "train" and len(source) < FEW_PAIRS:
            yield Finding("note", f"{len(source)} training images are few", "start from trained weights: train --init")
        yield from _samples(part, source, most, reading)
    yield from _shards(where)


def _samples(part: str, source: Source, most: int, reading: CheckingSettings) -> Iterator[Finding]:
    chosen = np.unique(np.linspace(0, len(source) - 1, min(most, len(source))).astype(int)).tolist()
    damage = DamageCount(max_damaged=1.0)
    captions: list[tuple[str, ...]] = []
    sides = []
    for index in tqdm(chosen, desc=part, unit="image", leave=False):
        try:
            raw = source.read(index)
            pixels = decode(raw.image, read_header(raw.image, reading.max_pixels))
            sides.append(min(pixels.shape[:2]))
            captions.append(raw.captions)
            damage.add(1)
        except Damage as found:
            damage.add(0, [(source.key(index), found.cause)])
    if damage.keys:
        yield Finding(
            "problem" if damage.share > reading.max_damaged else "note",
            f"{part}: {len(damage.keys)} of {len(chosen)} examined samples are damaged:\n{damage.summary()}",
            "training replaces them; `dinorankclip data pack` writes a copy without them",
        )
    else:
        yield Finding("fine", f"{part}: all {len(chosen)} examined samples are readable")
    if sides:
        yield Finding(
            "fine", f"{part}: short sides {min(sides)} to {max(sides)} pixels, median {statistics.median(sides):.0f}"
        )
        yield from _captions(part, captions)


def _captions(part: str, captions: list[tuple[str, ...]]) -> Iterator[Finding]:
    texts = [text for group in captions for text in group]
    images_with = Counter(words for group in captions for words in {" ".join(t.lower().split()) for t in group})
    repeated = sum(images_with[" ".join(text.lower().split())] > 1 for text in texts) / len(texts)
    tokenizer = Tokenizer()
    lengths = [tokenizer.whole_length(text) for text in texts]
    cut = sum(length > tokenizer.spec.context_length for length in lengths)
    yield Finding(
        "fine",
        f"{part}: {len(texts) / len(captions):.1f} captions an image, {statistics.mean(lengths):.1f} tokens on "
        f"average, {max(lengths)} at most",
    )
    if repeated > MANY_REPEATS:
        common = ", ".join(f"'{words}' ({count}×)" for words, count in images_with.most_common(3))
        yield Finding(
            "note",
            f"{part}: {repeated:.0%} of captions stand at several images: {common}",
            "contrast treats equal captions as wrong answers; remove boilerplate, or enrich captions",
        )
    if cut:
        yield Finding("note", f"{part}: {cut} captions are longer than the context and lose their end")


def _shards(where: str) -> Iterator[Finding]:
    folder = Path(where)
    if not folder.is_dir():
        return
    for part in [folder, *sorted(p for p in folder.iterdir() if p.is_dir())]:
        sizes = [shard.stat().st_size for shard in sorted(part.glob(SHOWN_TARS))]
        if len(sizes) > 1 and max(sizes) > UNEVEN * statistics.median(sizes):
            yield Finding("note", f"{part}: shards differ a lot in size (largest {max(sizes) / 1e6:.0f} MB)")
