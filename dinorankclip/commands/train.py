"""`dinorankclip train`: put the rooms together and run.

Defaults depend on `--preset`, `--method` and `--recipe`, so these are looked up before the other flags are parsed.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dinorankclip.commands.shared import check_known
from dinorankclip.config import TrainSettings, as_dict
from dinorankclip.methods import METHODS
from dinorankclip.presets import PRESETS, default_settings
from dinorankclip.recipes import RECIPES
from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip.train.assemble import RunParts
    from dinorankclip.train.loop import StopRequest

NO_RECIPE = "None"  # as the command line spells an absent value
HELP = """\
Train a model. The same command again resumes the run; Ctrl-C saves first (exit status 130, after SIGTERM 143).
Defaults below are those of the preset, method and recipe named: train --preset finetune --help shows that preset's.

Examples:
  dinorankclip train --recipe aligned --data photos.csv --run runs/mine
  dinorankclip train --preset scenes --method clip --run runs/first
  dinorankclip train --preset scenes --method dinorankclip --run runs/full
  dinorankclip train --preset scenes --method dinorankclip --recipe paper --run runs/paper
  dinorankclip train --preset scenes --method clip --budget.minutes 3 --run runs/three-minutes
  dinorankclip train --preset finetune --data photos.csv --init runs/first --run runs/mine
  dinorankclip train --preset finetune --data photos.csv --init runs/first --model.frozen-image-tower --run runs/quick
  torchrun --nproc-per-node 8 -m -- dinorankclip train --preset cc3m --data 'cc3m/cc3m-train-*.tar'

docs/from-open-clip.md names the flags here for each flag of open_clip's trainer.
"""


@dataclass(frozen=True)
class Invocation(TrainSettings):
    """The flags of `train`: settings of a run, and what is done with its folder."""

    restart: bool = False
    """Move an existing run folder aside and start again."""
    dry_run: bool = False
    """Time three real steps, print what the whole run would take, write nothing."""


def main(argv: list[str]) -> None:
    settings, restart, dry = parse(argv)
    _refuse_mistyped(settings)  # before torch is imported, which takes seconds
    from dinorankclip import distributed
    from dinorankclip.train.loop import StopRequest

    stop = StopRequest()
    finished = run(settings, restart, dry, stop)
    if finished and not dry and distributed.world().leads:
        from dinorankclip.commands.report import write_run

        folder = _folder(settings)
        write_run(folder, folder)
        _close(folder)
    # Not after an error: leaving waits for the other processes, which may wait for the one that failed.
    distributed.leave()
    if not finished:
        sys.exit(stop.status)


def _refuse_mistyped(settings: TrainSettings) -> None:
    """Refuse paths of data and starting weights that do not exist, where the settings themselves are right."""
    from dinorankclip.data.paths import nearest, refuse_missing
    from dinorankclip.validate import validated

    validated(settings)
    refuse_missing(settings.data)
    if settings.init is not None and ":" not in settings.init and not Path(settings.init).exists():
        raise UserError(f"--init {settings.init}: there is no such run or model folder.{nearest(Path(settings.init))}")


def _close(folder: Path) -> None:
    """Print what the trained model can do, and what `doctor` finds wrong with the run."""
    from dinorankclip.commands.doctor import print_finding
    from dinorankclip.report.run_findings import closing_findings

    print()
    for finding in closing_findings(folder):
        print_finding(finding)


def parse(argv: list[str]) -> tuple[TrainSettings, bool, bool]:
    """Return settings, restart and dry run: preset, method and recipe named in `argv`, changed by the other flags."""
    import tyro

    name, method = _value_of(argv, "--preset", PRESETS), _value_of(argv, "--method", METHODS)
    base = default_settings(name or "scenes", method, _value_of(argv, "--recipe", (*RECIPES, NO_RECIPE), NO_RECIPE))
    default = Invocation(**{f.name: getattr(base, f.name) for f in dataclasses.fields(base)})
    flags = tyro.cli(Invocation, args=argv, default=default, description=HELP, prog="dinorankclip train")
    settings = TrainSettings(**{f.name: getattr(flags, f.name) for f in dataclasses.fields(TrainSettings)})
    if settings.run is None:
        settings = dataclasses.replace(settings, run=f"runs/{settings.preset}-{settings.method}")
    return settings, flags.restart, flags.dry_run


def _value_of(argv: list[str], flag: str, known: Iterable[str], none: str | None = None) -> str | None:
    """Return the value of a flag that decides the defaults of all others; None if `argv` does not have it, or has the
    word that stands for `none`."""
    value = None
    for i, word in enumerate(argv):
        if word == flag and i + 1 < len(argv):
            value = argv[i + 1]
        elif word.startswith(flag + "="):
            value = word.split("=", 1)[1]
    if value is not None:
        check_known(flag, value, known)
    return None if value == none else value


def _folder(settings: TrainSettings) -> Path:
    assert settings.run is not None, "`parse` and studies name every run"
    return Path(settings.run)


def run(settings: TrainSettings, restart: bool, dry: bool, stop: StopRequest | None = None) -> bool:
    """Train and score the held-out parts. Return False if the run was stopped on request, with everything saved."""
    from dinorankclip import distributed
    from dinorankclip.device import choose
    from dinorankclip.train.aligned_setup import sized
    from dinorankclip.train.assemble import assemble
    from dinorankclip.train.checkpoints import refuse_longer
    from dinorankclip.train.cost import dry_run
    from dinorankclip.train.distil_setup import make_missing_cache, with_cache
    from dinorankclip.train.run_folder import alone_in, as_begun_in, claim, given_back, say
    from dinorankclip.train.timed_budget import as_measured_in, measured
    from dinorankclip.validate import validated

    settings = sized(validated(settings))
    world = distributed.join(settings.budget.device)
    requested, settings = settings, with_cache(settings, dry)
    if settings.preset == "finetune" and settings.init is None and settings.model.weights is None:
        say(
            "note: no trained model was named, so training begins with random weights; to fine-tune give --init "
            "(a run, a model folder or open_clip:NAME:FILE)"
        )
    if dry:
        settings = measured(settings, run=None)
        parts = assemble(settings, dry)
        dry_run(parts.state, parts.loader, parts.length, settings, parts.placement)
        return True
    folder = _folder(settings)
    with alone_in(folder), given_back(folder):
        if not restart:
            settings = as_measured_in(folder, as_begun_in(folder, settings))
            refuse_longer(folder, as_dict(settings))
        claim(folder, as_dict(settings), restart)
        device = choose(settings.budget.device, "fp32", world.local_rank).device
        make_missing_cache(requested, device, Path(settings.distil.cache or ""))
        return _train(assemble(measured(settings, folder)), folder, stop)


def _train(parts: RunParts, folder: Path, stop: StopRequest | None) -> bool:
    from dinorankclip.evaluate.during_training import evaluators, final_scores, starting_inspection, starting_scores
    from dinorankclip.train.assemble import resume
    from dinorankclip.train.checkpoints import STOPPED, Ending, ending_noted, note_ending
    from dinorankclip.train.loop import pretrain
    from dinorankclip.train.run_folder import damage_line, say

    settings = parts.settings
    resume(parts, folder)
    starts_with_names = settings.recipe == "aligned" and settings.aligned.start == "names"
    knows = settings.init or settings.model.weights or starts_with_names
    before = starting_scores(parts, folder) if knows else {}
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
    if message := damage_line(folder, parts.train):
        say(message)
    if not finished:
        note_ending(folder, Ending(parts.state.step, STOPPED))
        say(f"stopped at step {parts.state.step}; everything is saved, the same command resumes")
    return finished
