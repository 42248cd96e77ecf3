"""Reads a run folder as a doctor would: is it learning, does its schedule fit, what went wrong."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import tyro

from dinorankclip.config import CheckingSettings
from dinorankclip.methods import traits_of_stored
from dinorankclip.run_files import BEST, CHECKPOINTS, CONFIG, METRICS, is_run, read_settings
from dinorankclip.train import checkpoints
from dinorankclip.train.ending import DIVERGED, STOPPED, read_ending, train_command, way_on
from dinorankclip.train.loop import CHOOSES_BEST, ITS_CHANCE
from dinorankclip.train.optimizer import warmup_length
from dinorankclip.train.run_folder import has_begun
from dinorankclip.types import Finding, UserError

STUCK_WITHIN = 0.03  # of ln B: no better than guessing
FAIR_CHANCE = 100  # steps before a loss at ln B is called stuck
FEW_STEPS = 200  # a whole run shorter than this hardly leaves the warm-up
LONG_WARMUP = 0.3
HOTTEST = 99.0  # the temperature's bound is 100
FEW_NEGATIVES = 64


def examine_run(folder: Path) -> Iterator[Finding]:
    settings = read_settings(folder)
    yield from _ending(folder, settings)
    lines = read_metrics(folder / METRICS)
    steps = [line for line in lines if "loss" in line]
    if not steps:
        if has_begun(folder):
            yield Finding("note", "the run has logged no step yet", "look at what the train command printed")
        else:
            yield Finding(
                "note",
                "the run has no step and no checkpoint yet, so there is no model to use",
                "give its train command again; if that was refused, mended: until the first step the folder may change "
                "its settings",
            )
        return
    yield from _checkpoints(folder, steps)
    yield from _learning(settings, steps)
    yield from _schedule(settings, steps)
    yield from _reading(steps)
    yield from _scores(lines)


def _ending(folder: Path, settings: dict[str, Any]) -> Iterator[Finding]:
    ending = read_ending(folder)
    if ending is None:
        return
    again = train_command(settings | {"run": str(folder)})  # which may have been moved
    after = f"after {ending.step} step{'s' * (ending.step != 1)}"
    if ending.how == STOPPED:
        yield Finding("note", f"stopped on request {after}", f"go on: {again}")
    elif ending.how == DIVERGED:
        yield Finding("problem", f"the run diverged {after}: {ending.why}", way_on(folder, settings))
    else:
        yield Finding("problem", f"the run failed {after}: {ending.why}", f"mend that, then go on: {again}")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole lines; a line that a kill cut short is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _checkpoints(folder: Path, steps: list[dict[str, Any]]) -> Iterator[Finding]:
    newest = checkpoints.newest(folder / CHECKPOINTS)
    if newest is None:
        yield Finding(
            "problem", "no checkpoint was written", "a kill now would lose everything: lower --record.save-every"
        )
    else:
        done = max(steps[-1]["step"], checkpoints.step_of(newest))
        lines = f"{len(steps)} line{'s' * (len(steps) > 1)} logged of {done} step{'s' * (done != 1)}"
        yield Finding("fine", f"{lines}, newest checkpoint {newest.name}")


def _learning(settings: dict[str, Any], steps: list[dict[str, Any]]) -> Iterator[Finding]:
    bad = [line["step"] for line in steps if not math.isfinite(line["loss"])]
    if bad:
        yield Finding("problem", f"the loss was not finite at step {bad[0]}", "lower --optim.lr or check the data")
    # Distil-only runs have no contrastive loss, and ALIP's is weighted: ln B is no measure of either.
    contrastive = [line["loss/contrastive"] for line in steps if "loss/contrastive" in line]
    contrastive = [] if traits_of_stored(settings["method"]).second_caption else contrastive[-5:]
    recent = sum(contrastive) / max(1, len(contrastive))
    guessing = math.log(settings["budget"]["batch"])
    last = steps[-1]
    if not contrastive:
        yield Finding("fine", f"loss {last['loss']:.3f}; by this method's loss nobody can tell whether it is guessing")
    elif last["step"] >= FAIR_CHANCE and recent > (1 - STUCK_WITHIN) * guessing:
        yield Finding(
            "problem",
            f"the contrastive loss {recent:.3f} is stuck at ln B = {guessing:.3f}: the model is guessing",
            "check that captions belong to their images (`dinorankclip data show`); lower --optim.lr by 3 to 10; "
            "lengthen the warm-up; with few pairs start from trained weights (--init)",
        )
    elif recent >= guessing:
        yield Finding(
            "note",
            f"contrastive loss {recent:.3f}, no better than guessing ({guessing:.3f})",
            "usual in the first steps; if it stays so, lower --optim.lr by 3 to 10",
        )
    else:
        yield Finding("fine", f"contrastive loss {recent:.3f}, guessing would be {guessing:.3f}")
    scale = math.exp(last["logit_scale"]) if "logit_scale" in last else None
    if scale is not None and scale > HOTTEST:
        yield Finding(
            "note",
            f"the inverse temperature is at its bound ({scale:.0f})",
            "usual late in long runs; early: lower --optim.lr",
        )
    batch, total = settings["budget"]["batch"], _total_steps(settings, steps)
    # Of small data a larger batch would leave too few steps: a quarter of the pairs is what `train` recommends at most.
    room = batch * round(total / settings["budget"]["epochs"]) // 4 if total else 0
    if batch < FEW_NEGATIVES and room > batch:
        yield Finding(
            "note",
            f"a batch of {batch} gives few negatives",
            f"--budget.batch larger (up to {room} with these pairs) with --budget.chunk for memory: gradients stay "
            "those of the whole batch",
        )


def _schedule(settings: dict[str, Any], steps: list[dict[str, Any]]) -> Iterator[Finding]:
    total = _total_steps(settings, steps)
    if total is None:
        return
    warmup = warmup_length(total, settings["optim"]["warmup_steps"])
    if warmup > LONG_WARMUP * total:
        yield Finding(
            "problem",
            f"warm-up takes {warmup} of {total} steps, so the full rate is hardly used",
            "leave --optim.warmup-steps unset (5 % of the steps) or train longer",
        )
    elif total < FEW_STEPS:
        smaller = " or a smaller batch" if settings["budget"]["batch"] > FEW_NEGATIVES else ""
        yield Finding("note", f"only {total} steps in all", f"more epochs{smaller}; CLIP from scratch needs thousands")
    else:
        yield Finding("fine", f"{total} steps, {warmup} of them warm-up")


def _total_steps(settings: dict[str, Any], steps: list[dict[str, Any]]) -> int | None:
    """From a logged pair of step and epoch, since the run folder does not know the size of the data."""
    for line in reversed(steps):
        if line.get("epoch", 0) > 0 and line["step"] > 1:
            return round((line["step"] - 1) / line["epoch"] * settings["budget"]["epochs"])
    return None


def _reading(steps: list[dict[str, Any]]) -> Iterator[Finding]:
    replaced = {name: value for name, value in steps[-1].items() if name.startswith("damaged/") and value}
    if replaced:
        causes = ", ".join(f"{name.split('/')[1]} {value:.0f}" for name, value in replaced.items())
        yield Finding("note", f"damaged samples were replaced: {causes}", "`dinorankclip doctor DATA` names them")


def _scores(lines: list[dict[str, Any]]) -> Iterator[Finding]:
    scores = [(line["step"], line[CHOOSES_BEST], line[ITS_CHANCE]) for line in lines if CHOOSES_BEST in line]
    if not scores:
        yield Finding("note", "no validation score yet", "one is taken at the end of every epoch")
        return
    best_step, best, chance = max(scores, key=lambda s: s[1])
    last_step, last, _ = scores[-1]
    yield Finding("fine", f"validation R@1 {100 * last:.1f} % at step {last_step}, chance {100 * chance:.2f} %")
    if last < 0.9 * best and len(scores) >= 3:
        yield Finding(
            "note",
            f"validation was best at step {best_step} ({100 * best:.1f} %): overfitting since",
            f"use {CHECKPOINTS}/{BEST}, fewer epochs, or stronger --reading.crop-scale",
        )


# -------- doctor
# `dinorankclip doctor`: check the machine, a data folder or a run; each finding says what to do.

HELP = """\
Check this machine (no PATH), a run, or data. Exit status 1 if there is a problem.

