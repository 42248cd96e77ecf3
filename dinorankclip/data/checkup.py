"""Looks at pairs as a doctor would: sizes of parts and shards, damaged samples, captions that repeat or are cut."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tqdm import tqdm

from dinorankclip.config import CheckingSettings
from dinorankclip.data.damage import Damage, DamageCount
from dinorankclip.data.images import decode, read_header
from dinorankclip.data.opening import open_pairs, splits_of
from dinorankclip.data.pipes import PipeSource
from dinorankclip.data.shards import SHOWN_TARS
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.types import Finding, Source, UserError

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
