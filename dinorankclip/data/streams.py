"""Reads pairs that come out of commands: `pipe:aws s3 cp s3://bucket/{0000..0331}.tar -`.

A `PipeSource` is a `Source` without random access: asking for a pair by its index is a `UserError`. Consequences:
* The samples cannot be counted beforehand: `reading.epoch_samples` says how many make an epoch.
* Shards are visited in an endless sequence, each pass in an order of (seed, pass); the stream of a worker is
  shuffled in a buffer. Process r of W and its worker w take every (W·workers)-th shard of that sequence: each process
  gets the same number of batches, nothing is downloaded twice, but another number of processes or workers gives
  other batches.
* A resumed run goes on at the beginning of the shard that an even pace would have reached; up to a shard for each
  worker is read again or left out. The source logs this.
* For validation, whole shards are held out (the first ones), and read into memory.
"""

from __future__ import annotations

import logging
import lzma
import math
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Self, TypeGuard

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from dinorankclip.config import FindingSettings
from dinorankclip.data.damage import CAPTION_BYTES, IMAGE_BYTES, Damage
from dinorankclip.data.decode import captions_from_json, captions_from_text
from dinorankclip.data.samples import Purpose, Recipe, Refusal, Sample, below, generator, permutation
from dinorankclip.data.tar_headers import MOST_DESCRIPTION
from dinorankclip.data.tar_shards import CAPTION_KINDS, IMAGE_KINDS, SECOND_KIND, split_name
from dinorankclip.io import digest
from dinorankclip.types import Batch, RawSample, Source, UserError

log = logging.getLogger(__name__)

SHUFFLE = 2000  # samples a worker mixes, in encoded form
# A shard that fails counts as one damaged sample, whatever was in it; networks fail now and then, and resuming helps
# nobody. If most fail, somebody must look.
FEWEST_VISITS, MOST_FAILED = 20, 0.5
_MOST_MEMBER = 1 << 40  # bytes that may be skipped for one member of a stream
_STORE_FIRST = "pipe: shards are a stream: store them first (dinorankclip data pack)"
SampleOrDamage = RawSample | tuple[str, Damage]  # a sample, or its key and the reason why it cannot be used


# What a damaged stream raises; RecursionError: thousands of headers that describe the next one.
_BROKEN = (tarfile.TarError, OSError, EOFError, ValueError, OverflowError, RecursionError, zlib.error, lzma.LZMAError)


