"""Estimates the cost of a run, and reads the actual cost and the training data of a run folder.

`dry_run` times three real steps and writes nothing. `spending` reads a run folder, but no weights. `unmatched` lists
the differences that make two runs incomparable. `run_data` returns the data of a run, to warn of scores on it.
"""

from __future__ import annotations

import dataclasses
import math
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dinorankclip import run_files as files
from dinorankclip.config import FindingSettings, TrainSettings
from dinorankclip.data.benchmark_sets import SetLocation
from dinorankclip.data.loader import PairLoader
from dinorankclip.data.open_data import PAIRS, SCENES, located, splits_of
from dinorankclip.data.replay import ReplayLoader
from dinorankclip.device import Placement
from dinorankclip.methods import HEAD_MILLIONS, LABEL, STUDENT_MILLIONS, title_of_stored, traits_of_stored
from dinorankclip.models.card import with_own_trunk
from dinorankclip.models.joint import parameters_by_part
from dinorankclip.models.students import describe
from dinorankclip.models.weights_file import tensor_shapes
from dinorankclip.stored_settings import difference, is_among
from dinorankclip.system import peak_memory
from dinorankclip.teachers.cache_format import PLAN, read_plan_notes
from dinorankclip.train.checkpoints import TrainingState, newest
from dinorankclip.train.loop import Length
from dinorankclip.train.muon import Muon
from dinorankclip.train.run_folder import say
from dinorankclip.train.step import backward
from dinorankclip.types import Progress

TIMED_STEPS = 3
METHOD_SETTINGS = ("preset", "method", "loss.", "distil.", "fusion.", "anchor.")  # comparable runs may differ in these
NEUTRAL_SETTINGS = ("budget.chunk", "budget.compile", "budget.device", "record.")  # these do not change gradients
SPLIT_SETTINGS = ("val_fraction", "val_most", "group_column", "epoch_samples")  # these select the held-out images
NONE_HELD_OUT = "the model was trained on these pairs"
OTHERS_HELD_OUT = "divided in another way than for the model's training: it was trained on some of these pairs"


def dry_run(
    state: TrainingState,
    loader: PairLoader | ReplayLoader,
    length: Length,
    settings: TrainSettings,
    placement: Placement,
) -> None:
    """Print parameters per part, pairs/s, hours, peak memory and disk; the first step only warms up."""
    heads = sum(p.numel() for p in state.objective.parameters())
    for line in _part_lines(parameters_by_part(state.model) | {"objective": heads}, settings):
        say(line)
    name, student = state.model.students.image, state.model.image_student
    if name is not None and student is not None:
        say(f"  image student {describe(name, student)}")
    progress = Progress(length.steps - 1, length.steps, length.epochs)  # late in a run all orders of the loss act
    seconds, waited = [], []
    with closing(iter(loader)) as batches:
        for step in range(1 + TIMED_STEPS):
            begin = time.perf_counter()
            batch = next(batches)
            ready = time.perf_counter()
            chunk = settings.budget.chunk
            backward(state.model, state.objective, batch, progress, placement, chunk, updater=state.updater)
            state.updater.step(progress, state.model.logit_scale)
            state.updater.look()
            if placement.device.type == "cuda":
                torch.cuda.synchronize()
            if step > 0:
                seconds.append(time.perf_counter() - ready)
                waited.append(ready - begin)
    step_seconds, wait = sum(seconds) / len(seconds), sum(waited) / len(waited)
    rate = settings.budget.batch / step_seconds
    hours = (step_seconds + wait) * length.steps / 3600
    trainable = sum(p.numel() for p in state.updater.parameters.values())
    everything = sum(t.numel() for t in state.model.state_dict().values()) + heads
    by_muon = (o for o in state.updater.optimizers if isinstance(o, Muon))
    one_moment = sum(p.numel() for o in by_muon for group in o.param_groups for p in group["params"])
    checkpoint = 4 * (everything + 2 * trainable - one_moment)  # bytes: weights, two moments of AdamW or one of Muon
    disk = checkpoint * (settings.record.keep + 2)  # the newest is written before the oldest goes
    memory = _peak_memory(placement.device)
    say(f"  {'steps':<18}{length.steps:10d} ({length.steps_per_epoch} an epoch, {length.epochs:.4g} epochs)")
    say(f"  {'step':<18}{step_seconds:10.3f} s, and {wait:.3f} s waiting for data")
    say(f"  {'speed':<18}{rate:10.0f} pairs/s")
    say(f"  {'whole run':<18}{lasting(3600 * hours)} (validation not counted)")
    if memory is not None:
        say(f"  {'peak memory':<18}{memory / 1e9:10.2f} GB a process")
    folders = f"{settings.record.keep} checkpoints and the best, one more while writing, {checkpoint / 1e6:.0f} MB each"
    say(f"  {'disk':<18}{disk / 1e9:10.2f} GB ({folders})")


