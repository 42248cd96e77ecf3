"""`dinorankclip train`: parse the flags and call `dinorankclip.train` (api/training.py).

Defaults depend on `--config`, `--preset`, `--method` and `--recipe`, so these are looked up before the other flags are
parsed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from dinorankclip.api.training import default_run, refuse_missing_plugin, train
from dinorankclip.api.training import run_training as run
from dinorankclip.commands.shared import check_known
from dinorankclip.config import TrainSettings
from dinorankclip.finetuning import NONE, START, WEIGHTS_SUFFIXES
from dinorankclip.given_settings import TIMES, from_file
from dinorankclip.methods import METHODS, REGISTRY
from dinorankclip.pieces.contract import HERE, Where
from dinorankclip.presets import PRESETS, default_settings
from dinorankclip.recipes import RECIPES
from dinorankclip.types import UserError

__all__ = ["main", "parse", "run"]

NO_RECIPE = "None"  # as the command line spells an absent value
NO_REPLAY = ("--model.frozen-image-tower", "--distil.cache", "--loss.two-captions")  # they know no replayed pairs
HELP = """\
Train a model. The same command again resumes the run; Ctrl-C saves first (exit status 130, after SIGTERM 143).
Defaults below are those of the preset, method and recipe named: train --preset finetune --help shows that preset's.

Examples:
  dinorankclip train --recipe aligned --data photos.csv --run runs/mine
  dinorankclip train --preset scenes --method clip --run runs/first
  dinorankclip train --preset scenes --method dinorankclip --run runs/full
  dinorankclip train --preset scenes --method dinorankclip --recipe paper --run runs/paper
  dinorankclip train --preset scenes --method clip --budget.minutes 3 --run runs/three-minutes
  dinorankclip train --config runs/first/config.json --run runs/again
  dinorankclip train --preset finetune --data photos.csv --init runs/first --run runs/tuned
  dinorankclip train --preset finetune --data photos.csv --init runs/first --tune.lora-rank 8 --run runs/lora
  dinorankclip train --preset finetune --data photos.csv --init runs/first --model.frozen-image-tower --run runs/quick
  dinorankclip train --recipe aligned --data 'photos/*.tar' --run runs/shards --on ray --ray.address head:6379
  torchrun --nproc-per-node 8 -m -- dinorankclip train --preset cc3m --data 'cc3m/cc3m-train-*.tar'

