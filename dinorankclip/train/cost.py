"""What a run would cost, from three real steps: nothing is written."""

from __future__ import annotations

import dataclasses
import json
import math
import resource
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dinorankclip.config import FindingSettings, TrainSettings, difference
from dinorankclip.data.benchmark_sets import Place
from dinorankclip.data.loader import Loader
from dinorankclip.data.open_data import PAIRS, SCENES, located, splits_of
from dinorankclip.device import Placement
from dinorankclip.methods import HEAD_MILLIONS, LABEL, STUDENT_MILLIONS, traits_of_stored
from dinorankclip.models.card import with_own_trunk
from dinorankclip.models.joint import parameters_by_part
from dinorankclip.models.students import describe
from dinorankclip.run_files import (
    CHECKPOINTS,
    ENVIRONMENT,
    LAST,
    NUMBERS,
    SCORES,
    TENSORS,
    inert_orders,
    inert_words,
    is_run,
    read_object,
    read_settings,
)
from dinorankclip.teachers.cache_format import PLAN
from dinorankclip.train.checkpoints import TrainingState
from dinorankclip.train.gradients import backward
from dinorankclip.train.loop import Length
from dinorankclip.train.run_folder import say
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


# -------- budget
# What a run has spent, read from its folder, and whether two runs may be compared: same data, compute and start.
#
# Only small JSON and the head of one file are read, no weights.

# What makes a method a method; everything else must agree for a difference to be the method's.
OF_THE_METHOD = ("preset", "method", "loss.", "distil.", "fusion.")
# Gradients are the same however a batch is cut and wherever it is computed.
WITHOUT_EFFECT = ("budget.chunk", "budget.device", "record.")


@dataclass(frozen=True)
class Spending:
    """`heads` are trained parameters that only the loss uses; they are not part of the model. None: not known."""

    settings: dict[str, Any]
    pairs_seen: int | None
    model_parameters: int | None
    heads: int | None
    data: str | None  # fingerprint of the training part
    teacher: str | None  # of the cached features, with what a table must say beside its results
    device: str | None = None  # cpu or cuda
    precision: str | None = None  # what was computed in, where the settings may say auto
    inert: tuple[int, ...] = ()  # orders that did not act

    @property
    def method(self) -> str:
        """As a reader would name it: `rank, order 3`, with what was added to it."""
        settings, traits = self.settings, traits_of_stored(self.settings["method"])
        words = [traits.title or settings["method"]]
        if traits.fixed_order is None:
            inert = inert_words(list(self.inert))
            words.append(f"order {settings['loss']['order']}" + (f" ({inert})" if inert else ""))
        fusion = settings.get("fusion", {}).get("variant", "none")
        if fusion != "none":
            words.append(f"fusion {fusion}")
        if settings.get("distil", {}).get("cache") is not None:
            where = " into the trunk" if settings["distil"].get("into") == "trunk" else ""
            words.append(f"distilled{where} by {settings['distil']['criterion']}")
        return ", ".join(words)


def spending(run: Path) -> Spending:
    """What `run` has spent up to its last checkpoint or, if it was scored at its end, up to there."""
    last = run / CHECKPOINTS / LAST
    settings = with_own_trunk(read_settings(run), last)
    numbers = read_object(last / NUMBERS) if (last / NUMBERS).is_file() else {}
    scores = read_object(run / SCORES) if (run / SCORES).is_file() else {}
    steps = scores.get("step", numbers.get("step"))
    around = read_object(run / ENVIRONMENT) if (run / ENVIRONMENT).is_file() else {}
    trained = _trained(last / TENSORS) if (last / TENSORS).is_file() else None
    return Spending(
        settings,
        None if steps is None else steps * settings["budget"]["batch"],
        None if trained is None else trained["model"],
        None if trained is None else trained["objective"],
        # A teacher cache adds its own identity behind a plus; the pairs are the same.
        numbers["data"].split("+")[0] if "data" in numbers else None,
        _teacher(settings.get("distil", {}).get("cache")),
        around.get("device"),
        around.get("precision"),
        tuple(inert_orders(run)),
    )


