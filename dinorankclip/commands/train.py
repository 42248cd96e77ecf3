"""Flags of open_clip's trainer, met at `train`: what they are called here. docs/from-open-clip.md says more of each."""

from __future__ import annotations

import dataclasses
import difflib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dinorankclip.config import TrainSettings, as_dict
from dinorankclip.methods import METHODS
from dinorankclip.presets import PRESETS, for_method, preset
from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip.train.assemble import Parts
    from dinorankclip.train.loop import StopRequest

TABLE = "docs/from-open-clip.md"
SCORED = "train scores validation pairs at each epoch's end; for other sets: dinorankclip score RUN --sets …"
FROZEN = "--optim.freeze PATTERN …"
# Of each flag: what to write instead, or why there is nothing to write.
FOREIGN = {
    "--train-data": "--data",
    "--val-data": "a validation part in --data, or one that is carved from it (--reading.val-fraction)",
    "--train-num-samples": "leave it out: pairs are counted; of pipe: shards --reading.epoch-samples",
    "--dataset-type": "leave it out: --data is recognised by what it is",
    "--csv-img-key": "--reading.image-column",
    "--csv-caption-key": "--reading.caption-column",
    "--csv-separator": "leave it out: commas, semicolons and tabs are recognised",
    "--name": "--run runs/NAME",
    "--logs": "--run FOLDER/NAME",
    "--workers": "--reading.workers",
    "--batch-size": "--budget.batch, which counts the pairs of a step over all processes, not of one",
    "--accum-freq": "--budget.chunk, the pairs that a process encodes at once; --budget.batch stays the whole batch",
    "--epochs": "--budget.epochs",
    "--lr": "--optim.lr",
    "--wd": "--optim.weight-decay",
    "--beta1": "--optim.betas BETA1 BETA2",
    "--beta2": "--optim.betas BETA1 BETA2",
    "--eps": "--optim.eps",
    "--warmup": "--optim.warmup-steps",
    "--grad-clip-norm": "--optim.clip-norm",
    "--lr-scheduler": "leave it out: the rate is warm-up and half a cosine",
    "--precision": "--budget.precision auto, fp32 or bf16 (there is no fp16)",
    "--device": "--budget.device",
    "--model": "--model.trunk",
    "--pretrained": "--init open_clip:NAME:FILE (nothing is downloaded)",
    "--resume": "leave it out: the same command resumes its --run",
    "--lock-image": "--model.frozen-image-tower, or to keep crops --optim.freeze 'trunk.towers.visual.*'",
    "--lock-text": FROZEN,
    "--grad-checkpointing": "--budget.chunk, which bounds the memory of activations, too",
    "--save-frequency": "--record.save-every, in steps; one more checkpoint comes at each epoch's end",
    "--log-every-n-steps": "--record.log-every",
    "--imagenet-val": SCORED,
    "--imagenet-v2": SCORED,
    "--zeroshot-frequency": SCORED,
    "--val-frequency": SCORED,
    "--report-to": "leave it out: TensorBoard's files are in RUN/tensorboard; wandb is not here",
    "--local-loss": "leave it out: it is always so",
    "--gather-with-grad": "leave it out: it is always so",
    "--torchcompile": "not here",
    "--torchscript": "not here; for use elsewhere: dinorankclip export RUN --to onnx",
    "--dataset-resampled": "not here: every epoch is a permutation, which makes a resume exact",
    "--train-data-upsampling-factors": "not here: every epoch is a permutation, which makes a resume exact",
    "--force-image-size": "--model.image-size",
    "--opt": "leave it out: the optimiser is AdamW",
    "--aug-cfg": "--reading.crop-scale LOW HIGH, --reading.flip",
    "--siglip": "not here; see --method",
    "--fsdp": "not here; weights are whole on every process",
    "--distill-model": "--distil.teacher, of dense features (dinorankclip teacher --help)",
    "--force-custom-text": "not here",
    "--coca-caption-loss-weight": "not here",
    "--coca-contrastive-loss-weight": "not here",
}


def refuse_foreign(argv: list[str]) -> None:
    """Name all flags of open_clip at once, each with ours; flags that nobody knows are tyro's to refuse."""
    flags = dict.fromkeys(word.partition("=")[0].replace("_", "-") for word in argv if word.startswith("--"))
    met = [flag for flag in flags if flag in FOREIGN]
    if met:
        lines = "\n  ".join(f"{flag} → {FOREIGN[flag]}" for flag in met)
        raise UserError(f"flags of open_clip, which have other names here ({TABLE}):\n  {lines}")


# -------- train
# `dinorankclip train`: put the rooms together and run.

HELP = """\
Train a model. The same command again resumes the run; Ctrl-C saves first (exit status 130, after SIGTERM 143).
Defaults below are those of the preset and method named: train --preset finetune --help shows that preset's.

Examples:
  dinorankclip train --preset scenes --method clip --run runs/first
  dinorankclip train --preset scenes --method dinorankclip --run runs/full
  dinorankclip train --preset finetune --data photos.csv --init runs/first --run runs/mine
  dinorankclip train --preset finetune --data photos.csv --init runs/first --model.frozen-image-tower --run runs/quick
  torchrun --nproc-per-node 8 -m -- dinorankclip train --preset cc3m --data 'cc3m/cc3m-train-*.tar'
"""


