"""Pairs that come out of commands: `pipe:aws s3 cp s3://bucket/{0000..0331}.tar -`. A stream has no random access.

What that means, said openly:
* The samples cannot be counted beforehand: `reading.epoch_samples` says how many make an epoch.
* Shards are visited in an endless sequence, each pass in an order of (seed, pass); the stream of a worker is
  shuffled in a buffer. Process r of W and its worker w take every (W·workers)-th shard of that sequence: each process
  gets the same number of batches, nothing is downloaded twice, but the batches are other ones for another
  number of processes or workers.
* A resumed run goes on at the beginning of a shard, the one that an even pace would have reached; up to a shard
  for each worker is seen again or left out. The loader logs this.
* For validation, whole shards are held out (the first ones), and read into memory.
"""

from __future__ import annotations

import logging
import math
import tarfile
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from dinorankclip import seeds as streams
from dinorankclip.config import FindingSettings, ReadingSettings
from dinorankclip.data import decode as caption_files
from dinorankclip.data import tar_shards
from dinorankclip.data.damage import Damage, DamageCount
from dinorankclip.data.samples import Recipe, Sample
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.data.workers import Refusal, counted, run_workers
from dinorankclip.io import digest
from dinorankclip.types import Batch, TeacherFeatureProvider, ImageSpec, RawSample, UserError

log = logging.getLogger(__name__)

SHUFFLE = 2000  # samples a worker mixes, in encoded form
# A shard that fails counts as one damaged sample, whatever was in it; networks fail now and then, and resuming helps
# nobody. If most fail, somebody must look.
FEWEST_VISITS, MOST_FAILED = 20, 0.5
Found = RawSample | tuple[str, Damage]  # a sample, or the key and the reason why not


class PipeSource:
    """A list of `pipe:` shards. It has a length (from the settings), but only `PipeLoader` can read it."""

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


class MemorySource:
    """Samples held in memory: the validation part of a stream."""

    def __init__(self, samples: Sequence[RawSample], fingerprint: str) -> None:
        self.samples = list(samples)
        self.fingerprint = fingerprint

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

    def read(self, index: int) -> RawSample:
        return self.samples[index]


def stream_shard(shard: str) -> Iterator[Found]:
    """The samples of one shard as they arrive, and what is wrong with the others."""
    from webdataset.gopen import gopen

    try:
        with gopen(shard) as pipe, tarfile.open(fileobj=pipe, mode="r|*") as tar:
            try:
                yield from _samples(tar)
            except GeneratorExit:  # we leave first: a command whose reader has gone fails, and not by its own fault
                pipe.ignore_errors = True
                raise
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        # The last sample may be half there; what came before it was fine.
        yield shard, Damage("truncated", str(error))


def _samples(tar: tarfile.TarFile) -> Iterator[Found]:
    key = ""
    parts: dict[str, bytes] = {}
    for member in tar:
        named = tar_shards.split_name(member.name)
        if not named or not member.isreg():
            continue
        if named[0] != key or named[1] in parts:
            yield from _complete(key, parts)
            key, parts = named[0], {}
        if named[1] in tar_shards.IMAGE_KINDS or named[1] in tar_shards.CAPTION_KINDS:
            file = tar.extractfile(member)
            assert file is not None, "a regular file has content"
            parts[named[1]] = file.read()
    yield from _complete(key, parts)


def _complete(key: str, parts: dict[str, bytes]) -> Iterator[Found]:
    if not parts:
        return
    images = [data for kind, data in parts.items() if kind in tar_shards.IMAGE_KINDS]
    try:
        if not images:
            raise Damage("missing-image")
        if "txt" in parts:
            captions = caption_files.from_text(parts["txt"])
        elif "json" in parts:
            captions = caption_files.from_json(parts["json"])
        else:
            raise Damage("no-caption")
        yield RawSample(key, images[0], captions)
    except Damage as damage:
        yield key, damage


