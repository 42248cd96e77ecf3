"""`dinorankclip train`: put the rooms together and run."""

from __future__ import annotations

import dataclasses
import difflib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dinorankclip.commands.foreign_flags import refuse_foreign
from dinorankclip.config import TrainSettings, as_dict
from dinorankclip.methods import METHODS
from dinorankclip.presets import PRESETS, for_method, preset
from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip.pretrain.assemble import Parts
    from dinorankclip.pretrain.stopping import StopRequest

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
    from dinorankclip import comm
    from dinorankclip.pretrain.stopping import StopRequest

    stop = StopRequest()
    finished = run(settings, restart, dry, stop)
    if finished and not dry and comm.world().leads:
        from dinorankclip.commands.report import write_run

        folder = _folder(settings)
        write_run(folder, folder)
    # Not after an error: taking a group apart waits for the others, who may be waiting for a failed process.
    comm.leave()
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
    from dinorankclip import comm
    from dinorankclip.device import choose
    from dinorankclip.pretrain.assemble import assemble
    from dinorankclip.pretrain.distilling import make_missing_cache, with_cache
    from dinorankclip.pretrain.dry_run import dry_run
    from dinorankclip.pretrain.records import alone_in, claim, given_back, say
    from dinorankclip.pretrain.settling import settled

    settings = settled(settings)
    world = comm.join(settings.budget.device)
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
    from dinorankclip.pretrain.assemble import resume
    from dinorankclip.pretrain.damaged import damage_line
    from dinorankclip.pretrain.ending import STOPPED, Ending, ending_noted, note_ending
    from dinorankclip.pretrain.loop import pretrain
    from dinorankclip.pretrain.records import say

    from .training_scores import evaluators, final_scores, starting_inspection, starting_scores

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