@dataclass(frozen=True)
class Invocation(TrainSettings):
    restart: bool = False
    """Move an existing run folder aside and begin anew."""
    dry_run: bool = False
    """Time three real steps, print what the whole run would take, write nothing."""


def main(argv: list[str]) -> None:
    settings, restart, dry = parse(argv)
    from dinorankclip import distributed
    from dinorankclip.train.loop import StopRequest

    stop = StopRequest()
    finished = run(settings, restart, dry, stop)
    if finished and not dry and distributed.world().leads:
        from dinorankclip.commands.report import write_run

        folder = _folder(settings)
        write_run(folder, folder)
    # Not after an error: taking a group apart waits for the others, who may be waiting for a failed process.
    distributed.leave()
    if not finished:
        sys.exit(stop.status)


def parse(argv: list[str]) -> tuple[TrainSettings, bool, bool]:
    """Settings of the preset and method named in `argv`, changed by the other flags, as they were typed."""
    import tyro

    refuse_foreign(argv)
    name, method = _value_of(argv, "--preset", PRESETS), _value_of(argv, "--method", METHODS)
    base = preset(name or "scenes")
    base = for_method(base, method or base.method)
    default = Invocation(**{f.name: getattr(base, f.name) for f in dataclasses.fields(base)})
    asked = tyro.cli(Invocation, args=argv, default=default, description=HELP, prog="dinorankclip train")
    fields = {f.name: getattr(asked, f.name) for f in dataclasses.fields(TrainSettings)}
    settings = TrainSettings(**fields)
    if settings.run is None:
        settings = dataclasses.replace(settings, run=f"runs/{settings.preset}-{settings.method}")
    return settings, asked.restart, asked.dry_run


def _value_of(argv: list[str], flag: str, known) -> str | None:
    """Look ahead for a flag that decides the defaults of all others."""
    value = None
    for i, word in enumerate(argv):
        if word == flag and i + 1 < len(argv):
            value = argv[i + 1]
        elif word.startswith(flag + "="):
            value = word.split("=", 1)[1]
    if value is not None and value not in known:
        close = difflib.get_close_matches(value, list(known), 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UserError(f"{flag} {value}: there are {', '.join(known)}{hint}")
    return value


def _folder(settings: TrainSettings) -> Path:
    assert settings.run is not None, "`parse` and studies name every run"
    return Path(settings.run)


def run(settings: TrainSettings, restart: bool, dry: bool, stop: StopRequest | None = None) -> bool:
    """Train and score the held-out parts. False: stopped on request before the end, with everything saved."""
    from dinorankclip import distributed
    from dinorankclip.device import choose
    from dinorankclip.train.assemble import assemble
    from dinorankclip.train.cost import dry_run
    from dinorankclip.train.distil_setup import make_missing_cache, with_cache
    from dinorankclip.train.run_folder import alone_in, claim, given_back, say
    from dinorankclip.validate import validated

    settings = validated(settings)
    world = distributed.join(settings.budget.device)
    asked, settings = settings, with_cache(settings, dry)
    if settings.preset == "finetune" and settings.init is None and settings.model.weights is None:
        say(
            "mind: no trained model was named, so training begins with random weights; to fine-tune give --init "
            "(a run, a model folder or open_clip:NAME:FILE)"
        )
    if dry:
        parts = assemble(settings, dry)
        dry_run(parts.state, parts.loader, parts.length, settings, parts.placement)
        return True
    folder = _folder(settings)
    with alone_in(folder), given_back(folder):
        claim(folder, as_dict(settings), restart)
        device = choose(settings.budget.device, "fp32", world.local_rank).device
        make_missing_cache(asked, device, Path(settings.distil.cache or ""))
        return _train(assemble(settings), folder, stop)


def _train(parts: Parts, folder: Path, stop: StopRequest | None) -> bool:
    from dinorankclip.evaluate.during_training import evaluators, final_scores, starting_inspection, starting_scores
    from dinorankclip.train.assemble import resume
    from dinorankclip.train.ending import STOPPED, Ending, ending_noted, note_ending
    from dinorankclip.train.loop import pretrain
    from dinorankclip.train.run_folder import damage_line, say

    settings = parts.settings
    resume(parts, folder)
    before = starting_scores(parts, folder) if settings.init or settings.model.weights else {}
    starting_inspection(parts, folder)
    to_go = parts.length.steps - parts.state.step
    say(f"{folder}: {to_go} of {parts.length.steps} steps to go")
    watching = evaluators(parts, "val")
    with ending_noted(folder, parts.state):
        finished = to_go == 0 or pretrain(
            parts.state, parts.loader, parts.length, watching, settings, parts.placement, folder, stop
        )
        if finished:
            final_scores(parts, before, folder)
    if told := damage_line(folder, parts.train):
        say(told)
    if not finished:
        note_ending(folder, Ending(parts.state.step, STOPPED))
        say(f"stopped at step {parts.state.step}; everything is saved, the same command resumes")
    return finished
