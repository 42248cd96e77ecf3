"""A part of a source, the cut that sets validation images aside when the data comes without a validation part, and the
choice of a few training images (`reading.train_items`).

The cut depends on the data alone (not on the seed of a run): images, or groups of them, with the smallest hashes
of their names are set aside. The same photo may be stored under two names; training images whose bytes equal a
validation image's are left out of both parts, so nothing that is scored was trained on.

The choice goes by hashes too, other ones, so that it is the same for every seed and a smaller one is part of a larger.
"""

from __future__ import annotations

import hashlib
import logging

import numpy as np

from dinorankclip import io
from dinorankclip.config import FindingSettings
from dinorankclip.data.damage import Damage
from dinorankclip.io import digest, one_at_a_time
from dinorankclip.types import Grouped, RawSample, Source, UserError

log = logging.getLogger(__name__)


class Part:
    """Some samples of a source, in their order. `chosen_from`: how many there were, if they are a mere choice."""

    def __init__(self, source: Source, indices: np.ndarray, chosen_from: int | None = None) -> None:
        self.source, self.chosen_from = source, chosen_from
        self.indices = np.asarray(indices, dtype=np.int64)
        self.fingerprint = digest("part", source.fingerprint, self.indices.tobytes())

    def __len__(self) -> int:
        return len(self.indices)

    def key(self, index: int) -> str:
        return self.source.key(int(self.indices[index]))

    def captions(self, index: int) -> tuple[str, ...]:
        return self.source.captions(int(self.indices[index]))

    def image(self, index: int) -> bytes:
        return self.source.image(int(self.indices[index]))

    def stamps(self) -> np.ndarray:
        return self.source.stamps()[self.indices]

    def sizes(self) -> np.ndarray:
        return self.source.sizes()[self.indices]

    def read(self, index: int) -> RawSample:
        return self.source.read(int(self.indices[index]))


def whole(source: Source) -> Source:
    """What a part was taken from; a source that is no part is whole."""
    return source.source if isinstance(source, Part) else source


def chosen_among(source: Source) -> int:
    """Among how many samples these were chosen (`reading.train_items`); without a choice, their own number."""
    chosen_from = source.chosen_from if isinstance(source, Part) else None
    return chosen_from or len(source)


def carve(source: Source, reading: FindingSettings) -> tuple[Part, Part]:
    """(training part, validation part) of a source without a validation part of its own."""
    if reading.group_column and not isinstance(source, Grouped):
        raise UserError(
            f"--reading.group-column {reading.group_column}: only tables (.csv, .tsv, .parquet) have columns, and this "
            "data is no table; without groups, leave it out"
        )
    name = digest("cut", 1, source.fingerprint, reading.val_fraction, reading.val_most, reading.group_column or "")
    cut = io.load_table(name)
    if cut is None:
        with one_at_a_time("cut", io.INDEX_FOLDER):
            cut = io.load_table(name) or _cut(source, reading)
            io.save_table(name, cut)
    return Part(source, cut["train"]), Part(source, cut["val"])


def choose(train: Source, items: int) -> Part:
    """`items` of the training images: those with the smallest hashes. They are a part of what `train` is a part of."""
    if not 0 < items <= len(train):
        raise UserError(f"--reading.train-items {items}: the training part has {len(train)} images to choose from")
    order = sorted(range(len(train)), key=lambda index: name_hash(f"train item {train.key(index)}"))
    chosen = np.sort(np.array(order[:items], dtype=np.int64))
    if isinstance(train, Part):
        return Part(train.source, train.indices[chosen], len(train))
    return Part(train, chosen, len(train))


def _cut(source: Source, reading: FindingSettings) -> dict[str, np.ndarray]:
    group_of = source.group if isinstance(source, Grouped) else source.key
    groups: dict[str, list[int]] = {}
    for index in range(len(source)):
        groups.setdefault(group_of(index), []).append(index)
    wanted = min(reading.val_most, max(1, round(reading.val_fraction * len(source))))
    if len(groups) < 2:
        raise UserError(
            f"{len(source)} images in {len(groups)} group cannot be divided into training and validation parts"
        )
    chosen: list[int] = []
    for group in sorted(groups, key=name_hash)[: len(groups) - 1]:  # at least one group is left to train on
        if chosen and len(chosen) + len(groups[group]) > wanted:
            break
        chosen += groups[group]
    val = np.sort(np.array(chosen, dtype=np.int64))
    train = np.setdiff1d(np.arange(len(source)), val)
    doubles = _same_bytes(source, val, train)
    if len(doubles):
        log.warning("%d training images are copies of validation images and are left out", len(doubles))
        train = np.setdiff1d(train, doubles)
    return {"train": train, "val": val}


def name_hash(name: str) -> bytes:
    """What orders names at random, the same on every machine."""
    return hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()


def _same_bytes(source: Source, val: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Training images that are stored byte for byte like a validation image.

    Only those of the same length as some validation image are read: a few per cent.
    """
    sizes = source.sizes()
    candidates = train[np.isin(sizes[train], sizes[val]) & (sizes[train] > 0)]
    if not len(candidates):
        return candidates
    against = val[np.isin(sizes[val], sizes[candidates])]
    known = {content for index in against if (content := _content(source, int(index)))}
    return np.array([index for index in candidates if _content(source, int(index)) in known], dtype=np.int64)


def _content(source: Source, index: int) -> bytes | None:
    try:
        return hashlib.blake2b(source.image(index), digest_size=16).digest()
    except Damage:
        return None
