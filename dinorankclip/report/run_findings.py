"""Examines a run folder for `doctor`, the report and the end of `train`: its end, checkpoints, loss, schedule, damage,
scores and what its model can do (run_verdict.py)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dinorankclip.methods import traits_of_stored
from dinorankclip.report.run_verdict import advice_when_weak, how_made, judge, pairs_of_epoch
from dinorankclip.run_files import BEST, CHANCE, CHECKPOINTS, read_metrics, read_settings
from dinorankclip.train import checkpoints
from dinorankclip.train.checkpoints import DIVERGED, STOPPED, read_ending, train_command, way_on
from dinorankclip.train.loop import CHOOSES_BEST, ITS_CHANCE
from dinorankclip.train.run_folder import has_begun
from dinorankclip.train.step import warmup_length
from dinorankclip.types import Finding

STUCK_WITHIN = 0.03  # a loss less than this share of ln B below ln B is no better than guessing
MIN_STEPS_BEFORE_STUCK = 100  # an earlier loss near ln B is normal
FEW_STEPS = 200  # a shorter run hardly leaves the warm-up
LONG_WARMUP = 0.3  # a warm-up over a larger share of all steps is too long
MAX_SCALE = 99.0  # above it, exp(logit_scale), the inverse temperature, counts as being at its bound of 100
FEW_NEGATIVES = 64  # a smaller batch gives few negatives


def examine_run(folder: Path) -> Iterator[Finding]:
    """Yield findings on a run: its end, checkpoints, loss, schedule, damaged samples and validation scores."""
    settings = read_settings(folder)
    yield from _ending(folder, settings)
    lines = read_metrics(folder)
    steps = [line for line in lines if "loss" in line]
    if not steps:
        what, advice = "the run has logged no step yet", "look at what the train command printed"
        if not has_begun(folder):
            what = "the run has no step and no checkpoint yet, so there is no model to use"
            advice = (
                "give its train command again, corrected if it was refused: settings may change until the first step"
            )
        yield Finding("note", what, advice)
        return
    yield from _checkpoints(folder, steps)
    yield from _learning(folder, settings, steps)
    yield from _schedule(settings, steps)
    yield from _reading(steps)
    yield from _scores(settings, lines)
    yield from judge(folder, settings)


def closing_findings(folder: Path) -> list[Finding]:
    """Return the few findings with which `train` closes: the judgement of the model, then notes and problems."""
    judgement = list(judge(folder, read_settings(folder)))
    others = [finding for finding in examine_run(folder) if finding.level != "fine" and finding not in judgement]
    return judgement + others


def _ending(folder: Path, settings: dict[str, Any]) -> Iterator[Finding]:
    ending = read_ending(folder)
    if ending is None:
        return
    again = train_command(settings | {"run": str(folder)})  # the folder may have been moved
    after = f"after {ending.step} step{'s' * (ending.step != 1)}"
    if ending.how == STOPPED:
        yield Finding("note", f"stopped on request {after}", f"go on: {again}")
    elif ending.how == DIVERGED:
        yield Finding("problem", f"the run diverged {after}: {ending.why}", way_on(folder, settings))
    else:
        yield Finding("problem", f"the run failed {after}: {ending.why}", f"correct that, then go on: {again}")


def _checkpoints(folder: Path, steps: list[dict[str, Any]]) -> Iterator[Finding]:
    newest = checkpoints.newest(folder / CHECKPOINTS)
    if newest is None:
        advice = "a kill now would lose everything: lower --record.save-every"
        yield Finding("problem", "no checkpoint was written", advice)
    else:
        done = max(steps[-1]["step"], checkpoints.step_of(newest))
        lines = f"{len(steps)} line{'s' * (len(steps) > 1)} logged of {done} step{'s' * (done != 1)}"
        yield Finding("fine", f"{lines}, newest checkpoint {newest.name}")


def _learning(folder: Path, settings: dict[str, Any], steps: list[dict[str, Any]]) -> Iterator[Finding]:
    bad = [line["step"] for line in steps if not math.isfinite(line["loss"])]
    if bad:
        yield Finding("problem", f"the loss was not finite at step {bad[0]}", "lower --optim.lr or check the data")
    # ln B is not the chance level of runs that only distil (no contrastive loss) or of ALIP (weighted loss).
    share = 2 if settings["loss"].get("two_captions") else 1  # each of two captions has half of the loss
    contrastive = [share * line["loss/contrastive"] for line in steps if "loss/contrastive" in line]
    contrastive = [] if traits_of_stored(settings["method"]).second_caption else contrastive[-5:]
    recent = sum(contrastive) / max(1, len(contrastive))
    guessing = math.log(settings["budget"]["batch"])
    # pairs that belong together are no negatives of each other, which lowers the level of guessing
    levels = [line.get(CHANCE, guessing) for line in steps if "loss/contrastive" in line][-5:]
    guessing = sum(levels) / len(levels) if levels else guessing
    last = steps[-1]
    if not contrastive:
        what = "this method's loss has no chance level, so it does not show whether the model has learned"
        yield Finding("fine", f"loss {last['loss']:.3f}; {what}")
    elif last["step"] >= MIN_STEPS_BEFORE_STUCK and recent > (1 - STUCK_WITHIN) * guessing:
        yield Finding(
            "problem",
            f"the contrastive loss {recent:.3f} is stuck at ln B = {guessing:.3f}: the model is guessing",
            "check that captions belong to their images (`dinorankclip data show`); lower --optim.lr by 3 to 10; "
            f"lengthen the warm-up; {advice_when_weak(folder, settings)}",
        )
    elif recent >= guessing:
        what = f"contrastive loss {recent:.3f}, no better than guessing ({guessing:.3f})"
        yield Finding("note", what, "usual in the first steps; if it stays so, lower --optim.lr by 3 to 10")
    else:
        yield Finding("fine", f"contrastive loss {recent:.3f}, guessing would be {guessing:.3f}")
    scale = math.exp(last.get("logit_scale", 0.0))
    if scale > MAX_SCALE:
        what = f"the inverse temperature is at its bound ({scale:.0f})"
        yield Finding("note", what, "usual late in long runs; early: lower --optim.lr")
    batch = settings["budget"]["batch"]
    # With a larger batch small data would give too few steps: `train` recommends at most a quarter of the pairs.
    largest = (pairs_of_epoch(folder, settings) or 0) // 4
    if batch < FEW_NEGATIVES and largest > batch:
        advice = f"raise --budget.batch (up to {largest} with these pairs) and set --budget.chunk to save memory: "
        advice += "gradients stay those of the whole batch"
        yield Finding("note", f"a batch of {batch} gives few negatives", advice)


def _schedule(settings: dict[str, Any], steps: list[dict[str, Any]]) -> Iterator[Finding]:
    total = _total_steps(settings, steps)
    if total is None:
        return
    warmup = warmup_length(total, settings["optim"]["warmup_steps"])
    if warmup > LONG_WARMUP * total:
        what = f"warm-up takes {warmup} of {total} steps, so the full rate is hardly used"
        yield Finding(
            "problem", what, f"train longer, or --optim.warmup-steps {max(1, total // 20)} (5 % of the steps)"
        )
    elif total < FEW_STEPS and how_made(settings) != "aligned":  # heads on frozen towers need few steps
        smaller = " or a smaller batch" if settings["budget"]["batch"] > FEW_NEGATIVES else ""
        thousands = "" if how_made(settings) == "fine-tuned" else "; CLIP from scratch needs thousands"
        yield Finding("note", f"only {total} steps in all", f"more epochs{smaller}{thousands}")
    else:
        yield Finding("fine", f"{total} steps, {warmup} of them warm-up")


def _total_steps(settings: dict[str, Any], steps: list[dict[str, Any]]) -> int | None:
    """Infer the length of the run from a logged step and epoch: the folder does not store the size of the data."""
    if fixed := settings["budget"].get("steps"):
        return int(fixed)
    for line in reversed(steps):
        if line.get("epoch", 0) > 0 and line["step"] > 1:
            return round((line["step"] - 1) / line["epoch"] * settings["budget"]["epochs"])
    return None


def _reading(steps: list[dict[str, Any]]) -> Iterator[Finding]:
    replaced = {name: value for name, value in steps[-1].items() if name.startswith("damaged/") and value}
    if replaced:
        causes = ", ".join(f"{name.split('/')[1]} {value:.0f}" for name, value in replaced.items())
        yield Finding("note", f"damaged samples were replaced: {causes}", "`dinorankclip doctor DATA` names them")


def _scores(settings: dict[str, Any], lines: list[dict[str, Any]]) -> Iterator[Finding]:
    taken = [line for line in lines if CHOOSES_BEST in line and ITS_CHANCE in line]
    scores = [(line["step"], line[CHOOSES_BEST], line[ITS_CHANCE]) for line in taken]
    if not scores:
        yield Finding("note", "no validation score yet", "train takes a score at the end of every epoch")
        return
    best_step, best, chance = max(scores, key=lambda s: s[1])
    last_step, last, _ = scores[-1]
    yield Finding("fine", f"validation R@1 {100 * last:.1f} % at step {last_step}, chance {100 * chance:.2f} %")
    if last < 0.9 * best and len(scores) >= 3:
        what = f"validation was best at step {best_step} ({100 * best:.1f} %): overfitting since"
        stronger = "more --aligned.dropout" if how_made(settings) == "aligned" else "stronger --reading.crop-scale"
        yield Finding("note", what, f"use {CHECKPOINTS}/{BEST}, fewer epochs, or {stronger}")
