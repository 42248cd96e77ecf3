"""Core-seconds to a given retrieval score on the scenes, for open_clip's own trainer and for ours, in one run:

    python -m bench.time_to_quality --pairs DIR --target 0.2

Both sides have the same trunk, starting weights and batches (order, crops and captions of our loader). open_clip's side
is its `train_one_epoch` with AdamW and its cosine schedule; ours is `--preset scenes --method clip`, once as it is and
once with AdamW. Each side is tried with several lengths of its schedule (open_clip also with several rates), and its
best trial counts: a short schedule may never reach the score, a long one reaches it late. All trials go on in turn, a
piece of an epoch each. After each piece the same function scores the validation part. A trial ends when it reaches the
score, at the end of its schedule, or when it has used more than the best trial of its side.

Core-seconds are those of steps alone, with batches ready in memory: reading, and open_clip's tokens and normalised
pixels, are not counted. open_clip's default warm-up of 10,000 steps is longer than these runs; it gets 5 % of its
steps, as ours does.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from bench.decoded_pairs import DecodedSource, HeldOut, mean_recall, read_from_memory
from bench.harness import arguments, heading, machine_now, options_record, today, write_dated
from bench.open_clip_side import OpenClipTrainer
from dinorankclip.config import TrainSettings, with_changes
from dinorankclip.data.open_data import open_stored
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.models.joint import JointModel
from dinorankclip.presets import default_settings
from dinorankclip.train.assemble import RunParts, assemble
from dinorankclip.train.step import backward, warmup_length
from dinorankclip.types import Batch, Progress
from dinorankclip.validate import validated

OPEN_CLIP, OURS, OURS_ADAMW = "open_clip, AdamW", "ours, Muon", "ours, AdamW"


@dataclass
class Trial:
    """Holds a side with one length of schedule and what became of it; `points` are [step, core-seconds, score]."""

    side: str
    epochs: float
    rate: float
    steps: int
    points: list[tuple[int, float, float]] = field(default_factory=list)
    reached: float | None = None  # core-seconds to the score

    @property
    def name(self) -> str:
        return f"{self.side}, {self.epochs:g} epochs at {self.rate:g}"

    @property
    def step(self) -> int:
        return self.points[-1][0] if self.points else 0

    @property
    def used(self) -> float:
        return self.points[-1][1] if self.points else 0.0

    def add(self, steps: int, seconds: float, score: float, target: float) -> None:
        self.points.append((self.step + steps, self.used + seconds, score))
        if self.reached is None and score >= target:
            self.reached = self.used


class OurSide:
    """Steps of our trainer on batches in memory."""

    def __init__(self, settings: TrainSettings) -> None:
        self.parts = _assembled(settings)
        self.model = self.parts.state.model

    def take(self, batches: Sequence[Batch], first: int) -> float:
        """Take steps from `first` on and return their core-seconds."""
        state, length = self.parts.state, self.parts.length
        begin = time.process_time()
        for at, batch in enumerate(batches):
            progress = Progress(first + at, length.steps, length.epochs)
            backward(state.model, state.objective, batch, progress, self.parts.placement)
            state.updater.step(progress, state.model.logit_scale)
        return time.process_time() - begin

    def score(self, part: HeldOut) -> float:
        self.model.eval()
        value = mean_recall(self.model, part)
        self.model.train()
        return value


class OpenClipSide:
    """Steps of open_clip's trainer on the same batches, normalised and with its own token ids."""

    def __init__(self, name: str, ours: JointModel, batch: int, steps: int, rate: float) -> None:
        self._ours = ours
        warmup = warmup_length(steps)
        with contextlib.redirect_stdout(io.StringIO()):
            self._trainer = OpenClipTrainer(name, ours, batch, warmup=warmup, total=steps, rate=rate)

    def take(self, batches: Sequence[Batch], first: int) -> float:
        ready = [(self._ours.normalised(b.images), self._trainer.tokenizer(b.captions)) for b in batches]
        begin = time.process_time()
        self._trainer.steps(ready)
        return time.process_time() - begin

    def score(self, part: HeldOut) -> float:
        model = self._trainer.model.eval()
        value = mean_recall(_Normalised(self._ours, model), part)
        model.train()
        return value