class PipeLoader:
    """Like `PairLoader`, for `pipe:` shards; see the top of this file for what is different."""

    def __init__(
        self,
        source: PipeSource,
        image: ImageSpec,
        tokenizer: Tokenizer,
        *,
        batch: int,
        seed: int,
        reading: ReadingSettings | None = None,
        rank: int = 0,
        world: int = 1,
        start: int = 0,
        second_caption: bool = False,
        teacher_features: TeacherFeatureProvider | None = None,
    ) -> None:
        reading = reading or ReadingSettings()
        if batch % world:
            raise UserError(f"a batch of {batch} cannot be divided equally over {world} processes")
        if len(source) < batch:
            raise UserError(f"reading.epoch_samples = {len(source)} is less than one batch of {batch}")
        self.steps_per_epoch = len(source) // batch
        self.step = start
        self.damage = DamageCount(reading.max_damaged)
        self._reading, self._source, self._batch = reading, source, batch
        recipe = Recipe(image, tokenizer.load(), reading, second_caption, teacher_features)
        self._stream = partial(_Stream, source, recipe, batch // world, seed, rank, world)

    def __iter__(self) -> Generator[Batch, None, None]:
        # An even pace through the shards: the same number on every process, from the step alone.
        reached = self.step * self._batch * len(self._source.shards) // len(self._source)
        if self.step:
            log.warning("pipe: shards resume at the beginning of a shard, number %d of the sequence", reached)
        for batch in counted(run_workers(self._stream(reached), None, self._reading), self.damage):
            self.step += 1
            yield batch


class _Stream(IterableDataset):
    """The endless batches of one worker."""

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
            for number, found in enumerate(self._shuffled(lane, lanes)):
                try:
                    samples.append(self._sample(found, number, lane))
                except Damage as reason:
                    damage.append((found.key if isinstance(found, RawSample) else found[0], reason.cause))
                if len(samples) == self.share:
                    yield self.recipe.batch(samples, damage)
                    samples, damage = [], []
        except UserError as error:
            yield Refusal(str(error))

    def _sample(self, found: Found, number: int, lane: int) -> Sample:
        if not isinstance(found, RawSample):
            raise found[1]
        where = (self.reached, number, lane)
        return self.recipe.sample(
            found,
            streams.generator(self.seed, streams.VIEW, *where),
            streams.generator(self.seed, streams.CAPTION, *where),
        )

    def _shuffled(self, lane: int, lanes: int) -> Iterator[Found]:
        """Each arriving sample changes places with a random one of the buffer."""
        draws = streams.generator(self.seed, streams.REPLACEMENT, self.reached, lane)
        buffer: list[Found] = []
        for found in self._sequence(lane, lanes):
            if len(buffer) < self.mixed:
                buffer.append(found)
                continue
            at = streams.below(draws, self.mixed)
            buffer[at], found = found, buffer[at]
            yield found

    def _sequence(self, lane: int, lanes: int) -> Iterator[Found]:
        """Samples of every `lanes`-th shard of the endless sequence of shards, this lane's ones."""
        number = self.reached + lane
        fruitless, visited, failed, broken = 0, 0, 0, ""
        a_pass = -(-len(self.shards) // lanes)
        while True:
            once, place = divmod(number, len(self.shards))
            order = streams.permutation(self.seed, once, len(self.shards), streams.SHARDS)
            good, whole, shard = 0, True, self.shards[order[place]]
            for found in stream_shard(shard):
                good += isinstance(found, RawSample)
                whole &= isinstance(found, RawSample) or found[0] != shard
                yield found
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
    """(validation shards, training shards): the first ones are held out, at least one. What is held out beyond what
    validation reads would be seen by nobody."""
    if len(shards) < 2:
        raise UserError(
            "one pipe: shard cannot be divided into training and validation parts; give at least two shards"
        )
    wanted = reading.val_fraction * len(shards)
    if reading.epoch_samples:  # no more shards than `val_most` samples fill
        wanted = min(wanted, math.ceil(reading.val_most * len(shards) / reading.epoch_samples))
    count = min(len(shards) - 1, max(1, round(wanted)))
    return list(shards[:count]), list(shards[count:])


def read_into_memory(shards: Sequence[str], most: int) -> MemorySource:
    """At most `most` good samples of these shards."""
    samples: list[RawSample] = []
    taken: set[str] = set()
    for number, shard in enumerate(shards):
        for found in stream_shard(shard):
            if isinstance(found, RawSample):
                # Shards may use the same keys: scores go by key.
                key = f"{number}/{found.key}" if found.key in taken else found.key
                taken.add(key)
                samples.append(replace(found, key=key))
            if len(samples) == most:
                break
        if len(samples) == most:
            break
    if not samples:
        raise UserError(f"no usable sample came out of {shards[0]}")
    return MemorySource(samples, digest("pipe", most, *shards[: number + 1]))  # whatever else was held out unread
