"""Computes the teacher features of a whole data set once and writes them to a cache. In order:

1. The plan names teachers, data and coding. A folder belongs to one plan.
2. If tokens are stored, the leading process fits their PCA on a fixed sample of the images of the first part.
3. Images are dealt out in shards of 2048, in the order of the data, to whoever is free (room `pieces`).
   The bytes of a shard depend on its images and the teacher alone. A killed extraction that is resumed, on any number
   of processes, therefore ends with the same bytes. Finished shards are not made again.
4. Captions follow in the same way: each different caption once, in the order of first appearance.
5. The leading process writes the keys, and the manifest last.

The teacher receives the whole image, squeezed to its square, because crops are taken from its features (D19).
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file
from safetensors.torch import save
from torch import Tensor

from dinorankclip import distributed
from dinorankclip.data.damage import Damage, refuse_transient
from dinorankclip.data.decode import MAX_PIXELS
from dinorankclip.data.samples import permutation
from dinorankclip.io import digest, write_bytes
from dinorankclip.pieces.account import Account
from dinorankclip.pieces.contract import HERE, Pieces, Progress, Where, Work
from dinorankclip.pieces.run import make_pieces
from dinorankclip.teachers import cache_format
from dinorankclip.teachers.cache_format import IMAGE_BASIS, REDUCED, TEXT_BASIS, CacheLayout, ImageRecord, TextRecord
from dinorankclip.teachers.frozen_teacher import Teacher, TextTeacher, whole_images
from dinorankclip.teachers.text_teachers import pool_words
from dinorankclip.types import Source, UserError

BATCH = 64  # images or captions that a teacher receives at once
FIT_IMAGES, FIT_CAPTIONS = 1024, 4096  # sample sizes for fitting the PCA
HELD_OUT = ("val", "test")


def make_cache(
    folder: str | Path,
    parts: dict[str, Source],
    teacher: Teacher,
    text_teacher: TextTeacher | None = None,
    layout: CacheLayout | None = None,
    max_pixels: int = MAX_PIXELS,
    show: bool = True,
) -> dict[str, Any]:
    """Make (or finish) the cache of undivided sources by part, and return the manifest. All processes must call it."""
    builder = CacheBuilder(Path(folder), parts, teacher, text_teacher, layout or CacheLayout(), max_pixels, show)
    return builder.finished(HERE, None)


@dataclass
class CacheBuilder(Pieces):
    """Makes the shards of a cache as pieces of work: images part by part, then captions."""

    folder: Path
    parts: dict[str, Source]
    teacher: Teacher
    text_teacher: TextTeacher | None
    layout: CacheLayout
    max_pixels: int = MAX_PIXELS
    show: bool = True

    unit = "item"
    account = Account()

    def __post_init__(self) -> None:
        self.world, self.title = distributed.world(), f"{self.folder.name}: features"
        self.layout = self.layout.as_begun(self.folder)
        self.plan = self._plan()
        self.identity = digest(json.dumps(self.plan, sort_keys=True))

    @cached_property
    def _shards(self) -> list[tuple[str, int, range]]:
        """Return part, number and items of every shard."""
        items = {part: (len(source), self.layout.rows) for part, source in self.parts.items()}
        if self.text_teacher is not None:
            items[cache_format.TEXT] = len(self._captions), self.layout.captions
        return [
            (part, number, range(number * size, min(count, (number + 1) * size)))
            for part, (count, size) in items.items()
            for number in range(cache_format.shard_count(count, size))
        ]

    @cached_property
    def sizes(self) -> list[int]:
        return [len(places) for _, _, places in self._shards]

    def finished(self, where: Where, work: Work | None) -> dict[str, Any]:
        """Make (or finish) the cache, and return its manifest. All processes must call it."""
        distributed.leader_first(lambda: cache_format.claim(self.folder, self.plan))
        if (self.folder / cache_format.MANIFEST).is_file():
            manifest = cache_format.read_manifest(self.folder)
            self.say(f"{self.folder} is complete already")
            return manifest
        try:
            self.account = make_pieces(self, where, work, self.folder, self.show)
        except KeyboardInterrupt:
            self.say(f"\nstopped: what is finished stays in {self.folder}; the same command goes on from there")
            raise
        distributed.leader_first(self.finish)
        return cache_format.read_manifest(self.folder)

    def missing(self) -> list[int]:
        there = set(os.listdir(self.folder))
        names = enumerate(cache_format.shard_name(part, number) for part, number, _ in self._shards)
        return [place for place, name in names if name not in there]

    def make(self, number: int, progress: Progress) -> None:
        part, shard, places = self._shards[number]
        write = self._write_captions if part == cache_format.TEXT else self._write_images
        write(part, shard, places, progress)

    def say(self, text: str) -> None:
        if self.show and self.world.leads:
            print(text, flush=True)

    def _plan(self) -> dict[str, Any]:
        teacher, size = self.teacher, self.teacher.input_size
        blank = teacher.dense(torch.zeros(1, 3, size, size, dtype=torch.uint8))
        width = blank.tokens.shape[-1]
        preprocessing = dataclasses.asdict(teacher.preprocessing)
        plan: dict[str, Any] = {
            "format": cache_format.FORMAT,
            "teacher": teacher.name,
            "note": teacher.card.note,
            "weights": teacher.weights_hash,
            "preprocessing": {name: list(v) if isinstance(v, tuple) else v for name, v in preprocessing.items()},
            "grid": list(teacher.grid),
            "width": width,
            "summary_width": blank.summary.shape[-1],
            "reduced": min(REDUCED, width),
            **dataclasses.asdict(self.layout),
            "data": {
                part: {"fingerprint": source.fingerprint, "images": len(source)} for part, source in self.parts.items()
            },
            "text": None,
        }
        if self.max_pixels != MAX_PIXELS:  # else left out, so that caches made without this entry stay valid
            plan["max_pixels"] = self.max_pixels
        if self.text_teacher is not None:
            blank_text = self.text_teacher.tokens(["a photo"])
            plan["text"] = {
                "teacher": self.text_teacher.name,
                "note": self.text_teacher.card.note,
                "weights": self.text_teacher.weights_hash,
                "summary_width": blank_text.summary.shape[-1],
                "reduced": min(REDUCED, blank_text.tokens.shape[-1]),
            }
        return plan

    def prepare(self) -> None:
        """Fit the PCA of tokens on images and captions whose choice depends on the data alone."""
        path = self.folder / cache_format.BASIS
        if self.layout.keep == "gram" or path.exists():
            return
        source = next(iter(self.parts.values()))
        chosen = np.sort(permutation(0, 0, len(source))[:FIT_IMAGES])
        self.say(f"fitting the PCA of tokens on {len(chosen)} images")
        tokens = (
            self.teacher.dense(torch.stack(images)).tokens.flatten(0, 1).cpu()
            for images in _batches(image for image in self._read_images(source, chosen) if image is not None)
        )
        bases = {IMAGE_BASIS: fit_basis(tokens)}
        if self.text_teacher is not None:
            chosen = np.sort(permutation(0, 1, len(self._captions))[:FIT_CAPTIONS])
            bases[TEXT_BASIS] = fit_basis(_words(self.text_teacher, [self._captions[i] for i in chosen]))
        write_bytes(path, save(bases))

    @cached_property
    def _bases(self) -> dict[str, np.ndarray]:
        return {} if self.layout.keep == "gram" else _read_bases(self.folder / cache_format.BASIS)

    def _write_images(self, part: str, shard: int, places: range, progress: Progress) -> None:
        record = cache_format.image_record(self.plan)
        data = np.zeros((len(places), record.bytes), np.uint8)
        batch: dict[int, Tensor] = {}  # row → image
        for row, image in enumerate(self._read_images(self.parts[part], places)):
            if image is not None:
                batch[row] = image
            if batch and (len(batch) == BATCH or row == len(places) - 1):
                data[list(batch)] = self._encode(record, torch.stack([*batch.values()]))
                batch = {}
            progress(1)
        write_bytes(self.folder / cache_format.shard_name(part, shard), data.tobytes())

    def _read_images(self, source: Source, indices: Sequence[int] | np.ndarray) -> Iterator[Tensor | None]:
        return whole_images(source, indices, self.teacher.preprocessing, self.max_pixels, ahead=2 * BATCH)

    def _encode(self, record: ImageRecord, images: Tensor) -> np.ndarray:
        features = self.teacher.dense(images)
        tokens = features.tokens.cpu().numpy()
        values = {"summary": features.summary.cpu().numpy(), "gram": tokens}
        if IMAGE_BASIS in self._bases:
            values["tokens"] = (tokens @ self._bases[IMAGE_BASIS].T).reshape(len(tokens), -1)
        return record.encode(**values)

    def _write_captions(self, part: str, shard: int, places: range, progress: Progress) -> None:
        assert self.text_teacher is not None
        chunk, record = self._captions[places.start : places.stop], cache_format.text_record(self.plan)
        data, offsets = encode_captions(chunk, self.text_teacher, record, self._bases.get(TEXT_BASIS), progress)
        self._write_array(cache_format.offsets_name(shard), offsets)
        write_bytes(self.folder / cache_format.shard_name(part, shard), data)

    @cached_property
    def _captions(self) -> list[str]:
        """Return each different caption once, in the order of first appearance.

        Held-out parts contribute the first caption of an image: fidelity, their only reader, uses no other.
        """
        captions: dict[str, None] = {}
        for part, source in self.parts.items():
            most = 1 if part in HELD_OUT else None
            for index in range(len(source)):
                try:
                    captions.update(dict.fromkeys(source.captions(index)[:most]))
                except Damage as damage:
                    refuse_transient([(source.key(index), damage.cause)])
        return list(captions)

    def finish(self) -> None:
        """Write the keys and the manifest."""
        for part, source in self.parts.items():
            self._write_keys(part, cache_format.hashes(source.key(index) for index in range(len(source))))
        licences = {"image": self.teacher.licence}
        if self.text_teacher is not None:
            self._write_keys(cache_format.TEXT, cache_format.hashes(self._captions))
            licences["text"] = self.text_teacher.licence
        damaged = sum(self._count_damaged(part, cache_format.image_record(self.plan).bytes) for part in self.parts)
        manifest = cache_format.finish(self.folder, self.plan, damaged, licences)
        size = sum(manifest["files"].values())
        without = f", {damaged} damaged ones left out" if damaged else ""
        self.say(f"{self.folder}: {sum(map(len, self.parts.values()))} images{without}, {size / 1e6:.1f} MB")

    def _write_keys(self, part: str, keys: np.ndarray) -> None:
        if len(np.unique(keys)) != len(keys):
            raise UserError(f"two samples of '{part}' have the same key: a cache finds features by key")
        self._write_array(cache_format.keys_name(part), keys)

    def _write_array(self, name: str, array: np.ndarray) -> None:
        buffer = io.BytesIO()
        np.save(buffer, array)
        write_bytes(self.folder / name, buffer.getvalue())

    def _count_damaged(self, part: str, size: int) -> int:
        shards = range(cache_format.shard_count(len(self.parts[part]), self.layout.rows))
        files = (np.memmap(self.folder / cache_format.shard_name(part, number), np.uint8, "r") for number in shards)
        return sum(int((file[::size] == 0).sum()) for file in files)


def _read_bases(path: Path) -> dict[str, np.ndarray]:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged ({error}): delete the folder of the cache and make it again") from error


def encode_captions(
    captions: Sequence[str], teacher: TextTeacher, record: TextRecord, basis: np.ndarray | None, progress: Progress
) -> tuple[bytes, np.ndarray]:
    """Return all records, one after the other, and their offsets, the end included: int64 [N + 1].

    Captions of similar length go through the teacher together; batches depend on `captions` alone.
    """
    records: list[bytes] = [b""] * len(captions)
    by_length = sorted(range(len(captions)), key=lambda i: (len(captions[i]), i))
    for batch in _batches(by_length):
        features = teacher.tokens([captions[i] for i in batch])
        pooled, exists = (tensor.cpu().numpy() for tensor in pool_words(features.tokens, features.word_ids))
        summaries = features.summary.cpu().numpy()
        counts = np.array([int(row.nonzero()[0].max(initial=-1)) + 1 for row in exists])
        for count in np.unique(counts):  # captions of as many words are coded together
            rows = np.flatnonzero(counts == count)
            words = pooled[rows, :count]
            reduced = None if basis is None else words @ basis.T
            for row, data in zip(rows, record.encode(words, reduced, summaries[rows])):
                records[batch[row]] = data
        progress(len(batch))
    return b"".join(records), np.cumsum([0, *map(len, records)], dtype=np.int64)


def fit_basis(batches: Iterable[Tensor], most: int = REDUCED) -> Tensor:
    """Fit a PCA to batches of tokens [n, C]: orthonormal rows [min(most, C), C], the strongest direction first.

    The PCA is not centred. Cosines would need the mean added back, and crops, flips and averages of tokens stay plain
    linear functions of what is stored.
    """
    moments = (tokens.T @ tokens for tokens in (batch.double() for batch in batches))
    first = next(moments, None)
    if first is None:
        raise ValueError("no tokens to fit a basis to")
    basis = torch.linalg.eigh(sum(moments, first)).eigenvectors.T.flip(0)[:most]
    # The sign of a direction is arbitrary: make its largest entry positive, so that a basis is reproducible.
    largest = basis.gather(1, basis.abs().argmax(1, keepdim=True))
    return (basis * largest.sign()).float().contiguous()


def _batches(items: Iterable[Any]) -> Iterator[list[Any]]:
    items = iter(items)
    while batch := list(itertools.islice(items, BATCH)):
        yield batch


def _words(teacher: TextTeacher, captions: Sequence[str]) -> Iterator[Tensor]:
    for batch in _batches(captions):
        features = teacher.tokens(batch)
        words, exists = pool_words(features.tokens, features.word_ids)
        yield words[exists].cpu()