class _Normalised:
    """Shows an open_clip model as an `Encoder`: uint8 images and token ids in, unit-norm rows out."""

    def __init__(self, ours: JointModel, model: Any) -> None:
        self._ours, self._model = ours, model

    def encode_image(self, images: Tensor) -> Tensor:
        return self._model.encode_image(self._ours.normalised(images), normalize=True)

    def encode_text(self, texts: Tensor) -> Tensor:
        full = torch.nn.functional.pad(texts, (0, self._model.context_length - texts.shape[1]))
        return self._model.encode_text(full, normalize=True)


def _assembled(settings: TrainSettings) -> RunParts:
    with contextlib.redirect_stdout(io.StringIO()):
        return assemble(settings)


class Pieces:
    """Gives stretches of the batches that all trials see, from a loader of its own; stretches are read once a turn."""

    def __init__(self, settings: TrainSettings, source: DecodedSource, tokenizer: Tokenizer) -> None:
        self._parts = _assembled(settings)
        read_from_memory(self._parts.loader, source, tokenizer)
        self._batches: Iterator[Batch] = iter(self._parts.loader)
        self._read: list[Batch] = []
        self._first = 0
        self.steps_per_epoch = self._parts.loader.steps_per_epoch

    def stretch(self, first: int, count: int) -> list[Batch]:
        """Return `count` batches from step `first` on; never one before the last call's first."""
        assert first >= self._first, "trials go on in turn"
        self._read = self._read[first - self._first :]
        self._first = first
        while len(self._read) < count:
            self._read.append(next(self._batches))
        return self._read[:count]


def best(trials: Sequence[Trial], side: str) -> Trial | None:
    """Return the trial of a side that reached the score first, None if none did."""
    done = [trial for trial in trials if trial.side == side and trial.reached is not None]
    return min(done, key=lambda trial: trial.reached or 0.0, default=None)


def race(
    trials: Sequence[Trial], sides: dict[str, OurSide | OpenClipSide], pieces: Pieces, part: HeldOut, target: float,
    every: int,
) -> None:  # fmt: skip
    """Let all trials go on in turn, `every` steps each, until each has ended."""
    first = 0
    while True:
        going = [
            t for t in trials if t.reached is None and t.step == first and t.step < t.steps and _hopeful(t, trials)
        ]
        if not going:
            return
        for trial in going:
            count = min(every, trial.steps - first)
            seconds = sides[trial.name].take(pieces.stretch(first, every)[:count], first)
            trial.add(count, seconds, sides[trial.name].score(part), target)
            print(f"{trial.name}: step {trial.step}, {trial.used:.1f} s, {100 * trial.points[-1][2]:.1f} %", flush=True)
        first += every


def _hopeful(trial: Trial, trials: Sequence[Trial]) -> bool:
    ahead = best(trials, trial.side)
    return ahead is None or trial.used < (ahead.reached or math.inf)


def as_markdown(trials: Sequence[Trial], target: float, text: str) -> str:
    lines = [text, f"## Core-seconds to a validation mean R@1 of {100 * target:g} %", ""]
    lines += [
        "| side | best trial | steps | core-seconds | open_clip's, times ours |",
        "| --- | --- | --: | --: | --: |",
    ]
    theirs = best(trials, OPEN_CLIP)
    for side in dict.fromkeys(trial.side for trial in trials):
        found = best(trials, side)
        if found is None or found.reached is None:
            most = max(trial.points[-1][2] for trial in trials if trial.side == side and trial.points)
            lines.append(f"| {side} | not reached; at most {100 * most:.1f} % | – | – | – |")
            continue
        times = f"{theirs.reached / found.reached:.2f}" if theirs is not None and theirs.reached is not None else "–"
        lines.append(
            f"| {side} | {found.epochs:g} epochs at {found.rate:g} | {found.step} | {found.reached:.1f} | {times} |"
        )
    lines += [
        "",
        "## All trials",
        "",
        "| trial | steps of the schedule | steps taken | core-seconds | last score | reached |",
    ]
    lines.append("| --- | --: | --: | --: | --: | --- |")
    for trial in trials:
        last = f"{100 * trial.points[-1][2]:.1f} %" if trial.points else "–"
        words = "yes" if trial.reached is not None else "no" if trial.step == trial.steps else "later than the best"
        lines.append(f"| {trial.name} | {trial.steps} | {trial.step} | {trial.used:.1f} | {last} | {words} |")
    return "\n".join(lines) + "\n"


