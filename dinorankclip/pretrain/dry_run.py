"""What a run would cost, from three real steps: nothing is written."""

from __future__ import annotations

import resource
import sys
import time
from contextlib import closing

import torch

from dinorankclip.config import TrainSettings
from dinorankclip.data.loader import Loader
from dinorankclip.device import Placement
from dinorankclip.encoders.students import describe
from dinorankclip.joint.model import parameters_by_part
from dinorankclip.optim.gradients import backward
from dinorankclip.paper import HEAD_MILLIONS, LABEL, STUDENT_MILLIONS
from dinorankclip.pretrain.loop import Length
from dinorankclip.pretrain.records import say
from dinorankclip.pretrain.state import TrainingState
from dinorankclip.types import Progress

TIMED_STEPS = 3
_BYTES = 4


def dry_run(
    state: TrainingState, loader: Loader, length: Length, settings: TrainSettings, placement: Placement
) -> dict[str, float]:
    """Print parameters per part, pairs/s, hours, peak memory and disk; the first step only warms up."""
    heads = sum(p.numel() for p in state.objective.parameters())
    for line in part_lines(parameters_by_part(state.model) | {"objective": heads}, settings):
        say(line)
    name, student = state.model.students.image, state.model.image_student
    if name is not None and student is not None:
        say(f"  image student {describe(name, student)}")
    last = length.steps - 1  # late in a run every order of the ranking loss acts
    seconds, waited = [], []
    with closing(iter(loader)) as iterator:
        for step in range(1 + TIMED_STEPS):
            begin = time.perf_counter()
            batch = next(iterator)
            ready = time.perf_counter()
            progress = Progress(last, length.steps, length.epochs)
            backward(state.model, state.objective, batch, progress, placement, settings.budget.chunk)
            state.updater.step(progress, state.model.trunk.logit_scale)
            if placement.device.type == "cuda":
                torch.cuda.synchronize()
            if step > 0:
                seconds.append(time.perf_counter() - ready)
                waited.append(ready - begin)
    step_seconds = sum(seconds) / len(seconds)
    rate = settings.budget.batch / step_seconds
    wait = sum(waited) / len(waited)
    hours = (step_seconds + wait) * length.steps / 3600
    trainable = sum(p.numel() for p in state.updater.parameters.values())
    everything = sum(t.numel() for t in state.model.state_dict().values()) + heads
    checkpoint = _BYTES * (everything + 2 * trainable)  # weights and AdamW's two moments
    disk = checkpoint * (settings.record.keep + 2)  # the newest is written before the oldest goes
    memory = peak_memory(placement.device)
    say(f"  {'steps':<18}{length.steps:10d} ({length.steps_per_epoch} an epoch, {length.epochs} epochs)")
    say(f"  {'step':<18}{step_seconds:10.3f} s, and {wait:.3f} s waiting for data")
    say(f"  {'speed':<18}{rate:10.0f} pairs/s")
    say(f"  {'whole run':<18}{lasting(3600 * hours)} (validation not counted)")
    say(f"  {'peak memory':<18}{memory / 1e9:10.2f} GB a process")
    kept = f"{settings.record.keep} checkpoints and the best, one more while writing, {checkpoint / 1e6:.0f} MB each"
    say(f"  {'disk':<18}{disk / 1e9:10.2f} GB ({kept})")
    return {"pairs/s": rate, "hours": hours, "memory": memory, "disk": disk}


def lasting(seconds: float) -> str:
    """In the unit that a person would use, ten places before it."""
    for most, worth, unit in ((120, 1, "s"), (7200, 60, "min")):
        if seconds < most:
            return f"{seconds / worth:10.0f} {unit}"
    return f"{seconds / 3600:10.1f} h"


def part_lines(counts: dict[str, int], settings: TrainSettings) -> list[str]:
    """`image_student  5.52 M parameters (paper (projected): 5.7)`; its counts hold for its own preset alone."""
    said = {}
    if settings.preset == "cc3m":
        said = dict.fromkeys(("image_student", "text_student"), STUDENT_MILLIONS)
        said["objective"] = HEAD_MILLIONS[settings.loss.order]
    return [
        f"  {part:<18}{count / 1e6:10.2f} M parameters" + (f" ({LABEL}: {said[part]})" if part in said else "")
        for part, count in counts.items()
    ]


def peak_memory(device: torch.device) -> float:
    """Bytes: the GPU's allocator peak, or this process's largest resident size."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024.0
