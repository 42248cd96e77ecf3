"""Runs the training loop (fetch a batch, take gradients, step, log, score, save) to the end or a stop request."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from dinorankclip import distributed
from dinorankclip.checksums import sealing
from dinorankclip.config import BudgetSettings, RecordSettings, TrainSettings, as_dict
from dinorankclip.data.loader import PairLoader
from dinorankclip.data.replay import ReplayLoader
from dinorankclip.device import Placement
from dinorankclip.losses.telemetry import undamped_shares
from dinorankclip.models.loaded import BrokenModel
from dinorankclip.run_files import CHECKPOINTS, CORE_SECONDS
from dinorankclip.system import stop_signals
from dinorankclip.train import checkpoints
from dinorankclip.train.callbacks import Callbacks
from dinorankclip.train.checkpoints import Diverged, TrainingState
from dinorankclip.train.clock import Clock
from dinorankclip.train.run_folder import DamagedFile, Records
from dinorankclip.train.step import NonFinite, backward
from dinorankclip.types import Evaluator, LossTerms, Progress

CHOOSES_BEST, ITS_CHANCE = "val/mean R@1", "val/chance R@1"


@dataclass(frozen=True)
class Length:
    """Holds the length of a run: whole epochs, or a number of steps (`fixed`), which is `epochs` epochs or parts."""

    steps_per_epoch: int
    epochs: float
    fixed: int | None = None

    @classmethod
    def of(cls, budget: BudgetSettings, steps_per_epoch: int) -> Length:
        if budget.steps is None:
            return cls(steps_per_epoch, budget.epochs)
        return cls(steps_per_epoch, budget.steps / steps_per_epoch, budget.steps)

    @property
    def steps(self) -> int:
        return self.fixed if self.fixed is not None else round(self.steps_per_epoch * self.epochs)


def pretrain(
    state: TrainingState,
    loader: PairLoader | ReplayLoader,
    length: Length,
    evaluators: Sequence[Evaluator],
    settings: TrainSettings,
    placement: Placement,
    run: Path,
    stop: StopRequest | None = None,
    callbacks: Callbacks | None = None,
) -> bool:
    """Train from `state.step` to the end. Returns False after a request to stop (`stop`), with everything saved."""
    budget, record = settings.budget, settings.record
    records = Records(run, state.step, settings)
    callbacks = callbacks or Callbacks()
    damaged = DamagedFile(run, loader.damage)
    folder, clock = run / CHECKPOINTS, Clock(budget.batch, state.core_seconds)
    bar = tqdm(
        total=length.steps * budget.batch, initial=state.step * budget.batch, unit="pair", unit_scale=True,
        smoothing=0.1, mininterval=1.0, disable=not distributed.world().leads, dynamic_ncols=True,
    )  # fmt: skip
    try:
        with stop or StopRequest() as request, closing(iter(loader)) as batches:
            callbacks.stop_with(request.ask)
            for batch in batches:
                progress = Progress(state.step, length.steps, length.epochs)
                log, compare = due(state.step, record, length.steps)
                terms = backward(
                    state.model, state.objective, batch, progress, placement, budget.chunk, log, compare, state.updater
                )
                norm = state.updater.step(progress, state.model.logit_scale)
                state.step += 1
                ends, is_last = state.step % length.steps_per_epoch == 0, state.step == length.steps
                if log or ends:
                    state.updater.look()
                bar.update(budget.batch)
                clock.tick()
                state.core_seconds = clock.core_seconds
                if log:
                    numbers = step_numbers(terms, norm, state, progress) | clock.numbers() | damaged.numbers()
                    numbers |= spent_by_all(state)
                    records.write(state.step, numbers)
                    if distributed.world().leads:
                        callbacks("log", state.step, length.steps, numbers, run)
                    damaged.append()
                    bar.set_postfix(loss=f"{numbers['loss']:.3f}", refresh=False)
                epoch_ends = ends or is_last
                if is_last or (ends and state.step // length.steps_per_epoch % record.score_every == 0):
                    score(state, evaluators, records, length, bar, callbacks)
                ending = is_last or stops_early(state, length, settings)
                leaving = request.agreed()
                if epoch_ends or leaving or state.step % record.save_every == 0:
                    state.updater.look()
                    checkpoints.save(state, folder, record.keep)
                    clock.pause()
                if ending:
                    break
                if leaving:
                    return False
    except (NonFinite, BrokenModel) as error:
        if isinstance(error, NonFinite) and error.step is not None:
            state.step = error.step
        if isinstance(error, NonFinite) and state.step > 0:
            # The step was not applied: parameters and moments are those of the last finished step, which need not be
            # good. So this checkpoint stands beside the others and replaces none of them.
            checkpoints.save(state, folder, record.keep + 1)
        raise Diverged(str(error), run, as_dict(settings)) from error
    finally:
        sealing.wait()
        bar.close()
        damaged.append()
        records.close()
    return True


def stops_early(state: TrainingState, length: Length, settings: TrainSettings) -> bool:
    """Return whether `tune.patience` validations went by without a better one. It depends on the state alone, so that
    a run which stopped early does not go on when it is resumed."""
    between = length.steps_per_epoch * settings.record.score_every
    patience = settings.tune.patience
    return patience is not None and state.best_step > 0 and state.step - state.best_step >= patience * between


def due(step: int, record: RecordSettings, total: int) -> tuple[bool, bool]:
    """Tell if the step after `step` finished steps is logged, and if its terms' gradients are compared. The first and
    the last of all `total` steps are always logged: a short run has few others."""
    compare = record.gradient_report_every > 0 and (step + 1) % record.gradient_report_every == 0
    return compare or step in (0, total - 1) or (step + 1) % record.log_every == 0, compare


def step_numbers(terms: LossTerms, norm: Tensor, state: TrainingState, progress: Progress) -> dict[str, float]:
    """Return the numbers of a log line; losses and the objective's report are means over processes."""
    losses = {"loss": float(terms.total.detach())}
    losses |= {f"loss/{name}": float(value.detach()) for name, value in terms.terms.items()}
    return distributed.mean_over_processes(losses | terms.report) | {
        "gradient norm": float(norm),
        "learning rate": state.updater.rate(progress.step),
        "epoch": progress.epoch,
        **undamped_shares(state.updater.optimizers, state.updater.parameters.items()),
    }