def run(options: argparse.Namespace) -> tuple[list[Trial], int]:
    """Make all trials; return them with the number of images of the validation part."""
    changes = {"data": options.pairs, "seed": options.seed, "reading.workers": 0, "budget.batch": options.batch}
    changes |= {"budget.threads": options.threads, "budget.device": "cpu", "model.trunk": options.trunk}
    base = with_changes(default_settings("scenes", "clip"), changes)
    source, tokenizer = DecodedSource(open_stored(options.pairs, split="train")), Tokenizer()
    pieces = Pieces(validated(base), source, tokenizer)
    image = pieces._parts.state.model.image_spec
    part = HeldOut.of(open_stored(options.pairs, split="val"), image, tokenizer, options.val)
    trials: list[Trial] = []
    sides: dict[str, OurSide | OpenClipSide] = {}

    def enter(side: str, epochs: float, rate: float) -> Trial:
        trials.append(Trial(side, epochs, rate, max(1, round(epochs * pieces.steps_per_epoch))))
        return trials[-1]

    for epochs in options.our_epochs:
        trial = enter(OURS, epochs, base.optim.lr)
        sides[trial.name] = OurSide(validated(with_changes(base, {"budget.steps": trial.steps})))
    for epochs in options.adamw_epochs:
        trial = enter(OURS_ADAMW, epochs, base.optim.lr)
        own = {"budget.steps": trial.steps, "optim.name": "adamw"}
        sides[trial.name] = OurSide(validated(with_changes(base, own)))
    start = _assembled(validated(base)).state.model
    assert isinstance(start, JointModel)
    for rate in options.rates:
        for epochs in options.their_epochs:
            trial = enter(OPEN_CLIP, epochs, rate)
            sides[trial.name] = OpenClipSide(options.trunk, start, options.batch, trial.steps, rate)
    race(trials, sides, pieces, part, options.target, options.every)
    return trials, len(part.captions)


def main(argv: list[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--target", type=float, default=0.2, help="mean R@1 of the validation part, a share")
    parser.add_argument("--trunk", default="drc-tiny")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--val", type=int, help="validation images; default: all")
    parser.add_argument("--every", type=int, default=31, help="steps between scores")
    parser.add_argument("--our-epochs", type=float, nargs="*", default=[2, 3, 4, 6], help="lengths of our schedule")
    parser.add_argument("--adamw-epochs", type=float, nargs="*", default=[10, 15], help="lengths with AdamW")
    parser.add_argument("--their-epochs", type=float, nargs="*", default=[8, 12, 16, 24], help="lengths of open_clip's")
    parser.add_argument("--rates", type=float, nargs="*", default=[5e-4, 1e-3], help="rates of open_clip's AdamW")
    parser.set_defaults(threads=1)
    options = parser.parse_args(argv)
    if options.quick:
        options.target, options.batch, options.every, options.val = 0.02, 32, 2, 64
        options.our_epochs = options.adamw_epochs = options.their_epochs = [0.03]
        options.rates = [5e-4]
    about, date = machine_now(options.threads), today()
    torch.set_num_threads(options.threads)
    trials, images = run(options)
    text = heading("time-to-quality", date, about, options) + "\n" + __doc__.split("\n\n", 2)[2]
    text += f"\n{images} validation images, trunk {options.trunk}, batch {options.batch}, seed {options.seed}.\n"
    record = {"bench": "time-to-quality", "date": date, "machine": about, "options": options_record(options)}
    record |= {"images": images, "trials": [asdict(trial) for trial in trials]}
    name = f"time-to-quality{'-quick' * options.quick}"
    write_dated(options.out, name, date, record, as_markdown(trials, options.target, text))


if __name__ == "__main__":
    main()