Examples:
  dinorankclip doctor
  dinorankclip doctor scenes
  dinorankclip doctor runs/quickstart
"""
MARKS = {"fine": "ok  ", "note": "note", "problem": "BAD "}
NEEDED = ("torch", "torchvision", "timm", "open_clip_torch", "webdataset", "simplejpeg", "safetensors")
LITTLE_DISK = 5e9
SHOWN_RUNS = 8


def doctor(
    path: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[PATH]")] = None,
    samples: int = 2000,
    reading: CheckingSettings = CheckingSettings(),  # noqa: B008 (frozen)
) -> None:
    """Check this machine (no PATH), a run, or data. Exit status 1 if there is a problem.

    Args:
        path: A run folder, or anything that --data of train takes.
        samples: At most this many samples of each part are decoded.
        reading: How pairs are found, as in train; a larger share of damaged ones than max-damaged is a problem.
    """
    problems = 0
    for finding in examine(path, samples, reading):
        print(f"{MARKS[finding.level]}  {finding.what}", flush=True)
        if finding.advice:
            print(f"      → {finding.advice}", flush=True)
        problems += finding.level == "problem"
    print(f"\n{problems or 'no'} problem{'' if problems == 1 else 's'} found")
    if problems:
        sys.exit(1)


def examine(path: str | None, samples: int, reading: CheckingSettings) -> Iterator[Finding]:
    if path is None:
        yield from examine_machine()
        return
    if is_run(Path(path)):
        yield from examine_run(Path(path))
        return
    if runs := runs_in(Path(path)):
        shown = ", ".join(runs[:SHOWN_RUNS]) + (", …" if len(runs) > SHOWN_RUNS else "")
        raise UserError(f"{path} holds runs: {shown}; name one, e.g. dinorankclip doctor {Path(path) / runs[0]}")
    from dinorankclip.data.inspect import examine_data

    try:
        yield from examine_data(path, reading, samples)
    except UserError as error:
        if Path(path).exists():
            raise
        raise UserError(f"{error}\ndoctor takes pairs, a run folder, or nothing to check the machine") from None


def runs_in(folder: Path) -> list[str]:
    """Names of the run folders in a folder."""
    return sorted(path.parent.name for path in folder.glob(f"*/{CONFIG}") if is_run(path.parent))


def examine_machine() -> Iterator[Finding]:
    yield Finding("fine", f"Python {sys.version.split()[0]}")
    for package in NEEDED:
        try:
            yield Finding("fine", f"{package} {version(package)}")
        except PackageNotFoundError:
            yield Finding(
                "problem", f"{package} is not installed", "make quickstart, or pip install -c constraints.txt -e ."
            )
    import torch

    from dinorankclip.device import BF16_ON_CPU, announces_amx, choose, declare_missing

    if declare_missing():
        yield Finding(
            "fine", "torchvision's compiled operators do not fit this torch; declared instead (not needed here)"
        )
    placement = choose()
    yield Finding("fine", f"{placement.reason}; {torch.get_num_threads()} threads on {os.cpu_count()} cores")
    if placement.device.type == "cpu":
        yield Finding("note", "no GPU", "presets scenes, flickr8k and finetune are made for this; cc3m is not")
        if announces_amx():
            yield Finding("note", f"this CPU announces AMX: {BF16_ON_CPU}", "leave --budget.precision at auto")
    free = shutil.disk_usage(Path.cwd()).free
    if free < LITTLE_DISK:
        yield Finding("problem", f"{free / 1e9:.1f} GB of disk left here", "checkpoints and caches need room")
    else:
        yield Finding("fine", f"{free / 1e9:.0f} GB of disk left here")
    shared = Path("/dev/shm")
    if shared.is_dir() and shutil.disk_usage(shared).total < 1e9:
        yield Finding("note", "/dev/shm is under 1 GB", "in Docker: --shm-size=8g, or --reading.workers 0")


def main(argv: list[str]) -> None:
    tyro.cli(doctor, args=argv, prog="dinorankclip doctor", description=HELP)
