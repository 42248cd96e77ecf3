"""Finds photos that appear in two parts of a data set: the same file, re-encoded, resized or slightly changed.

A photo of the test part that the model was trained on makes its score too good. Two photos count as the same if their
perceptual hashes differ in few bits and their thumbnails in few grey levels: the hash alone mixes up plain pictures.
Crops, mirrored copies and copies of another brightness are not found. Between the parts of Flickr8k, 6,000 + 1,000 +
1,000 photos, nothing is found; of 100 copies each, re-encoded at quality 30 or resized to two thirds, all are found.

Shapes: N, M photos of two parts; H, W sides of an image in pixels.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from dinorankclip.data.damage import Damage, DamageCount
from dinorankclip.data.decode import MAX_PIXELS, decode, read_header
from dinorankclip.types import ImageSource

SIDE, LOW, THUMB = 32, 8, 16  # pixels of the picture that is hashed; frequencies kept; side of a thumbnail
MOST_BITS = 8  # of 64 that may differ
MOST_GREY = 8.0  # mean difference of thumbnails, of 255
PHOTOS_AT_ONCE = 2048
DECODED = (2 * SIDE, 2 * SIDE)  # a JPEG is decoded at a smaller scale that has at least this many pixels


def cosine_table(side: int, low: int) -> np.ndarray:
    """Return the first rows of the DCT-II matrix, [low, side]: C[u, x] = cos(π (2x+1) u / (2 side))."""
    u, x = np.arange(low)[:, None], np.arange(side)[None, :]
    return np.cos(np.pi * (2 * x + 1) * u / (2 * side))


def perceptual_hash(pixels: np.ndarray) -> np.ndarray:
    """Return 64 bits, bool [64], of an image, uint8 [H, W, 3].

    F[u, v] = Σ_x Σ_y C[u, x] C[v, y] g[x, y] of the grey picture g at 32×32 pixels, for u, v < 8; a bit tells whether
    F[u, v] is above the median of all F. Scale, contrast and compression hardly change the order of the F.

    As loops:
        for u in range(8): for v in range(8):
            F[u][v] = sum(C[u][x] * C[v][y] * g[x][y] for x in range(32) for y in range(32))
        bits = [F[u][v] > median(F) for u in range(8) for v in range(8)]
    """
    grey = Image.fromarray(pixels).convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    table = cosine_table(SIDE, LOW)
    frequencies = table @ np.asarray(grey, np.float64) @ table.T
    return (frequencies > np.median(frequencies)).ravel()


def thumbnail(pixels: np.ndarray) -> np.ndarray:
    """Return an image at 16×16 pixels, uint8 [768]."""
    return np.asarray(Image.fromarray(pixels).resize((THUMB, THUMB), Image.Resampling.BOX)).ravel()


@dataclass(frozen=True)
class Looks:
    """Holds hashes, bool [N, 64], and thumbnails, uint8 [N, 768], of the usable photos of a part, with their keys."""

    keys: list[str]
    hashes: np.ndarray
    thumbnails: np.ndarray
    damage: DamageCount


def looks_of(
    source: ImageSource, max_pixels: int = MAX_PIXELS, progress: Callable[[int], Any] = lambda count: None
) -> Looks:
    """Look at every photo of a part; damaged photos are counted and left out."""

    def look(index: int) -> tuple[np.ndarray, np.ndarray] | str:
        try:
            data = source.image(index)
            pixels = decode(data, read_header(data, max_pixels), least=DECODED)
            return perceptual_hash(pixels), thumbnail(pixels)
        except Damage as damage:
            return damage.cause

    keys, hashes, thumbnails = [], [np.empty((0, LOW * LOW), bool)], [np.empty((0, 3 * THUMB**2), np.uint8)]
    count = DamageCount(max_damaged=1.0)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for index, seen in enumerate(pool.map(look, range(len(source)))):
            progress(1)
            if isinstance(seen, str):
                count.add(0, [(source.key(index), seen)])
                continue
            count.add(1)
            keys.append(source.key(index))
            hashes.append(seen[0][None])
            thumbnails.append(seen[1][None])
    return Looks(keys, np.concatenate(hashes), np.concatenate(thumbnails), count)


@dataclass(frozen=True)
class Duplicate:
    """Names two photos that look the same; `bits` of their hashes and `grey` levels of their thumbnails differ."""

    key: str
    other: str
    bits: int
    grey: float


def duplicates(first: Looks, second: Looks) -> Iterator[Duplicate]:
    """Yield the photos of `second` that look like a photo of `first`, each with the nearest.

    The number of different bits of two hashes a, b with entries ±1 is (64 - a·b) / 2, so a product of matrices
    compares all of them.
    """
    if not first.keys:
        return
    signs = np.where(first.hashes, 1, -1).astype(np.float32)
    for start in range(0, len(second.keys), PHOTOS_AT_ONCE):
        block = np.where(second.hashes[start : start + PHOTOS_AT_ONCE], 1, -1).astype(np.float32)
        bits = (signs.shape[1] - block @ signs.T) / 2
        for row in range(len(block)):
            candidates = np.flatnonzero(bits[row] <= MOST_BITS)
            if not len(candidates):
                continue
            own = second.thumbnails[start + row].astype(np.int16)
            grey = np.abs(first.thumbnails[candidates].astype(np.int16) - own).mean(1)
            best = int(grey.argmin())
            if grey[best] <= MOST_GREY:
                place = candidates[best]
                yield Duplicate(second.keys[start + row], first.keys[place], int(bits[row, place]), float(grey[best]))


def groups_within(looks: Looks) -> list[list[int]]:
    """Return groups of photos of one part that look the same, by the rules of `duplicates`: places among `looks.keys`.

    Two photos are in one group if a chain of like pairs joins them. The first photo of a group is its earliest.
    """
    signs = np.where(looks.hashes, 1, -1).astype(np.float32)
    leader = np.arange(len(looks.keys))
    for start in range(0, len(leader), PHOTOS_AT_ONCE):
        bits = (signs.shape[1] - signs[start : start + PHOTOS_AT_ONCE] @ signs.T) / 2
        for row, column in np.argwhere(bits <= MOST_BITS):
            one, other = start + int(row), int(column)
            if other >= one:
                continue
            grey = np.abs(looks.thumbnails[one].astype(np.int16) - looks.thumbnails[other].astype(np.int16)).mean()
            if grey <= MOST_GREY:
                _join(leader, one, other)
    groups: dict[int, list[int]] = {}
    for place in range(len(leader)):
        groups.setdefault(_leader_of(leader, place), []).append(place)
    return [group for group in groups.values() if len(group) > 1]


def _leader_of(leader: np.ndarray, place: int) -> int:
    while leader[place] != place:
        place = int(leader[place])
    return place


def _join(leader: np.ndarray, one: int, other: int) -> None:
    first, second = sorted((_leader_of(leader, one), _leader_of(leader, other)))
    leader[second] = first
