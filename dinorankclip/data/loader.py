"""Makes batches of pairs, with an exact position. A sample goes through these steps:

1. A run is at global step s. With n pairs and a global batch of B, an epoch has n // B steps (the rest of the
   permutation is left out), so s names an epoch and a row of B places in it. A few pairs chosen from many
   (`reading.train_items`) come round more often: `steps_per_epoch`, which schedules follow, still counts the many.
2. `permutation(seed, epoch)` says which pair stands at each place. Process r of W takes places r·B/W … of the
   row: one process and W processes see the same global batch.
3. A worker process is given the number s, nothing else, and builds this process's whole batch from it.
4. For each place it reads the pair's bytes, decodes, draws a view (crop, flip) and a caption (`samples.Recipe`) by
   generators keyed by (seed, epoch, place). No state is carried from sample to sample: starting at step s gives exactly
   what an uninterrupted run gets there, for any number of workers. With `rows` (frozen images) it reads captions only.
5. A pair that cannot be used is replaced by another pair, drawn by a generator of the same place, until a
   pair is good. All processes stay in step; the damaged pairs travel in `Batch.damage` and are counted here.
6. Captions become token ids; `teacher_features` (the cache of a teacher) are looked up by key and follow the view;
   `groups` tell which pairs share an image, a caption or a group.
7. The main process receives batches in order through shared memory and hands them out.

`pipe:` shards have no places: there a worker draws from a stream (`streams.ShardStream`) in steps 1 to 5.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from dinorankclip.config import ReadingSettings
from dinorankclip.data.damage import NAMED, Damage, DamageCount
from dinorankclip.data.remote import side_by_side
from dinorankclip.data.samples import Purpose, Recipe, Refusal, Sample, below, generator, permutation
from dinorankclip.data.splits import chosen_among, group_of, is_remote
from dinorankclip.data.streams import is_stream
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.system import allow_open_files, most_open_files, signals_held_back, start_method
from dinorankclip.types import (
    Batch,
    ImageRows,
    ImageSpec,
    RawSample,
    SecondCaptionProvider,
    Source,
    TeacherFeatureProvider,
    UserError,
    View,
    first_line,
)

log = logging.getLogger(__name__)

MOST_ATTEMPTS = 64  # replacements tried for one place
OPEN_FILES, OPEN_FILES_OF_WORKER = 32, 16  # files that a process needs, and for each of its workers
PREFETCH = 4  # batches each worker keeps ready
# Beginnings of torch's messages about an error that a worker sent to the main process, and about a timeout.
CAUGHT, TIMED_OUT = "Caught ", "DataLoader timed out"


class PairLoader:
    """Yields endless batches of this process, from global step `start` on.

    `batch` counts pairs over all `world` processes. `steps_per_epoch` is the same on each of them, `step` is the
    global step whose batch comes next, and `damage` counts the pairs that this process had to replace.
    """

    def __init__(
        self,
        source: Source,
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
        lone_caption_twice: bool = False,
        teacher_features: TeacherFeatureProvider | None = None,
        rows: ImageRows | None = None,
        second_captions: SecondCaptionProvider | None = None,
        pinned: bool = False,
    ) -> None:
        self._reading = reading = reading or ReadingSettings()
        self._pinned = pinned  # for a GPU
        if batch % world:
            raise UserError(f"a batch of {batch} cannot be divided equally over {world} processes")
        if len(source) < batch:
            larger = ("train-items", reading.train_items), ("epoch-samples", reading.epoch_samples)
            raise UserError(
                f"{len(source)} pairs do not fill one batch of {batch}. Use a smaller --budget.batch "
                f"(at most {len(source)}; a quarter of it or less trains better)"
                + "".join(f", or more --reading.{flag}" for flag, value in larger if value is not None) + "."
            )  # fmt: skip
        recipe = Recipe(
            image, tokenizer.load(), reading, second_caption, teacher_features, second_captions, lone_caption_twice
        )
        self._stream: Callable[[int], Any] | None = None
        if is_stream(source):
            assert rows is None, "rows are found by index, and a stream has none"
            self._stream = partial(source.batches, recipe, batch, seed, rank, world)
        share = batch // world
        self._steps = _Steps(source, recipe, batch, seed, rank * share, share, rows)
        self.steps_per_epoch = chosen_among(source) // batch
        self.step = start
        self.damage = DamageCount(reading.max_damaged)
        self._logged: Counter[str] = Counter()

    def __iter__(self) -> Generator[Batch, None, None]:
        dataset, numbers = (
            (self._stream(self.step), None) if self._stream else (self._steps, itertools.count(self.step))
        )
        with contextlib.closing(run_workers(dataset, numbers, self._reading, self._pinned)) as batches:
            for batch in batches:
                if isinstance(batch, Refusal):
                    raise UserError(batch.text)
                if not batch.damage and not self.damage.keys:
                    self.damage.seen += len(batch.keys)
                else:
                    for key, cause in self.damage.add(len(batch.keys), batch.damage):
                        self._logged[cause] += 1
                        if self._logged[cause] <= NAMED:
                            log.warning("replaced a damaged sample: %s (%s)", key, cause)
                    self.damage.stop_if_too_many()
                self.step += 1
                yield batch


@dataclass(frozen=True)
class _Steps:
    """Maps a global step to this process's batch, as a pure function: the data set that workers share."""

    source: Source
    recipe: Recipe
    batch: int
    seed: int
    first: int  # place of this process in a row of places
    share: int
    rows: ImageRows | None

    def __getitem__(self, step: int) -> Batch | Refusal:
        epoch, row = divmod(step, len(self.source) // self.batch)
        start = row * self.batch + self.first
        damage: list[tuple[str, str]] = []
        try:
            ahead = self._read_ahead(epoch, start)
            samples = [self._sample(epoch, place, damage, ahead) for place in range(start, start + self.share)]
            return self.recipe.batch(samples, damage)
        except UserError as error:
            return Refusal(str(error))

    def _read_ahead(self, epoch: int, start: int) -> dict[int, RawSample | Damage]:
        """Read the pairs of a batch side by side if they come over a network; empty for local data."""
        if self.rows is not None or not is_remote(self.source):
            return {}
        indices = _order(self.seed, epoch, len(self.source))[start : start + self.share].tolist()

        def read(index: int) -> RawSample | Damage:
            try:
                return self.source.read(index)
            except Damage as reason:
                return reason

        return dict(zip(indices, side_by_side(read, indices)))

    def _sample(
        self, epoch: int, place: int, damage: list[tuple[str, str]], ahead: dict[int, RawSample | Damage]
    ) -> Sample:
        """Make the sample of a place, or of a replacement; add the (key, cause) of pairs that cannot be used."""
        for attempt in range(MOST_ATTEMPTS):
            if attempt == 0:
                index = int(_order(self.seed, epoch, len(self.source))[place])
            else:
                index = below(generator(self.seed, Purpose.REPLACEMENT, epoch, place, attempt), len(self.source))
            captions = generator(self.seed, Purpose.CAPTION, epoch, place, attempt)
            try:
                if self.rows is not None:  # an embedding of the whole image: there is no view to draw
                    row, key = self.rows(index), self.source.key(index)
                    sample = self.recipe.captioned(key, row, View(), self.source.captions(index), captions)
                else:
                    views = generator(self.seed, Purpose.VIEW, epoch, place, attempt)
                    pair = ahead.get(index) or self.source.read(index)
                    if isinstance(pair, Damage):
                        raise pair
                    sample = self.recipe.sample(pair, views, captions)
                grouped = self.recipe.reading.group_column is not None
                return replace(sample, group=group_of(self.source, index)) if grouped else sample
            except Damage as reason:
                damage.append((self.source.key(index), reason.cause))
        count = DamageCount()
        count.add(0, damage)
        raise UserError(f"{MOST_ATTEMPTS} pairs in a row could not be used:\n{count.summary()}")


@lru_cache(maxsize=2)  # this epoch and the next one, which workers fetch ahead
def _order(seed: int, epoch: int, size: int) -> np.ndarray:
    return permutation(seed, epoch, size)  # sorting ten million draws takes seconds


def run_workers(
    dataset: Any, numbers: Iterable[int] | None, reading: ReadingSettings, pinned: bool = False
) -> Generator[Any, None, None]:
    """Yield `dataset[n]` for each n, in order; or all that an iterable data set yields (`numbers` None).

    Workers are forked: they start in milliseconds, need no second import of torch and share the index and the BPE table
    with their parent. They touch no GPU, and use one thread each, so forking is safe here. Beyond torch's DataLoader,
    an error arrives as its last line, a killed or stuck worker ends the run with advice, and no worker outlives it.
    """
    workers = reading.workers
    _demand_open_files(workers)
    loader = DataLoader(
        dataset,
        batch_size=None,  # the data set builds whole batches
        sampler=numbers,
        collate_fn=_identity,
        num_workers=workers,
        worker_init_fn=_start_worker if workers else None,
        prefetch_factor=PREFETCH if workers else None,
        timeout=reading.patience if workers else 0,
        multiprocessing_context=start_method() if workers else None,
        pin_memory=pinned,
        generator=torch.Generator(),  # the default draws from torch's global stream: resumes would differ
    )
    # Only this process handles Ctrl-C and SIGTERM. They wait until `_start_worker` ignores them: torch takes a SIGTERM
    # from the parent for a request to leave in good order, and then waits for that worker's batch until patience ends.
    with signals_held_back(signal.SIGINT, signal.SIGTERM):
        iterator = iter(loader)
    processes = list(getattr(iterator, "_workers", ()))
    _running.append(processes)
    try:
        yield from iterator
    except Exception as error:
        # A dead worker shows itself in many ways: torch's own error, or a connection that ends in the middle.
        if not str(error).startswith((CAUGHT, TIMED_OUT)) and not _died(processes):
            raise
        raise UserError(advice(error, reading)) from error
    finally:
        if hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()
        _end(processes)
        _running.remove(processes)


def _demand_open_files(workers: int) -> None:
    """Raise this process's limit of open files if workers need more. Beyond the limit, batches would never arrive."""
    needed, limits = OPEN_FILES + OPEN_FILES_OF_WORKER * workers, most_open_files()
    if not workers or limits is None or limits[0] >= needed:
        return
    if (hard := limits[1]) < needed:
        raise UserError(
            f"only {hard} files may be open at once here, and {workers} reading processes need {needed}: raise the "
            f"limit (ulimit -n {max(1024, needed)}), or use --reading.workers 0"
        )
    allow_open_files(needed)


def advice(error: Exception, reading: ReadingSettings) -> str:
    """Explain a DataLoader's error, and what to do about it."""
    text = str(error)
    if text.startswith(CAUGHT):  # the worker lives: the code it ran raised an error, whose last line says which
        return (
            f"reading failed: {text.strip().splitlines()[-1]}. If that says too little: --reading.workers 0 reads "
            "in the training process itself and shows where it happened"
        )
    if text.startswith(TIMED_OUT):
        return (
            f"no batch came for {reading.patience:.0f} s: reading hangs. Is the disk or network of the data slow or "
            "gone? If it is only slow, raise --reading.patience or --reading.workers."
        )
    return (
        f"a reading process died ({first_line(error)}). Most often the machine ran out of memory: use "
        "fewer --reading.workers or a smaller --budget.batch. A bus error means that /dev/shm is too small "
        "(in Docker: --shm-size)."
    )


def _identity(item: Any) -> Any:
    return item


def _start_worker(_number: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_leave_with, args=(os.getppid(),), daemon=True).start()


def _leave_with(parent: int) -> None:
    """End this worker when its parent was killed. torch's own check waits for a lock that a killed sibling may hold."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


_running: list[list] = []


def _died(processes: list) -> bool:
    """Return whether a worker has ended by itself; the system may take a moment to say so."""
    for process in processes:
        process.join(0.2)
    return any(not process.is_alive() for process in processes)


def _end(processes: list) -> None:
    """Kill workers that did not follow the DataLoader's request to stop; they ignore SIGTERM."""
    for process in processes:
        with contextlib.suppress(ValueError, OSError):
            if process.is_alive():
                process.kill()
            process.join(5)


@atexit.register
def _end_all() -> None:
    for processes in list(_running):
        _end(processes)
