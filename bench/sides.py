"""The sides of a comparison, each in a process of its own that waits while another one runs.

Processes of their own, since a side may change what a process has only once: the memory allocator, thread pools,
compiled code. They are forked from a server that has imported what both sides need and computed nothing, because
OpenMP's threads do not survive a fork.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from bench.harness import forget_peak, resident
from dinorankclip.config import OptimSettings, ReadingSettings
from dinorankclip.data.loader import PairLoader
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.device import choose, keep_freed_memory
from dinorankclip.losses import Objective
from dinorankclip.models.joint import JointModel
from dinorankclip.models.trunk import trunk_config
from dinorankclip.train.step import Updater, backward
from dinorankclip.types import Batch, Progress, Source, View

# What both sides share: the weights they start from, the batches, and open_clip's recipe for ViTs.

TOTAL_STEPS, WARMUP = 10_000, 500  # a choice of ours; a schedule costs no time
# Gradients are not clipped, since open_clip's trainer does not clip unless a flag asks for it.
OPTIMISER = OptimSettings(
    name="adamw", lr=5e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.2, warmup_steps=WARMUP, clip_norm=None
)  # fmt: skip


def starting_model(name: str) -> JointModel:
    """A trunk at its first weights, which depend on the name alone."""
    return JointModel(trunk_config(name))


def training_loader(model: JointModel, source: Source, batch: int, workers: int = 0) -> PairLoader:
    """Batches as training sees them, with open_clip's crops: 90 to 100 % of the area, no flip."""
    trunk = model.trunk
    reading = ReadingSettings(workers=workers, crop_scale=(0.9, 1.0))
    return PairLoader(source, trunk.image_spec, Tokenizer(trunk.text_spec), batch=batch, seed=0, reading=reading)


# Pairs of a trunk's shapes and a place in a schedule, for steps whose cost does not depend on what is in a picture.

LATE = Progress(900, 1000, 64)  # every order acts
TOKENS = 20  # of each caption
# Ids of CLIP's vocabulary, which is not loaded for two numbers: some benches measure memory.
START_OF_TEXT, END_OF_TEXT = 49406, 49407


def made_up_pairs(model: JointModel, count: int, seed: int = 0) -> Batch:
    draws = torch.Generator().manual_seed(seed)
    size = model.trunk.image_spec.size
    images = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=draws)
    texts = torch.randint(1, START_OF_TEXT, (count, TOKENS), generator=draws)
    texts[:, -1] = END_OF_TEXT
    return Batch(images, texts, [""] * count, [View()] * count, [""] * count)


# Our training step at order 0, as `pretrain` takes it.


class OurTrainer:
    def __init__(self, name: str):
        keep_freed_memory()
        self.model = starting_model(name)
        self.objective = Objective(self.model.dim, "clip")
        self.updater = Updater({"model": self.model, "objective": self.objective}, OPTIMISER, TOTAL_STEPS)
        self.placement = choose("cpu", "fp32")
        self.losses: list[Tensor] = []
        self._done = 0

    def steps(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            progress = Progress(self._done, TOTAL_STEPS, 1)
            terms = backward(self.model, self.objective, batch, progress, self.placement)
            self.updater.step(progress, self.model.trunk.logit_scale)
            self.losses.append(terms.total.detach())
            self._done += 1

    @torch.no_grad()
    def loss_of(self, batch: Batch) -> float:
        embeddings = self.model(batch.images, batch.texts)
        return float(self.objective(embeddings, self.model.scale(), Progress(0, TOTAL_STEPS, 1)).total)


Run = Callable[[], object]
Built = tuple[Run, dict[str, Any]]  # what is timed, and what the side wants to say about itself

_PRELOADED = ["bench.open_clip_side", "bench.our_side"]


class Side:
    """Runs the result of `build()` in a process of its own, once for each request.

    `build` must be picklable: a function of a module, or a `functools.partial` of one.
    """

    def __init__(self, build: Callable[[], Built], threads: int, environment: dict[str, str] | None = None):
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(_PRELOADED)
        self._channel, theirs = server.Pipe()
        self._process = server.Process(target=_serve, args=(theirs, build, threads, environment or {}))
        self._process.start()
        theirs.close()
        self._facts: dict[str, Any] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Waits until the side is built."""
        if self._facts is None:
            self._facts = self._answer()
        return self._facts

    def begin(self) -> None:
        """Start a run; `end` waits for it."""
        assert self.facts is not None
        self._channel.send("run")

    def end(self) -> dict[str, float]:
        """`seconds` of the run, `bytes` of resident memory that it added at its peak."""
        return self._answer()

    def __call__(self) -> dict[str, float]:
        self.begin()
        return self.end()

    def close(self) -> None:
        if self._process.is_alive():
            try:
                self._channel.send("leave")
                self._process.join(10)
            except OSError:  # it has died
                pass
        self._process.kill()
        self._process.join()

    def _answer(self) -> dict[str, Any]:
        try:
            answer = self._channel.recv()
        except EOFError:
            self._process.join()
            raise SystemExit(f"a side of the comparison died (exit code {self._process.exitcode})") from None
        if isinstance(answer, str):
            raise SystemExit(f"a side of the comparison failed:\n{answer}")
        return answer


@contextmanager
def running(builders: dict[str, Callable[[], Built]], threads: int) -> Iterator[dict[str, Side]]:
    """Sides by name, built one after the other."""
    sides: dict[str, Side] = {}
    try:
        for name, build in builders.items():
            sides[name] = Side(build, threads)
            assert sides[name].facts is not None
        yield sides
    finally:
        for side in sides.values():
            side.close()


def _serve(channel: Any, build: Callable[[], Built], threads: int, environment: dict[str, str]) -> None:
    # A child of the server would start its own workers through that server; Linux's usual way is to fork.
    multiprocessing.set_start_method("fork", force=True)
    os.environ.update(environment)
    torch.set_num_threads(threads)
    try:
        run, facts = build()
        channel.send(facts)
        while channel.recv() == "run":
            before = resident("VmRSS")
            forget_peak()
            begin = time.perf_counter()
            run()
            seconds = time.perf_counter() - begin
            channel.send({"seconds": seconds, "bytes": max(0, resident("VmHWM") - before)})
    except EOFError:  # the parent process is gone
        pass
    except BaseException:
        channel.send(traceback.format_exc())
