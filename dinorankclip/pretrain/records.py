"""The run folder: settings, machine, one JSON line per record, TensorBoard, the progress bar."""

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

from dinorankclip import comm
from dinorankclip.device import choose
from dinorankclip.locks import if_free
from dinorankclip.pretrain.changes import changes
from dinorankclip.run_files import (
    BEFORE,
    CHECKPOINTS,
    CONFIG,
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
from dinorankclip.types import UserError
from dinorankclip.whole_files import write_json, write_text

_PACKAGES = ("torch", "torchvision", "timm", "open_clip_torch", "numpy", "webdataset", "simplejpeg", "pillow")


def say(text: str) -> None:
    """Print once, whatever the number of processes."""
    if comm.world().leads:
        print(text, flush=True)


@contextmanager
def alone_in(run: Path) -> Iterator[None]:
    """No other process of this machine trains in the folder, or moves it away, until the end of the block.

    The lock lies beside the folder, which --restart renames.
    """
    place = run.resolve()
    ours = if_free(f".{place.name}", place.parent) if comm.world().leads else nullcontext(True)
    with ours as free:
        if comm.any_process(not free)[0]:
            raise UserError(f"another process is training in {run}: wait for it, stop it, or choose another --run")
        yield


def claim(run: Path, settings: dict[str, Any], restart: bool) -> None:
    """Take the run folder for these settings: a new one, or one made with the same settings."""
    comm.leader_first(lambda: _claim(run, settings, restart))


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
        if new and comm.world().leads and not has_begun(run) and _empty(run):
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
    found = choose(budget["device"], budget["precision"], comm.world().local_rank)
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
        "processes": comm.world().size,
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
        if not comm.world().leads:
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


