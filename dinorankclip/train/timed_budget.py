"""Turns a budget in time into a number of steps, before the first step of a run.

A schedule needs to know its last step, and a resumed run must follow the same schedule. So a few steps are timed on
throw-away objects, the number of steps is fixed, and config.json stores it: the run is then exactly that of
`--budget.steps N`. Only steps count, with the waiting for data: preparation and scoring come on top.
"""

from __future__ import annotations

import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from dinorankclip import distributed
from dinorankclip.checksums import sealed
from dinorankclip.config import TrainSettings, as_dict, with_changes
from dinorankclip.io import write_json
from dinorankclip.run_files import CONFIG, is_run, read_settings
from dinorankclip.train.assemble import RunParts, assemble
from dinorankclip.train.clock import core_time
from dinorankclip.train.run_folder import has_begun, say
from dinorankclip.train.step import backward
from dinorankclip.types import Progress, UserError

WARM_UP, FEWEST, MOST = 2, 5, 200  # steps: not timed; timed at least; timed at most
TIMED_SECONDS = 5.0  # steps are timed for about this long
BUSY = 0.75  # share of a core below which a thread waits for it; on an idle machine threads that spin have nearly all
FASTER = 0.9  # one thread is taken if it needs less than this share of the time: a smaller gain may be noise


@dataclass(frozen=True)
class StepCost:
    """Holds the cost of a step: seconds on the clock, seconds of all cores of all processes and their readers, and
    those without the readers."""

    seconds: float
    core_seconds: float
    own_seconds: float = 0.0


def in_time(settings: TrainSettings) -> bool:
    """Return whether the length of the run is yet to be measured."""
    budget = settings.budget
    return budget.steps is None and (budget.minutes is not None or budget.core_seconds is not None)


def as_measured_in(run: Path, settings: TrainSettings) -> TrainSettings:
    """Return the settings with the number of steps that was measured when the run began."""
    if not in_time(settings) or not is_run(run) or not has_begun(run):
        return settings
    try:
        stored = read_settings(run)["budget"]
    except UserError:  # a damaged file: `claim` reports it
        return settings
    asked = as_dict(settings)["budget"]
    if any(stored.get(name) != asked[name] for name in ("minutes", "core_seconds")):
        return settings
    threads = {"budget.threads": stored.get("threads")} if asked["threads"] is None else {}
    return with_changes(settings, {"budget.steps": stored.get("steps"), **threads})


def steps_alone(settings: TrainSettings, run: Path | None) -> TrainSettings:
    """Return the settings without a budget in time where steps were given beside it: steps decide. They stay together
    in a run that measured these steps for this time, and goes on by its own config.json."""
    budget = settings.budget
    if budget.steps is None or (budget.minutes is None and budget.core_seconds is None):
        return settings
    if run is not None and is_run(run) and has_begun(run):
        with suppress(UserError):  # a damaged file: `claim` reports it
            stored, asked = read_settings(run)["budget"], as_dict(settings)["budget"]
            if all(stored.get(name) == asked[name] for name in ("steps", "minutes", "core_seconds")):
                return settings
    say(f"note: --budget.steps {budget.steps} decides the length of the run, not its time")
    return with_changes(settings, {"budget.minutes": None, "budget.core_seconds": None})


def measured(settings: TrainSettings, run: Path | None) -> TrainSettings:
    """Return the settings with the number of steps that fits the budget, and store them in the run folder."""
    if not in_time(settings):
        return settings
    parts = assemble(settings, dry=run is None)
    cost = step_cost(parts)
    if distributed.any_process(_waits_for_cores(cost, settings, parts))[0]:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        if (alone := step_cost(parts)).seconds < FASTER * cost.seconds:
            say(
                f"the {threads} threads get less than a core each, and wait for each other: one thread takes "
                f"{alone.seconds:.3g} s for a step, they take {cost.seconds:.3g} s, so one is used (--budget.threads "
                f"{threads} overrules it)"
            )
            cost, settings = alone, with_changes(settings, {"budget.threads": 1})
        else:
            torch.set_num_threads(threads)
    budget = settings.budget
    steps = steps_within(cost, budget.minutes, budget.core_seconds)
    epochs = steps / parts.length.steps_per_epoch
    say(
        f"a step takes {cost.seconds:.3g} s, {cost.core_seconds:.3g} core-seconds: {steps} steps ({epochs:.3g} epochs) "
        "fit the budget"
    )
    settings = with_changes(settings, {"budget.steps": steps})
    if run is not None and distributed.world().leads:
        write_json(run / CONFIG, sealed(as_dict(settings)))
    return settings


def _waits_for_cores(cost: StepCost, settings: TrainSettings, parts: RunParts) -> bool:
    """Return whether the threads of a CPU got much less than a core each."""
    threads = torch.get_num_threads()
    chosen = settings.budget.threads is not None or parts.placement.device.type != "cpu" or threads == 1
    return not chosen and cost.own_seconds < BUSY * threads * cost.seconds * distributed.world().size


def steps_within(cost: StepCost, minutes: float | None, core_seconds: float | None) -> int:
    """Return the number of whole steps that fit the budget, at least 1."""
    if minutes is not None:
        return max(1, int(60 * minutes / cost.seconds))
    assert core_seconds is not None, "one of the two is given"
    return max(1, int(core_seconds / cost.core_seconds))


def step_cost(parts: RunParts) -> StepCost:
    """Time real steps of a run, which spoil its weights. The result is the same on every process."""
    length, model, updater = parts.length, parts.state.model, parts.state.updater
    chunk = parts.settings.budget.chunk
    progress = Progress(length.steps - 1, length.steps, length.epochs)  # late in a run all orders of the loss act
    with closing(iter(parts.loader)) as batches:

        def take(count: int) -> tuple[float, float, float]:
            clock, cores, own = time.perf_counter(), core_time(), time.process_time()
            for _ in range(count):
                batch = next(batches)
                backward(model, parts.state.objective, batch, progress, parts.placement, chunk, updater=updater)
                updater.step(progress, model.logit_scale)
            updater.look()
            if parts.placement.device.type == "cuda":
                torch.cuda.synchronize()
            spent = {"s": time.perf_counter() - clock, "cores": core_time() - cores, "own": time.process_time() - own}
            mean, size = distributed.mean_over_processes(spent), distributed.world().size
            return mean["s"], mean["cores"] * size, mean["own"] * size

        take(WARM_UP)
        taken = take(FEWEST)
        more = min(MOST, int(FEWEST * TIMED_SECONDS / max(taken[0], 1e-9))) - FEWEST
        if more > 0:
            further = take(more)
            taken = taken[0] + further[0], taken[1] + further[1], taken[2] + further[2]
    steps = FEWEST + max(0, more)
    return StepCost(*(max(seconds / steps, 1e-9) for seconds in taken))
