"""What keeps a run from going on: settings that were others when it began, as they act on their machines and data."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dinorankclip import distributed
from dinorankclip.config import ReadingSettings, difference
from dinorankclip.data.damage import CAUSES, DamageCount
from dinorankclip.data.streams import PipeSource
from dinorankclip.device import choose
from dinorankclip.io import if_free, write_json, write_text
from dinorankclip.run_files import (
    BEFORE,
    CHECKPOINTS,
    CONFIG,
    DAMAGED,
    DAMAGED_OF_ALL,
    ENDED,
    ENVIRONMENT,
    FUSION,
    METRICS,
    SCORES,
    STEP,
    TENSORBOARD,
    read_object,
    read_settings,
)
from dinorankclip.types import Source, UserError


def changes(old: dict[str, Any], new: dict[str, Any], old_precision: str | None, precision: str) -> list[str]:
    """Lines `name: old → new`. Precisions are what `auto` came to when the run began (None: a version that did not
    write it down) and comes to here."""
    lines = difference(old, new)
    if old_precision is not None:
        lines = difference(_computing_in(old, old_precision), _computing_in(new, precision))
        if new["budget"]["precision"] == "auto":
            advice = f" (auto means {precision} here; add --budget.precision {old_precision})"
            lines = [line + advice if line.startswith("budget.precision:") else line for line in lines]
    before, now = _streams(old), _streams(new)
    if before != now and str(new["data"]).startswith("pipe:"):
        lines.append(f"reading.workers: {before} → {now} (they take turns at pipe: shards: others give other batches)")
    return lines


def _computing_in(settings: dict[str, Any], precision: str) -> dict[str, Any]:
    return settings | {"budget": settings["budget"] | {"precision": precision}}


def _streams(settings: dict[str, Any]) -> int:
    """How many streams of shards a process has: without a worker it reads the one itself."""
    return max(1, settings["reading"].get("workers", ReadingSettings.workers))


# -------- damaged
# Which samples a run could not use: named in `damaged.tsv`, counted in the log, remembered over a resume.

ENCODING, ERRORS = "utf-8", "surrogateescape"  # files may be named by bytes that are no UTF-8


def damage_line(run: Path, train: Source | PipeSource) -> str:
    """How many images of the training part no process could use, and where they are named; "" if there were none."""
    keys = {key for path in run.glob(DAMAGED_OF_ALL) for key in _read(path)}
    if not keys:
        return ""
    of = "" if isinstance(train, PipeSource) else f" of {len(train)}"
    return f"{len(keys)}{of} training images could not be used: {run / DAMAGED}"


def _read(path: Path) -> dict[str, str]:
    lines = path.read_text(ENCODING, ERRORS).split("\n") if path.exists() else []
    split = (line.rpartition("\t") for line in lines)
    return {key: cause for key, _, cause in split if cause in CAUSES}


class DamagedFile:
    """The loader of this process counts; this keeps its list on disk, one file a process."""

    def __init__(self, run: Path, count: DamageCount):
        rank = distributed.world().rank
        self.path = run / (f"damaged-{rank}.tsv" if rank else DAMAGED)
        self.count = count
        count.keys |= _read(self.path)
        self.written = len(count.keys)

    def append(self) -> None:
        """Write what is new."""
        news = list(self.count.keys.items())[self.written :]
        if news:
            with self.path.open("a", encoding=ENCODING, errors=ERRORS) as file:
                file.writelines(f"{key}\t{cause}\n" for key, cause in news)
            self.written += len(news)

    def numbers(self) -> dict[str, float]:
        """Different damaged samples by cause, over all processes, which must all ask."""
        counts = {f"damaged/{cause}": float(self.count.by_cause.get(cause, 0)) for cause in CAUSES}
        size = distributed.world().size
        return {name: size * value for name, value in distributed.mean_over_processes(counts).items() if value}


# -------- records
# The run folder: settings, machine, one JSON line per record, TensorBoard, the progress bar.

_PACKAGES = ("torch", "torchvision", "timm", "open_clip_torch", "numpy", "webdataset", "simplejpeg", "pillow")


def say(text: str) -> None:
    """Print once, whatever the number of processes."""
    if distributed.world().leads:
        print(text, flush=True)


@contextmanager
def alone_in(run: Path) -> Iterator[None]:
    """No other process of this machine trains in the folder, or moves it away, until the end of the block.

    The lock lies beside the folder, which --restart renames.
    """
    place = run.resolve()
    ours = if_free(f".{place.name}", place.parent) if distributed.world().leads else nullcontext(True)
    with ours as free:
        if distributed.any_process(not free)[0]:
            raise UserError(f"another process is training in {run}: wait for it, stop it, or choose another --run")
        yield


def claim(run: Path, settings: dict[str, Any], restart: bool) -> None:
    """Take the run folder for these settings: a new one, or one made with the same settings."""
    distributed.leader_first(lambda: _claim(run, settings, restart))


def _claim(run: Path, settings: dict[str, Any], restart: bool) -> None:
    about = environment() | _placed(settings["budget"])  # before anything is touched: the device may be refused
    if restart and run.exists():
        aside = run.with_name(f"{run.name}.{time.strftime('%Y%m%d-%H%M%S')}")
        os.replace(run, aside)
        say(f"moved the old run to {aside}")
    stored = run / CONFIG
    if stored.exists():
        earlier = read_object(run / ENVIRONMENT) if (run / ENVIRONMENT).is_file() else {}
        changed = changes(_stored(run), settings, earlier.get("precision"), about["precision"])
        if changed and not has_begun(run):
            # Left by a start that was refused or failed: nothing is lost, and its first numbers are of other settings.
            for leftover in (run / BEFORE, run / FUSION, *run.glob(DAMAGED_OF_ALL)):
                leftover.unlink(missing_ok=True)
            say(f"{run} was made with other settings, but no step was taken: it now belongs to these")
        elif changed:
            raise UserError(
                f"{run} was made with other settings:\n  " + "\n  ".join(changed) +
                "\nUse the old settings to resume it, another --run, or --restart to move it aside."
            )  # fmt: skip
        elif has_begun(run) and earlier.get("device", about["device"]) != about["device"]:
            say(f"mind: {run} was last on {earlier['device']} and goes on on {about['device']}, which rounds otherwise")
    elif run.exists() and any(run.iterdir()):
        raise UserError(f"{run} is not empty and not a run folder; choose another --run")
    run.mkdir(parents=True, exist_ok=True)
    write_json(stored, settings)
    write_json(run / ENVIRONMENT, about)


def _stored(run: Path) -> dict[str, Any]:
    """Settings of an earlier run. Others write a config.json, too, which must not be overwritten."""
    try:
        return read_settings(run)
    except UserError as error:
        raise UserError(f"{error}; choose another --run, or --restart to move the folder aside") from error


@contextmanager
def given_back(run: Path) -> Iterator[None]:
    """A folder that the block makes, and then leaves by an error before the first step, is removed again; unless it
    holds what took time to make, such as scores of the starting weights."""
    new = not run.exists()
    try:
        yield
    except BaseException:
        if new and distributed.world().leads and not has_begun(run) and _empty(run):
            shutil.rmtree(run, ignore_errors=True)
        raise


def _empty(run: Path) -> bool:
    return {path.name for path in run.glob("*")} <= {CONFIG, ENVIRONMENT, METRICS, TENSORBOARD, ENDED}


def has_begun(run: Path) -> bool:
    """Whether a run folder holds anything that training took time for: a checkpoint, a logged step, a score."""
    logged = (run / METRICS).is_file() and (run / METRICS).stat().st_size > 0
    return logged or (run / SCORES).is_file() or any((run / CHECKPOINTS).glob(f"{STEP}*"))


def _placed(budget: dict[str, Any]) -> dict[str, str]:
    """What `auto` came to on this machine."""
    found = choose(budget["device"], budget["precision"], distributed.world().local_rank)
    return {"device": found.device.type, "precision": found.precision}


def environment() -> dict[str, Any]:
    """What a reader needs to judge a result: versions, machine, revision, command."""
    import torch

    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    gpu = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "python": platform.python_version(),
        "packages": versions,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": gpu,
        "processes": distributed.world().size,
        "revision": _revision(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def _revision() -> str | None:
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=here, capture_output=True, text=True
        )
    except OSError:
        return None
    return found.stdout.strip() or None


class Records:
    """Numbers over steps. Only the leading process writes; the others' calls do nothing."""

    def __init__(self, run: Path, from_step: int, tensorboard: bool):
        self.writer = None
        self.file = None
        if not distributed.world().leads:
            return
        path = run / METRICS
        if path.exists():
            # Lines of steps that will be done again would appear twice.
            kept = [line for line in path.read_text().splitlines() if _is_before(line, from_step)]
            write_text(path, "".join(line + "\n" for line in kept))
        self.file = path.open("a")
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(run / TENSORBOARD, purge_step=from_step + 1)

    def write(self, step: int, numbers: dict[str, Any]) -> None:
        if self.file is None:
            return
        self.file.write(json.dumps({"step": step, **numbers}) + "\n")
        self.file.flush()
        if self.writer is not None:
            for name, value in numbers.items():
                if isinstance(value, int | float):
                    self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
        if self.writer is not None:
            self.writer.close()


def _is_before(line: str, step: int) -> bool:
    try:
        return json.loads(line)["step"] <= step
    except ValueError:
        return False  # the line a kill cut short
