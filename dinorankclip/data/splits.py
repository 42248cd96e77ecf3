"""Divides a source: the cuts that set validation images aside when the data comes without a validation part (`carve`
for pairs, `carve_validation` for labelled images), and the choice of a few training images (`reading.train_items`).

The cut depends on the data alone (not on the seed of a run): images, or groups of them, with the smallest hashes
of their names are set aside. The same photo may be stored under two names; training images whose bytes equal a
validation image's are left out of both parts, so no image that is scored was trained on.
The choice goes by other hashes, so that it is the same for every seed and a smaller choice is part of a larger one.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from functools import partial

import numpy as np

from dinorankclip import io
from dinorankclip.config import FindingSettings
from dinorankclip.data.damage import Damage
from dinorankclip.data.remote import side_by_side
from dinorankclip.io import digest, one_at_a_time
from dinorankclip.types import Grouped, RawSample, Source, UserError

log = logging.getLogger(__name__)


class SplitPart(Source):
    """Selects samples of a source, in their order. `chosen_from` is the number of samples that `choose` chose from."""

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


def undivided(source: Source) -> Source:
    """Return the source that a part was taken from; any other source is undivided itself."""
    return source.source if isinstance(source, SplitPart) else source


def is_remote(source: Source) -> bool:
    """Return whether samples come over a network, so that several should be asked for at once."""
    return getattr(undivided(source), "is_remote", False)


def group_of(source: Source, index: int) -> str | None:
    """Return the group of a sample; None if its data has no groups."""
    if isinstance(source, SplitPart):
        return group_of(source.source, int(source.indices[index]))
    return source.group(index) if isinstance(source, Grouped) else None


def chosen_among(source: Source) -> int:
    """Count the samples that these were chosen from (`reading.train_items`); without a choice, these samples."""
    return (isinstance(source, SplitPart) and source.chosen_from) or len(source)


def carve(source: Source, reading: FindingSettings) -> tuple[SplitPart, SplitPart]:
    """Return (training part, validation part) of a source without a validation part of its own."""
    if reading.group_column and not isinstance(source, Grouped):
        raise UserError(
            f"--reading.group-column {reading.group_column}: only tables (.csv, .tsv, .parquet) have columns, and this "
            "data is no table; without groups, leave it out"
        )
    name = digest("cut", 1, source.fingerprint, reading.val_fraction, reading.val_most, reading.group_column or "")
    if (cut := io.load_table(name)) is None:
        with one_at_a_time("cut", io.INDEX_FOLDER):
            cut = io.load_table(name) or _cut(source, reading)
            io.save_table(name, cut)
    return SplitPart(source, cut["train"]), SplitPart(source, cut["val"])


def choose(train: Source, items: int, short_epochs: bool = False) -> SplitPart:
    """Choose the `items` training images with the smallest hashes. Choosing from a part gives a part of its source.

    An epoch keeps the length of `train`; with `short_epochs` it has the length of the choice.
    """
    if not 0 < items <= len(train):
        raise UserError(f"--reading.train-items {items}: the training part has {len(train)} images to choose from")
    order = sorted(range(len(train)), key=lambda index: name_hash(f"train item {train.key(index)}"))
    chosen = np.sort(np.array(order[:items], dtype=np.int64))
    indices = train.indices[chosen] if isinstance(train, SplitPart) else chosen
    return SplitPart(undivided(train), indices, None if short_epochs else len(train))


def _cut(source: Source, reading: FindingSettings) -> dict[str, np.ndarray]:
    groups: dict[str, list[int]] = {}
    for index in range(len(source)):
        group = group_of(source, index)
        groups.setdefault(source.key(index) if group is None else group, []).append(index)
    most = min(reading.val_most, max(1, round(reading.val_fraction * len(source))))
    if len(groups) < 2:
        found = f"{len(source)} images in {len(groups)} group"
        raise UserError(f"{found} cannot be divided into training and validation parts")
    chosen: list[int] = []
    for group in sorted(groups, key=name_hash)[: len(groups) - 1]:  # at least one group is left to train on
        if chosen and len(chosen) + len(groups[group]) > most:
            break
        chosen += groups[group]
    val = np.sort(np.array(chosen, dtype=np.int64))
    train = np.setdiff1d(np.arange(len(source)), val)
    if len(copies := _same_bytes(source, val, train)):
        log.warning("%d training images are copies of validation images and are left out", len(copies))
        train = np.setdiff1d(train, copies)
    return {"train": train, "val": val}


def carve_validation(keys: Sequence[str], labels: np.ndarray, fraction: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    """Return positions (train, val) of a training part; val gets the images of each class with the smallest key hashes.

    A class of one image keeps it for training; any other class gives at least one image and keeps at least one.
    """
    places: dict[int, list[int]] = {}
    for at in sorted(range(len(keys)), key=lambda at: name_hash(keys[at])):
        places.setdefault(int(labels[at]), []).append(at)
    counts = {label: min(len(some) - 1, max(1, round(fraction * len(some)))) for label, some in places.items()}
    val = np.sort(np.array([at for label, some in places.items() for at in some[: counts[label]]], dtype=np.int64))
    return np.setdiff1d(np.arange(len(keys)), val), val


def name_hash(name: str) -> bytes:
    """Return a hash that puts names in a random order, the same on every machine."""
    return hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()


def _same_bytes(source: Source, val: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Return the training images whose bytes equal a validation image's; read only those of equal lengths."""
    sizes = source.sizes()
    candidates = train[np.isin(sizes[train], sizes[val]) & (sizes[train] > 0)]
    against = val[np.isin(sizes[val], sizes[candidates])]
    over = side_by_side if is_remote(source) else map
    known = {content for content in over(partial(_content, source), against) if content}
    same = [content in known for content in over(partial(_content, source), candidates)]
    return candidates[np.array(same, dtype=bool)]


def _content(source: Source, index: int) -> bytes | None:
    try:
        return hashlib.blake2b(source.image(int(index)), digest_size=16).digest()
    except Damage:
        return None