class _BoundedMember(tarfile.TarInfo):
    """Refuses headers whose sizes would make tarfile read without end: negative, or a name of many megabytes."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        describes = header.type in (b"L", b"K", b"x", b"X", b"g")
        if not 0 <= header.size <= (MOST_DESCRIPTION if describes else _MOST_MEMBER):
            raise tarfile.ReadError(f"a header says that {header.size} bytes follow")
        return header


class PipeSource:
    """A list of `pipe:` shards. Its length comes from the settings, its pairs come as a stream (`pairs`, `batches`)."""

    def __init__(self, shards: Sequence[str], epoch_samples: int | None) -> None:
        if not epoch_samples:
            raise UserError(
                "pipe: shards cannot be counted beforehand; say how many samples make an epoch: "
                "--reading.epoch-samples 2900000"
            )
        self.shards = list(shards)
        self.fingerprint = digest("pipe", *shards)
        self._epoch_samples = epoch_samples

    def __len__(self) -> int:
        return self._epoch_samples

    def pairs(self) -> Iterator[SampleOrDamage]:
        """Yield all pairs once, shard by shard."""
        for shard in self.shards:
            yield from stream_shard(shard)

    def batches(self, recipe: Recipe, batch: int, seed: int, rank: int, world: int, step: int) -> ShardStream:
        """Return this process's endless batches from global step `step` on, as a data set for workers."""
        # An even pace through the shards: the same number on every process, from the step alone.
        reached = step * batch * len(self.shards) // len(self)
        if step:
            log.warning("pipe: shards resume at the beginning of a shard, number %d of the sequence", reached)
        return ShardStream(self, recipe, batch // world, seed, rank, world, reached)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise UserError(f"pairs are looked up by their place, and {_STORE_FIRST}")

    key = image = captions = read = sizes = stamps = _refuse


def is_stream(source: Source) -> TypeGuard[PipeSource]:
    """Return whether the pairs of a source come one after the other only, without random access."""
    return isinstance(source, PipeSource)


def refuse_stream(source: Source, reason: str) -> None:
    """Refuse a stream where pairs are needed in any order, or again; `reason` is the first half of the message."""
    if is_stream(source):
        raise UserError(f"{reason}, and {_STORE_FIRST}")


class MemorySource(Source):
    """Holds samples in memory: the validation part of a stream."""

    def __init__(self, samples: Sequence[RawSample], fingerprint: str) -> None:
        self.samples, self.fingerprint = samples, fingerprint

    def __len__(self) -> int:
        return len(self.samples)

    def key(self, index: int) -> str:
        return self.samples[index].key

    def captions(self, index: int) -> tuple[str, ...]:
        return self.samples[index].captions

    def image(self, index: int) -> bytes:
        return self.samples[index].image

    def stamps(self) -> np.ndarray:
        return np.empty((len(self), 0), dtype=np.int64)

    def sizes(self) -> np.ndarray:
        return np.array([len(sample.image) for sample in self.samples], dtype=np.int64)


def stream_shard(shard: str) -> Iterator[SampleOrDamage]:
    """Yield the samples of one shard as they arrive."""
    from webdataset.gopen import gopen

    try:
        with gopen(shard) as pipe, tarfile.open(fileobj=pipe, mode="r|*", tarinfo=_BoundedMember) as tar:
            try:
                yield from _samples(tar)
            except GeneratorExit:  # the caller leaves first: a command whose reader has gone fails without fault
                pipe.ignore_errors = True
                raise
    except _BROKEN as error:
        # The last sample may be half there; the samples before it were fine.
        yield shard, Damage("truncated", str(error))


def _samples(tar: tarfile.TarFile) -> Iterator[SampleOrDamage]:
    key = ""
    members: dict[str, bytes] = {}
    for member in tar:
        named = split_name(member.name)
        if not named or not member.isreg():
            continue
        if named[0] != key or named[1] in members:
            if members:
                yield _joined(key, members)
            key, members = named[0], {}
        if named[1] in IMAGE_KINDS or named[1] in CAPTION_KINDS or named[1] == SECOND_KIND:
            if not 0 <= member.size <= (IMAGE_BYTES if named[1] in IMAGE_KINDS else CAPTION_BYTES):
                raise tarfile.ReadError(f"{member.name[:80]} has {member.size} bytes, more than are read")
            file = tar.extractfile(member)
            assert file is not None, "a regular file has content"
            members[named[1]] = file.read()
            if len(members[named[1]]) < member.size:
                raise tarfile.ReadError(f"{member.name[:80]} ends too early")
    if members:
        yield _joined(key, members)


def _joined(key: str, members: dict[str, bytes]) -> SampleOrDamage:
    """Join the members of one key: kind → content."""
    images = [data for kind, data in members.items() if kind in IMAGE_KINDS]
    try:
        if not images:
            raise Damage("missing-image")
        second = captions_from_text(members[SECOND_KIND]) if SECOND_KIND in members else ()
        if "txt" in members:
            return RawSample(key, images[0], captions_from_text(members["txt"]), second)
        if "json" in members:
            return RawSample(key, images[0], captions_from_json(members["json"]), second)
        raise Damage("no-caption")
    except Damage as damage:
        return key, damage


class ShardStream(IterableDataset):
    """Yields the endless batches of one worker, of `share` samples each, from shard number `reached` on."""

    def __init__(
        self, source: PipeSource, recipe: Recipe, share: int, seed: int, rank: int, world: int, reached: int
    ) -> None:
        self.shards, self.recipe, self.share, self.seed = source.shards, recipe, share, seed
        self.rank, self.world, self.reached = rank, world, reached
        self.mixed = min(SHUFFLE, max(1, len(source) // world))  # no more than an epoch

    def __iter__(self) -> Iterator[Batch | Refusal]:
        info = get_worker_info()
        workers, worker = (info.num_workers, info.id) if info else (1, 0)
        lane, lanes = self.rank * workers + worker, self.world * workers
        samples: list[Sample] = []
        damage: list[tuple[str, str]] = []
        try:
            for number, arrived in enumerate(self._shuffled(lane, lanes)):
                if not isinstance(arrived, RawSample):
                    damage.append((arrived[0], arrived[1].cause))
                    continue
                views = generator(self.seed, Purpose.VIEW, self.reached, number, lane)
                captions = generator(self.seed, Purpose.CAPTION, self.reached, number, lane)
                try:
                    samples.append(self.recipe.sample(arrived, views, captions))
                except Damage as reason:
                    damage.append((arrived.key, reason.cause))
                if len(samples) == self.share:
                    yield self.recipe.batch(samples, damage)
                    samples, damage = [], []
        except UserError as error:
            yield Refusal(str(error))

    def _shuffled(self, lane: int, lanes: int) -> Iterator[SampleOrDamage]:
        """Yield samples in random order: each arriving sample changes places with a random sample of the buffer."""
        draws = generator(self.seed, Purpose.REPLACEMENT, self.reached, lane)
        buffer: list[SampleOrDamage] = []
        for arrived in self._sequence(lane, lanes):
            if len(buffer) < self.mixed:
                buffer.append(arrived)
                continue
            at = below(draws, self.mixed)
            buffer[at], arrived = arrived, buffer[at]
            yield arrived

    def _sequence(self, lane: int, lanes: int) -> Iterator[SampleOrDamage]:
        """Yield the samples of this lane's shards: every `lanes`-th shard of the endless sequence of shards."""
        number = self.reached + lane
        fruitless, visited, failed, broken = 0, 0, 0, ""
        a_pass = -(-len(self.shards) // lanes)
        while True:
            once, place = divmod(number, len(self.shards))
            order = permutation(self.seed, once, len(self.shards), Purpose.SHARDS)
            good, whole, shard = 0, True, self.shards[order[place]]
            for arrived in stream_shard(shard):
                good += isinstance(arrived, RawSample)
                whole &= isinstance(arrived, RawSample) or arrived[0] != shard
                yield arrived
            fruitless, visited, failed = 0 if good else fruitless + 1, visited + 1, failed + (not whole)
            broken = broken if whole else shard
            if fruitless > max(len(self.shards), FEWEST_VISITS):
                raise UserError(f"no usable sample came out of {fruitless} shards in a row; try one by hand: {shard}")
            if visited >= max(a_pass, FEWEST_VISITS) and fruitless < visited and failed > MOST_FAILED * visited:
                raise UserError(
                    f"{failed} of {visited} pipe: shards could not be read to their end: the data is hardly there. Try "
                    f"one by hand: {broken}"
                )
            number += lanes


def held_out(shards: Sequence[str], reading: FindingSettings) -> tuple[list[str], list[str]]:
    """Return (validation shards, training shards): the first shards, at least one, are held out."""
    if len(shards) < 2:
        raise UserError(
            "one pipe: shard cannot be divided into training and validation parts; give at least two shards"
        )
    share = reading.val_fraction * len(shards)
    if reading.epoch_samples:  # no more shards than `val_most` samples fill: nobody would see the others
        share = min(share, math.ceil(reading.val_most * len(shards) / reading.epoch_samples))
    count = min(len(shards) - 1, max(1, round(share)))
    return list(shards[:count]), list(shards[count:])


def read_into_memory(shards: Sequence[str], most: int) -> MemorySource:
    """Read the good samples of these shards, at most `most`."""
    samples: dict[str, RawSample] = {}
    for number, shard in enumerate(shards):
        for arrived in stream_shard(shard):
            if isinstance(arrived, RawSample):
                # Shards may use the same keys: scores go by key.
                key = f"{number}/{arrived.key}" if arrived.key in samples else arrived.key
                samples[key] = replace(arrived, key=key)
            if len(samples) == most:
                break
        if len(samples) == most:
            break
    if not samples:
        raise UserError(f"no usable sample came out of {shards[0]}")
    return MemorySource(list(samples.values()), digest("pipe", most, *shards[: number + 1]))  # shards read
