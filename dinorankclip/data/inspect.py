"""Shows pairs as a picture (`data show`) and examines data for problems (`doctor`)."""

from __future__ import annotations

import itertools
import statistics
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps
from tqdm import tqdm

from dinorankclip.config import CheckingSettings
from dinorankclip.data.damage import Damage, DamageCount
from dinorankclip.data.decode import decode, read_header
from dinorankclip.data.open_data import open_pairs, splits_of
from dinorankclip.data.samples import permutation
from dinorankclip.data.streams import is_stream
from dinorankclip.data.tar_shards import SHOWN_TARS
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.io import whole_file
from dinorankclip.types import Finding, RawSample, Source, UserError

_SIDE, _MARGIN, _LINE, _LETTERS, _MOST_LINES = 200, 10, 14, 34, 7  # pixels; letters and lines of a caption
MANY_REPEATS = 0.2  # share of captions that another image also has
UNEVEN = 3.0  # largest shard over the median one
FEW_PAIRS = 1000


@dataclass(frozen=True)
class ShownPair:
    key: str
    image: Image.Image
    captions: tuple[str, ...]


def choose(source: Source, count: int, seed: int, max_pixels: int) -> tuple[list[ShownPair], DamageCount]:
    """Choose `count` random pairs, the same for the same seed; count damaged pairs and pass over them."""
    damage = DamageCount(max_damaged=1.0)
    order = permutation(seed, 0, len(source)).tolist()
    pairs = itertools.islice(_decoded(source, order, max_pixels, damage), count)
    return [ShownPair(raw.key, _fitted(pixels), raw.captions) for raw, pixels in pairs], damage


def _decoded(
    source: Source, indices: Iterable[int], max_pixels: int, damage: DamageCount
) -> Iterator[tuple[RawSample, np.ndarray]]:
    """Yield pairs with their decoded images; count all of them, and leave out damaged ones."""
    for index in indices:
        try:
            raw = source.read(index)
            pixels = decode(raw.image, read_header(raw.image, max_pixels))
        except Damage as reason:
            damage.add(0, [(source.key(index), reason.cause)])
        else:
            damage.add(1)
            yield raw, pixels


def _fitted(pixels: np.ndarray) -> Image.Image:
    """Resize an image to the size of a cell; enlarge small images in whole steps so that pixels stay sharp."""
    image = Image.fromarray(pixels)
    if max(image.size) <= _SIDE // 2:
        times = _SIDE // max(image.size)
        return image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    return ImageOps.contain(image, (_SIDE, _SIDE))


def as_png(shown: Sequence[ShownPair], path: Path) -> None:
    columns = max(1, min(6, round(len(shown) ** 0.5 * 1.2)))
    cell_width, cell_height = _SIDE + 2 * _MARGIN, _SIDE + 2 * _MARGIN + _MOST_LINES * _LINE
    sheet = Image.new("RGB", (columns * cell_width, -(-len(shown) // columns) * cell_height), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=11)
    for place, pair in enumerate(shown):
        left, top = place % columns * cell_width + _MARGIN, place // columns * cell_height + _MARGIN
        sheet.paste(pair.image, (left + (_SIDE - pair.image.width) // 2, top + (_SIDE - pair.image.height) // 2))
        for number, line in enumerate(_caption_lines(pair.captions)):
            pen.text((left, top + _SIDE + 4 + number * _LINE), line, fill="black", font=font)
    with whole_file(path) as aside:
        sheet.save(aside, "PNG")


def _caption_lines(captions: Sequence[str]) -> list[str]:
    """Return as many whole captions as fit, or the beginning of a single long caption."""
    lines: list[str] = []
    for caption in captions:
        more = textwrap.wrap(caption, _LETTERS, initial_indent="· ", subsequent_indent="  ")
        if lines and len(lines) + len(more) > _MOST_LINES:
            break
        lines += more
    return lines[:_MOST_LINES]


def examine_data(where: str, reading: CheckingSettings, most: int) -> Iterator[Finding]:
    """Yield findings on every part of the data; decode at most `most` samples of each, spread evenly."""
    parts = splits_of(where, reading)
    errors: set[str] = set()
    for part in ("train", "val") if parts == ("all",) else parts:
        try:
            source = open_pairs(where, reading, part)
        except UserError as error:
            if str(error) not in errors:  # parts of one table fail for one reason
                yield Finding("problem", f"{part} cannot be opened: {error}")
            errors.add(str(error))
            continue
        if is_stream(source):
            yield Finding("note", f"{part}: a stream, which cannot be examined without reading it all")
            continue
        carved = " (carved from the rest)" if part == "val" and "val" not in parts else ""
        yield Finding("fine", f"{part}: {len(source)} images{carved}")
        if part == "train" and len(source) < FEW_PAIRS:
            advice = "train on frozen towers (train --recipe aligned), or start from trained weights (--init)"
            yield Finding("note", f"{len(source)} training images are few", advice)
        yield from _samples(part, source, most, reading)
    yield from _shards(where)


def _samples(part: str, source: Source, most: int, reading: CheckingSettings) -> Iterator[Finding]:
    chosen = np.unique(np.linspace(0, len(source) - 1, min(most, len(source))).astype(int)).tolist()
    damage = DamageCount(max_damaged=1.0)
    decoded = _decoded(source, tqdm(chosen, desc=part, unit="image", leave=False), reading.max_pixels, damage)
    examined = [(min(pixels.shape[:2]), raw.captions) for raw, pixels in decoded]
    if damage.keys:
        yield Finding(
            "problem" if damage.share > reading.max_damaged else "note",
            f"{part}: {len(damage.keys)} of {len(chosen)} examined samples are damaged:\n{damage.summary()}",
            "training replaces them; `dinorankclip data pack` writes a copy without them",
        )
    else:
        yield Finding("fine", f"{part}: all {len(chosen)} examined samples are readable")
    if examined:
        sides = [side for side, _ in examined]
        median = statistics.median(sides)
        yield Finding("fine", f"{part}: short sides {min(sides)} to {max(sides)} pixels, median {median:.0f}")
        yield from _captions(part, [captions for _, captions in examined])


def _captions(part: str, captions: list[tuple[str, ...]]) -> Iterator[Finding]:
    texts = [text for group in captions for text in group]
    folded = [[" ".join(text.lower().split()) for text in group] for group in captions]
    images_with = Counter(words for group in folded for words in set(group))
    repeated = sum(images_with[words] > 1 for group in folded for words in group) / len(texts)
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
            "equal captions are no wrong answers of each other, but teach less; remove boilerplate, or enrich captions",
        )
    if cut:
        yield Finding("note", f"{part}: {cut} captions are longer than the context and lose their end")


def _shards(where: str) -> Iterator[Finding]:
    folder = Path(where)
    for part in [folder, *sorted(p for p in folder.iterdir() if p.is_dir())] if folder.is_dir() else ():
        sizes = [shard.stat().st_size for shard in sorted(part.glob(SHOWN_TARS))]
        if len(sizes) > 1 and max(sizes) > UNEVEN * statistics.median(sizes):
            yield Finding("note", f"{part}: shards differ a lot in size (largest {max(sizes) / 1e6:.0f} MB)")
