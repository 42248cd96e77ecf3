"""Manages the run folder: claims it for settings, locks it, writes the log and the list of damaged samples."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from dinorankclip import distributed, methods
from dinorankclip import run_files as files
from dinorankclip.checked_files import LOG_BYTES, UnfitFile, file_bytes, naming
from dinorankclip.checksums import sealed, sealed_line
from dinorankclip.config import ReadingSettings, TrainSettings, as_dict
from dinorankclip.data import readers
from dinorankclip.data.damage import CAUSES, DamageCount
from dinorankclip.data.streams import is_stream
from dinorankclip.device import choose
from dinorankclip.finetuning import START
from dinorankclip.io import if_free, remove_left_files, write_json, write_text
from dinorankclip.plugins import Registry
from dinorankclip.stored_settings import as_begun, as_stored, difference
from dinorankclip.teachers import registry as teachers
from dinorankclip.train.trackers import TrackedRun, Trackers, chosen_trackers
from dinorankclip.types import Source, UserError

_PACKAGES = ("torch", "torchvision", "timm", "open_clip_torch", "numpy", "webdataset", "simplejpeg", "pillow")
_ENCODING: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape"}  # file names need not be UTF-8


def say(text: str) -> None:
    """Print on the leading process alone."""
    if distributed.world().leads:
        print(text, flush=True)


@contextmanager
def alone_in(run: Path) -> Iterator[None]:
    """Keep other processes of this machine from training in the folder, or moving it away, within the block. The lock
    is a file beside the folder, because --restart renames the folder."""
    place = run.resolve()
    lock = if_free(f".{place.name}", place.parent) if distributed.world().leads else nullcontext(True)
    with lock as free:
        if distributed.any_process(not free)[0]:
            raise UserError(f"another process is training in {run}: wait for it, stop it, or choose another --run")
        yield


@contextmanager
def given_back(run: Path) -> Iterator[None]:
    """Remove a folder that the block made if an error leaves the block before the first step. A folder stays if it
    holds anything that took time to make, such as scores of the starting weights."""
    new = not run.exists()
    try:
        yield
    except BaseException:
        if new and distributed.world().leads and not has_begun(run):
            quick = {files.CONFIG, files.ENVIRONMENT, files.METRICS, files.TENSORBOARD, files.ENDED, files.TRACKED}
            if {path.name for path in run.glob("*")} <= quick:
                shutil.rmtree(run, ignore_errors=True)
        raise


def has_begun(run: Path) -> bool:
    """Return True if a run folder holds anything that training took time for: a checkpoint, a logged step, a score."""
    logged = (run / files.METRICS).is_file() and (run / files.METRICS).stat().st_size > 0
    return logged or (run / files.SCORES).is_file() or any((run / files.CHECKPOINTS).glob(f"{files.STEP}*"))


def as_begun_in(run: Path, settings: TrainSettings) -> TrainSettings:
    """Return the settings with which a run goes on that an older version began (`stored_settings.as_begun`)."""
    begun = settings
    if files.is_run(run) and has_begun(run):
        stored: dict[str, Any] = {}
        with suppress(UserError):  # a damaged file: `claim` reports it
            stored = files.read_settings(run)
            begun = as_begun(settings, stored)
        replays = stored.get("tune", {}).get("replay") == START and settings.tune.replay is None
        replays = replays and stored.get("init") == settings.init  # of another start `claim` speaks
        if replays and not files.data_at_hand(settings.init, settings.data):
            raise UserError(
                f"{run} replays the data of {settings.init}, and they are not where they were: put them back, or begin "
                "anew with --restart"
            )
    for line in difference(as_dict(begun), as_dict(settings)):
        say(f"note: {run} goes on as it began, with {line.split(' → ')[0]}; the default is another by now")
    return begun


def claim(run: Path, settings: dict[str, Any], restart: bool) -> None:
    """Take the run folder for these settings: a new folder, or one made with the same settings."""
    distributed.leader_first(lambda: _claim(run, settings, restart))


def _claim(run: Path, settings: dict[str, Any], restart: bool) -> None:
    # The device may be refused, so it is chosen first. The environment stores the values behind `auto`.
    budget = settings["budget"]
    placement = choose(budget["device"], budget["precision"], distributed.world().local_rank)
    about = environment() | {
        "plugins": plugins_of(settings),
        "device": placement.device.type,
        "precision": placement.precision,
    }
    if restart and run.exists():
        aside = run.with_name(f"{run.name}.{time.strftime('%Y%m%d-%H%M%S')}")
        os.replace(run, aside)
        say(f"moved the old run to {aside}")
    if run.is_dir():
        remove_left_files(run)
    if (run / files.CONFIG).exists():
        stored = _compare_with_stored(run, settings, about)
        settings = as_stored(settings, stored) if has_begun(run) else settings
    elif run.exists() and any(run.iterdir()):
        raise UserError(f"{run} is not empty and not a run folder; choose another --run")
    run.mkdir(parents=True, exist_ok=True)
    write_json(run / files.CONFIG, sealed(settings))
    write_json(run / files.ENVIRONMENT, sealed(about))


def _compare_with_stored(run: Path, settings: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    """Refuse other settings than those that the run was begun with, and return these."""
    try:
        stored = files.read_settings(run)
    except UserError as error:  # other programs write a config.json, too, which must not be overwritten
        raise UserError(f"{error}; choose another --run, or --restart to move the folder aside") from error
    earlier = _earlier_environment(run)
    changed = changes(stored, settings, earlier.get("precision"), about["precision"])
    if changed and not has_begun(run):
        # The folder is left from a refused or failed start, and its first numbers belong to other settings.
        for leftover in (
            run / files.BEFORE,
            run / files.BEFORE_ITEMS,
            run / files.FUSION,
            run / files.EXAMPLES,
            *run.glob(files.DAMAGED_OF_ALL),
        ):
            leftover.unlink(missing_ok=True)
        say(f"{run} was made with other settings, but no step was taken: it now belongs to these")
    elif changed:
        raise UserError(
            f"{run} was made with other settings:\n  " + "\n  ".join(changed) +
            "\nUse the old settings to resume it, another --run, or --restart to move it aside."
        )  # fmt: skip
    elif has_begun(run) and earlier.get("device", about["device"]) != about["device"]:
        say(f"note: {run} was last on {earlier['device']} and goes on on {about['device']}, which rounds otherwise")
    return stored


def _earlier_environment(run: Path) -> dict[str, Any]:
    """Return the environment of the earlier start; empty if its file is damaged, which is then written anew."""
    try:
        return files.read_environment(run)
    except UnfitFile as error:
        say(f"note: {error}; it is written anew")
        return {}


def changes(old: dict[str, Any], new: dict[str, Any], old_precision: str | None, precision: str) -> list[str]:
    """Return lines `name: old → new` of settings that keep a run from going on. The precisions are the values behind
    `auto` when the run began (None: an old version did not store it) and now."""
    lines = difference(old, new)
    if old_precision is not None:
        then, now = (
            settings | {"budget": settings["budget"] | {"precision": resolved}}
            for settings, resolved in ((old, old_precision), (new, precision))
        )
        lines = difference(then, now)
        if new["budget"]["precision"] == "auto":
            advice = f" (auto means {precision} here; add --budget.precision {old_precision})"
            lines = [line + advice if line.startswith("budget.precision:") else line for line in lines]
    if str(new["data"]).startswith("pipe:"):
        # Each worker reads a stream of shards; without workers the process itself reads one.
        before, after = (max(1, each["reading"].get("workers", ReadingSettings.workers)) for each in (old, new))
        if before != after:
            turns = "they take turns at pipe: shards: others give other batches"
            lines.append(f"reading.workers: {before} → {after} ({turns})")
    return lines


def environment() -> dict[str, Any]:
    """Return versions, machine, revision and command, for readers of a result."""
    versions: dict[str, str | None] = dict.fromkeys(_PACKAGES)
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "python": platform.python_version(),
        "packages": versions,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "processes": distributed.world().size,
        "revision": _revision(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def plugins_of(settings: dict[str, Any]) -> dict[str, str]:
    """Return the plug-ins that a run uses: "method NAME" → package and version."""
    distil, aligned = settings.get("distil", {}), settings.get("aligned", {})
    towers = (aligned.get("image_tower"), aligned.get("text_tower")) if settings.get("recipe") == "aligned" else ()
    taught = (distil.get("teacher"), distil.get("text_teacher")) if distil.get("cache") else ()
    used: list[tuple[Registry[Any], str]]
    used = [(methods.REGISTRY, settings["method"]), (readers.REGISTRY, str(settings["data"]).partition(":")[0])]
    used += [(teachers.REGISTRY, str(spec).partition(":")[0]) for spec in (*towers, *taught) if spec]
    return {f"{registry.what} {name}": origin for registry, name in used if (origin := registry.origin(name))}


def _revision() -> str | None:
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        answer = subprocess.run(describe, cwd=Path(__file__).parent, capture_output=True, encoding="utf-8")
    except OSError:
        return None
    return answer.stdout.strip() or None


class Records:
    """Writes the log of a run, numbers by step, and sends it to the trackers of its settings.

    Calls of processes other than the leading process do nothing.
    """

    def __init__(self, run: Path, from_step: int, settings: TrainSettings | None = None):
        self.run = run
        self.trackers: Trackers | None = None
        self.file = None
        if not distributed.world().leads:
            return
        self.path = path = run / files.METRICS
        if path.exists():
            # Lines of steps that will be done again would appear twice.
            lines = [sealed_line(line) for line in files.read_metrics(run) if line["step"] <= from_step]
            write_text(path, "".join(lines))
        self.file = path.open("a", encoding="utf-8")
        if settings is not None:
            tracked = TrackedRun(run, settings.record.project, as_dict(settings), from_step)
            self.trackers = Trackers(chosen_trackers(settings.record), tracked, say)

    def write(self, step: int, numbers: dict[str, Any]) -> None:
        if self.file is None:
            return
        with naming(self.path):
            self.file.write(sealed_line({"step": step, **numbers}))
            self.file.flush()
        if self.trackers is not None:
            self.trackers.log(step, numbers)

    def close(self) -> None:
        if self.file is not None:
            with naming(self.path):
                self.file.close()
        if self.trackers is not None:
            self.trackers.close()


class DamagedFile:
    """Lists the samples that a run could not use, in a file per process. A resumed run appends to the file."""

    def __init__(self, run: Path, count: DamageCount):
        rank = distributed.world().rank
        self.path = run / (f"damaged-{rank}.tsv" if rank else files.DAMAGED)
        self.count = count
        count.keys |= _read_damaged(self.path)
        self.written = len(count.keys)

    def append(self) -> None:
        """Write samples that are new in the loader's count."""
        new = list(self.count.keys.items())[self.written :]
        if new:
            with naming(self.path), self.path.open("a", **_ENCODING) as file:
                file.writelines(f"{key}\t{cause}\n" for key, cause in new)
            self.written += len(new)

    def numbers(self) -> dict[str, float]:
        """Count different damaged samples by cause over all processes. Every process must call this."""
        counts = {f"damaged/{cause}": float(self.count.by_cause.get(cause, 0)) for cause in CAUSES}
        size = distributed.world().size
        return {name: size * value for name, value in distributed.mean_over_processes(counts).items() if value}


def _read_damaged(path: Path) -> dict[str, str]:
    lines = file_bytes(path, LOG_BYTES).decode(**_ENCODING).split("\n") if path.exists() else []
    split = (line.rpartition("\t") for line in lines)
    return {key: cause for key, _, cause in split if cause in CAUSES}


def damage_line(run: Path, train: Source) -> str:
    """Return a line that counts the training images that no process could use and names their list; "" if none."""
    keys = {key for path in run.glob(files.DAMAGED_OF_ALL) for key in _read_damaged(path)}
    if not keys:
        return ""
    of = "" if is_stream(train) else f" of {len(train)}"
    return f"{len(keys)}{of} training images could not be used: {run / files.DAMAGED}"