def spent_by_all(state: TrainingState) -> dict[str, float]:
    """Return the core-seconds that the steps of all processes have taken so far. Every process must call this."""
    mean = distributed.mean_over_processes({CORE_SECONDS: state.core_seconds})[CORE_SECONDS]
    return {CORE_SECONDS: round(mean * distributed.world().size, 2)}


def score(
    state: TrainingState,
    evaluators: Sequence[Evaluator],
    records: Records,
    length: Length,
    bar: tqdm,
    callbacks: Callbacks,
) -> None:
    """Run the evaluators on the leading process and remember the best step so far."""
    spent = spent_by_all(state)

    def evaluate() -> None:
        state.model.eval()
        numbers = {f"{e.name}/{name}": value for e in evaluators for name, value in e(state.model)}
        state.model.train()
        if numbers:
            records.write(state.step, numbers | spent)
            callbacks("score", state.step, length.steps, numbers | spent, records.run)
        shown = ", ".join(f"{name} {100 * value:.1f} %" for name, value in numbers.items() if name.endswith("R@1"))
        epoch = f"epoch {state.step // length.steps_per_epoch}/{length.epochs}"
        bar.write(f"{epoch if length.fixed is None else f'step {state.step}/{length.steps}'}  {shown}")
        if numbers.get(CHOOSES_BEST, -1.0) > state.best:
            state.best, state.best_step = numbers[CHOOSES_BEST], state.step

    distributed.leader_first(evaluate)
    # The leader alone scores, and all stop early at the same step. The number only grows.
    state.best_step = int(distributed.gather_integers(torch.tensor([state.best_step])).max())


class StopRequest:
    """Ctrl-C, SIGTERM and the end of the terminal ask the loop to save and leave after the current step; a second
    Ctrl-C leaves at once. The end of the terminal stays ignored below `nohup`.

    Python gives signals to the main thread alone: in another thread only `ask` stops a run.
    """

    def __init__(self) -> None:
        self.signal: int | None = None  # the first signal that this process received
        self.asked = False  # by a callback
        self._earlier: dict[int, Any] = {}  # handlers to restore

    def ask(self) -> None:
        """Ask the loop to save and leave, as a signal does."""
        self.asked = True

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in stop_signals():
            self._earlier[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or number

    def agreed(self) -> bool:
        """Return True if any process was asked to stop. Every process must call this at the same step."""
        return distributed.any_process(self.asked or self.signal is not None)[0]

    @property
    def status(self) -> int:
        """Return the exit status of the signal, so that scripts stop; SIGTERM's if another process received it."""
        return 128 + (self.signal or signal.SIGTERM)