def unmatched(a: Spending, b: Spending) -> list[str]:
    """Lines `name: A → B` for all that differs besides the method; empty if a difference is the method's."""
    ignored = OF_THE_METHOD + WITHOUT_EFFECT + (("data",) if a.data and b.data else ())
    lines = [
        line
        for line in difference(a.settings, b.settings)
        if not any(_covers(pattern, line.split(":")[0]) for pattern in ignored)
    ]
    if a.data and b.data and a.data != b.data:
        lines.append(f"training data: {a.settings['data']} ({a.data[:8]}) → {b.settings['data']} ({b.data[:8]})")
    if a.precision and b.precision and a.precision != b.precision:
        lines.append(f"precision: {a.precision} → {b.precision}")
    if a.pairs_seen != b.pairs_seen:
        lines.append(f"pairs seen: {a.pairs_seen} → {b.pairs_seen}")
    return lines


def _teacher(cache: str | None) -> str | None:
    """Who the cache says its teachers were; its path if the folder is gone."""
    if cache is None:
        return None
    if not (Path(cache) / PLAN).is_file():
        return f"of {cache}"
    plan = read_object(Path(cache) / PLAN)
    told = [plan, *([plan["text"]] if plan.get("text") else [])]
    return ", ".join(one["teacher"] + (f" ({one['note']})" if one.get("note") else "") for one in told)


def _covers(pattern: str, name: str) -> bool:
    return name == pattern or (pattern.endswith(".") and name.startswith(pattern))


def _trained(path: Path) -> dict[str, int] | None:
    """Numbers that AdamW has moments for, by part; a frozen parameter, or an order not begun, has none. None where the
    optimiser was not kept."""
    found = {"model": 0, "objective": 0}
    with open(path, "rb") as file:  # safetensors: length of the head (8 bytes), then the head as JSON
        head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    for name, entry in head.items():
        if name.startswith("optimizer/") and name.endswith("/exp_avg"):
            found[name.removeprefix("optimizer/").split(".")[0]] += math.prod(entry["shape"])
    return found if any(found.values()) else None


# -------- run_data
# What a run was trained on, read from its folder: the data, and how its pairs were found and divided.

DIVIDING = ("val_fraction", "val_most", "group_column", "epoch_samples")  # what decides which images are set aside
NONE_HELD_OUT = "the model was trained on these pairs"
OTHERS_HELD_OUT = "divided in another way than for the model's training: it was trained on some of these pairs"


@dataclass(frozen=True)
class RunData:
    where: str
    reading: FindingSettings

    def is_same(self, where: str) -> bool:
        """Whether a user who types `where` means this data."""
        return where == self.where or _path(where) == _path(self.where)

    def reading_for(self, asked: FindingSettings) -> FindingSettings:
        """The run's own reading, but for what was asked for."""
        usual = FindingSettings()
        names = [each.name for each in dataclasses.fields(usual)]
        changed = {name: getattr(asked, name) for name in names if getattr(asked, name) != getattr(usual, name)}
        return dataclasses.replace(self.reading, **changed)

    def caution(self, place: Place, split: str | None) -> str:
        """What must be said of scores of this run on a part of `place`; "" if it has not seen that part."""
        if not self.is_same(place.where):
            return ""
        if split in ("train", "all"):
            return NONE_HELD_OUT
        own = splits_of(place.where, place.reading)
        if own != ("all",) and (split is None or split in own):
            return ""  # a part of its own, which no setting divides
        same = all(getattr(place.reading, name) == getattr(self.reading, name) for name in DIVIDING)
        return "" if same else OTHERS_HELD_OUT


def _path(where: str) -> Path:
    """Where pairs lie; built-in ones are not made for the sake of this question."""
    return (SCENES / PAIRS if where == "scenes" else Path(located(where))).resolve()


def run_data(model: str | Path) -> RunData | None:
    """Of a run, or of the run that a checkpoint belongs to; None of other models."""
    path = Path(model)
    for folder in (path, *path.absolute().parents[:2]) if path.is_dir() else ():  # RUN/checkpoints/last
        if is_run(folder):
            settings = read_settings(folder)
            return RunData(str(settings["data"]), stored_reading(settings["reading"]))
    return None


def stored_reading(stored: dict[str, Any]) -> FindingSettings:
    """Settings that this version does not know are left out."""
    known = {each.name for each in dataclasses.fields(FindingSettings)}
    return FindingSettings(**{name: value for name, value in stored.items() if name in known})