docs/from-open-clip.md names the flags here for each flag of open_clip's trainer.
"""


@dataclass(frozen=True)
class Invocation(TrainSettings):
    """The flags of `train`: settings of a run, where they come from, and what is done with its folder."""

    config: Path | None = None
    """Settings from a JSON or TOML file, which the other flags change; config.json of a run repeats the run."""
    restart: bool = False
    """Move an existing run folder aside and start again."""
    dry_run: bool = False
    """Time three real steps, print what the whole run would take, write nothing."""
    where: Annotated[Where, tyro.conf.arg(name="")] = HERE
    """Who computes teacher features and rows of frozen towers before training, which stays here."""


def main(argv: list[str]) -> None:
    settings, restart, dry = parse(argv)
    _refuse_mistyped(settings)  # before torch is imported, which takes seconds
    from dinorankclip import distributed
    from dinorankclip.train.loop import StopRequest

    if dry:
        run(settings, dry=True)
        distributed.leave()
        return
    stop = StopRequest()
    try:
        trained = train(settings, restart=restart, stop=stop, where=_flags(argv).where)
    except KeyboardInterrupt:  # before the first step or after the last one: in between, `stop` saves
        print("stopped between steps; what was finished is kept, and the same command goes on", file=sys.stderr)
        raise
    if trained.finished and distributed.world().leads:
        _close(trained.folder)
    # Not after an error: leaving waits for the other processes, which may wait for the one that failed.
    distributed.leave()
    if not trained.finished:
        sys.exit(stop.status)


def _refuse_mistyped(settings: TrainSettings) -> None:
    """Refuse paths of data and starting weights that do not exist, where the settings themselves are right."""
    from dinorankclip.data.paths import nearest, refuse_missing
    from dinorankclip.validate import validated

    validated(settings)
    refuse_missing(settings.data)
    init = settings.init
    if init is None:
        return
    if init == "starter":
        raise UserError("--init starter: it is made of frozen towers, which --recipe aligned trains heads on")
    if ":" not in init and not Path(init).exists():
        raise UserError(f"--init {init}: there is no such run or model folder.{nearest(Path(init))}")
    if Path(init).is_file():
        raise UserError(
            f"--init {init} is a file: name a run, a model folder, or open_clip:NAME:FILE of open_clip weights"
        )
    file = Path(init.rpartition(":")[2]).expanduser()
    if init.startswith("open_clip:") and file.suffix in WEIGHTS_SUFFIXES and not file.exists():
        raise UserError(f"--init {init}: there is no file {file}.{nearest(file)}")


def _close(folder: Path) -> None:
    """Print what the trained model can do, and what `doctor` finds wrong with the run."""
    from dinorankclip.commands.doctor import print_finding
    from dinorankclip.report.run_findings import closing_findings

    print()
    for finding in closing_findings(folder):
        print_finding(finding)


def parse(argv: list[str]) -> tuple[TrainSettings, bool, bool]:
    """Return settings, restart and dry run: those of `--config`, or of preset, method and recipe named in `argv`,
    changed by the other flags."""
    flags = _flags(argv)
    settings = TrainSettings(**{f.name: getattr(flags, f.name) for f in dataclasses.fields(TrainSettings)})
    refuse_missing_plugin(settings, flags.config)
    if settings.run is None:
        settings = dataclasses.replace(settings, run=default_run(settings))
    return settings, flags.restart, flags.dry_run


def _flags(argv: list[str]) -> Invocation:
    base = _defaults(argv)
    default = Invocation(**{f.name: getattr(base, f.name) for f in dataclasses.fields(base)})
    return tyro.cli(Invocation, args=argv, default=default, description=HELP, prog="dinorankclip train")


def _defaults(argv: list[str]) -> TrainSettings:
    """Return the settings that the flags change."""
    argv = [_dashed(word) for word in argv]
    preset, recipe = _value_of(argv, "--preset", PRESETS), _value_of(argv, "--recipe", (*RECIPES, NO_RECIPE), NO_RECIPE)
    config, data = _value_of(argv, "--config"), _value_of(argv, "--data")
    method = _value_of(argv, "--method")
    if method is not None and method not in METHODS:  # the names of plug-ins are looked up only for other names
        refuse_missing_plugin(
            TrainSettings(method=method, run=_value_of(argv, "--run")), Path(config) if config else None
        )
        check_known("--method", method, REGISTRY.names())
    if config is None:
        start = (_value_of(argv, flag, none="None") for flag in ("--init", "--model.weights", "--tune.lora-rank"))
        init, weights, rank = start
        # Replay is a default only where the user says nothing of it, and nothing that knows no replayed pairs.
        replay = _value_of(argv, "--tune.replay", none="None")
        said = {word.split("=")[0] for word in argv} & {"--tune.replay", *NO_REPLAY}
        if _value_of(argv, "--distil.cache") == NONE:
            said -= {"--distil.cache"}
        replay = replay if said else START
        return default_settings(preset or "scenes", method, recipe, init, weights, rank is not None, replay, data)
    given: dict[str, Any] = {"preset": preset, "method": method, "recipe": recipe, "data": data}
    given = {name: value for name, value in given.items() if value is not None}
    words = {word.partition("=")[0] for word in argv}
    for flag in ("--init", "--model.weights", "--tune.replay", "--distil.cache"):
        if flag in words:
            given[flag[2:]] = _value_of(argv, flag, none="None")
    if (rank := _value_of(argv, "--tune.lora-rank", none="None")) is not None and rank.isdecimal():
        given["tune.lora_rank"] = int(rank)
    if "--model.frozen-image-tower" in words:
        given["model.frozen_image_tower"] = True
    if "--loss.two-captions" in words:
        given["loss.two_captions"] = True
    for name in TIMES:
        value = _value_of(argv, f"--{name.replace('_', '-')}", none="None")
        with contextlib.suppress(ValueError):  # a word that is no number is refused with all flags
            given |= {} if value is None else {name: float(value)}
    if (folder := _value_of(argv, "--run")) is not None:
        given["run"] = folder
    return from_file(Path(config), given)


def _dashed(word: str) -> str:
    """Return a flag with dashes; it may be written with underscores, as settings are in Python and in files."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def _value_of(argv: list[str], flag: str, known: Iterable[str] | None = None, none: str | None = None) -> str | None:
    """Return the value of a flag that decides the defaults of all others; None if `argv` does not have it, or has the
    word that stands for `none`."""
    value = None
    for i, word in enumerate(argv):
        if word == flag and i + 1 < len(argv):
            value = argv[i + 1]
        elif word.startswith(flag + "="):
            value = word.split("=", 1)[1]
    if value is not None and known is not None:
        check_known(flag, value, known)
    return None if value == none else value