def lasting(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours; the number is ten characters wide."""
    for most, worth, unit in ((120, 1, "s"), (7200, 60, "min")):
        if seconds < most:
            return f"{seconds / worth:10.0f} {unit}"
    return f"{seconds / 3600:10.1f} h"


def _part_lines(counts: dict[str, int], settings: TrainSettings) -> list[str]:
    """Return lines such as `image_student  5.52 M parameters`; the preset cc3m adds the counts of the paper."""
    paper = {}
    if settings.preset == "cc3m":
        paper = dict.fromkeys(("image_student", "text_student"), STUDENT_MILLIONS)
        paper["objective"] = HEAD_MILLIONS[settings.loss.order]
    return [
        f"  {part:<18}{count / 1e6:10.2f} M parameters" + (f" ({LABEL}: {paper[part]})" if part in paper else "")
        for part, count in counts.items()
    ]


def _peak_memory(device: torch.device) -> float | None:
    """Return bytes: the peak of the GPU's allocator, or the largest resident size of this process, None if unknown."""
    return float(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else peak_memory()


@dataclass(frozen=True)
class Spending:
    """Holds the cost of a run; None: not known. `heads` counts trained parameters of the loss, outside the model."""

    settings: dict[str, Any]
    pairs_seen: int | None
    model_parameters: int | None
    heads: int | None
    data: str | None  # fingerprint of the training part
    teacher: str | None  # teachers of the cached features, with the notes that a table must print
    device: str | None = None  # cpu or cuda
    precision: str | None = None  # the precision in use, even if the settings say auto
    inert: tuple[int, ...] = ()  # orders that did not act

    @property
    def method(self) -> str:
        """Return the name of the method for readers: `rank, order 3`, then fusion and distillation."""
        settings, traits = self.settings, traits_of_stored(self.settings["method"])
        words = [title_of_stored(settings)]
        if traits.fixed_order is None:
            inert = files.inert_words(list(self.inert))
            words.append(f"order {settings['loss']['order']}" + (f" ({inert})" if inert else ""))
        fusion, distil = settings.get("fusion", {}), settings.get("distil", {})
        if fusion.get("variant", "none") != "none":
            source = " of the trunk's tokens" if fusion.get("source") == "trunk" else ""
            words.append(f"fusion {fusion['variant']}{source}")
        if distil.get("cache") is not None:
            into_trunk = distil.get("into") == "trunk"
            if not into_trunk or distil["weight"] > 0:
                words.append(f"distilled{' into the trunk' if into_trunk else ''} by {distil['criterion']}")
            if settings.get("anchor", {}).get("weight"):
                words.append("anchored")
            if distil.get("shuffled"):
                words.append("features of other images")
        if settings.get("loss", {}).get("two_captions"):
            words.append("two captions")
        if settings.get("loss", {}).get("decorrelation"):
            words.append("decorrelated")
        return ", ".join(words)


def spending(run: Path) -> Spending:
    """Read the cost of `run` up to its last checkpoint, or up to its scores if they are later."""
    last = run / files.CHECKPOINTS / files.LAST
    settings = with_own_trunk(files.read_settings(run), last)
    numbers, environment = files.read_numbers(last), files.read_environment(run)
    steps = files.stored_scores(run).get("step", numbers.get("step"))
    # The final weights of a fine-tuned run may be no checkpoint: the newest has the moments.
    tensors = (last if (last / files.TENSORS).is_file() else newest(run / files.CHECKPOINTS) or last) / files.TENSORS
    trained = _trained_parameters(tensors) if tensors.is_file() else None
    return Spending(
        settings,
        None if steps is None else steps * settings["budget"]["batch"],
        None if trained is None else trained["model"],
        None if trained is None else trained["objective"],
        # A teacher cache adds its own identity behind a plus; the pairs are the same.
        numbers["data"].split("+")[0] if "data" in numbers else None,
        _teacher(settings.get("distil", {}).get("cache")),
        environment.get("device"),
        environment.get("precision"),
        tuple(files.inert_orders(run)),
    )


def _teacher(cache: str | None) -> str | None:
    """Return the teachers that the cache names; its path if the folder is gone."""
    if cache is None:
        return None
    if not (Path(cache) / PLAN).is_file():
        return f"of {cache}"
    plan = read_plan_notes(Path(cache))
    sides = [plan, *([plan["text"]] if plan.get("text") else [])]
    return ", ".join(side["teacher"] + (f" ({side['note']})" if side.get("note") else "") for side in sides)


def _trained_parameters(path: Path) -> dict[str, int] | None:
    """Count the parameters with moments of AdamW or Muon, by module; frozen parameters and orders not begun have none.
    Returns None if the optimiser was not stored."""
    counts = {"model": 0, "objective": 0}
    for name, shape in tensor_shapes(path).items():
        module = name.removeprefix("optimizer/").split(".")[0]
        if name.startswith("optimizer/") and name.endswith(("/exp_avg", "/momentum")) and module in counts:
            counts[module] += math.prod(shape)
    return counts if any(counts.values()) else None


def time_of_both(a: Spending, b: Spending) -> str | None:
    """Return the budget in time that two runs share, in words; None if they were given none, or not the same, or if one
    of them did not take the steps that were measured for it."""
    for each in (a, b):
        steps, batch = (each.settings["budget"].get(name) for name in ("steps", "batch"))
        if steps is None or batch is None or each.pairs_seen != steps * batch:
            return None
    for name, unit in (("core_seconds", "core-seconds"), ("minutes", "minutes")):
        budgets = [each.settings["budget"].get(name) for each in (a, b)]
        if budgets[0] is not None and budgets[0] == budgets[1]:
            return f"{budgets[0]:g} {unit}"
    return None


def unmatched(a: Spending, b: Spending) -> list[str]:
    """Return lines `name: A → B` for every difference besides the method; empty if the runs are comparable: by pairs
    seen, or by time if both were given the same budget in time."""
    by_time = time_of_both(a, b) is not None
    ignored = METHOD_SETTINGS + NEUTRAL_SETTINGS + (("data",) if a.data and b.data else ())
    ignored += ("budget.steps",) if by_time else ()
    recipes = {each.settings.get("recipe") for each in (a, b)}
    if "aligned" not in recipes:  # what any other recipe sets differs under its own name
        ignored += ("recipe",)
    lines = [line for line in difference(a.settings, b.settings) if not is_among(line.split(":")[0], ignored)]
    if a.data and b.data and a.data != b.data:
        lines.append(f"training data: {a.settings['data']} ({a.data[:8]}) → {b.settings['data']} ({b.data[:8]})")
    if a.precision and b.precision and a.precision != b.precision:
        lines.append(f"precision: {a.precision} → {b.precision}")
    if a.pairs_seen != b.pairs_seen and not by_time:
        lines.append(f"pairs seen: {a.pairs_seen} → {b.pairs_seen}")
    return lines


@dataclass(frozen=True)
class RunData:
    """Holds the data of a run and the settings by which its pairs were found and divided."""

    where: str
    reading: FindingSettings

    def is_same(self, where: str) -> bool:
        """Return True if a user who types `where` means this data."""
        return where == self.where or _resolved(where) == _resolved(self.where)

    def reading_for(self, asked: FindingSettings) -> FindingSettings:
        """Return the run's own settings, changed by those of `asked` that differ from the defaults."""
        usual = FindingSettings()
        names = [field.name for field in dataclasses.fields(usual)]
        changed = {name: getattr(asked, name) for name in names if getattr(asked, name) != getattr(usual, name)}
        return dataclasses.replace(self.reading, **changed)

    def caution(self, place: SetLocation, split: str | None) -> str:
        """Return a caution for scores of this run on a part of `place`; "" if the run was not trained on that part."""
        if not self.is_same(place.where):
            return ""
        if split in ("train", "all"):
            return NONE_HELD_OUT
        own = splits_of(place.where, place.reading)
        if own != ("all",) and (split is None or split in own):
            return ""  # a part of its own, which no setting divides
        same = all(getattr(place.reading, name) == getattr(self.reading, name) for name in SPLIT_SETTINGS)
        return "" if same else OTHERS_HELD_OUT


def _resolved(where: str) -> Path:
    """Return the folder of pairs without drawing built-in scenes."""
    return (SCENES / PAIRS if where == "scenes" else Path(located(where))).resolve()


def run_data(model: str | Path) -> RunData | None:
    """Return the data of a run, or of the run that a checkpoint belongs to; None for other models."""
    if (run := files.run_of(model)) is None:
        return None
    settings = files.read_settings(run)
    return RunData(files.data_of(run), stored_reading(settings["reading"]))


def stored_reading(stored: dict[str, Any]) -> FindingSettings:
    """Return the reading settings of a run folder, without settings that this version does not know."""
    known = {field.name for field in dataclasses.fields(FindingSettings)}
    return FindingSettings(**{name: value for name, value in stored.items() if name in known})
