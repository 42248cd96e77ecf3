"""Sends the numbers of the log to trackers: TensorBoard, wandb, mlflow, trackio. metrics.jsonl has all of them anyway.

A tracker is a line of `TRACKERS` and a class with `log` and `close`. Its package is imported when a run opens it, and a
package that is missing is named before training starts. A tracker that fails during training is reported once and left
out; the run goes on.
"""

from __future__ import annotations

import importlib.util
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from dinorankclip.checked_files import read_object
from dinorankclip.config import RecordSettings
from dinorankclip.io import write_json
from dinorankclip.run_files import TENSORBOARD, TRACKED
from dinorankclip.stored_settings import flatten
from dinorankclip.types import UserError, first_line

MLFLOW_PARAMS = 100  # parameters that mlflow takes at once


class Tracker(Protocol):
    """Receives the numbers of a step, and is closed at the end. Numbers of one step may come in several calls."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class TrackedRun:
    """Holds what a tracker is opened with. Steps after `from_step` are done again by a resumed run."""

    folder: Path
    project: str
    settings: Mapping[str, Any]
    from_step: int

    @property
    def name(self) -> str:
        return self.folder.resolve().name


class TensorBoard:
    """Writes event files into the run folder. Steps that are done again replace those of the stopped run."""

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(run.folder / TENSORBOARD, purge_step=run.from_step + 1)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """Writes a run of Weights & Biases. WANDB_MODE=offline keeps it in the run folder until `wandb sync`."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self._run = wandb.init(
            project=run.project, name=run.name, dir=str(run.folder), config=dict(run.settings),
            id=stored_id(run.folder, "wandb", partial(secrets.token_hex, 4)), resume="allow",
            settings=wandb.Settings(console="off"),
        )  # fmt: skip

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()


class Mlflow:
    """Writes a run of mlflow, to MLFLOW_TRACKING_URI or else to the folder mlruns beside the run folder.

    mlflow allows neither `@` nor a name that is also the beginning of others: `val/mean R@1` is `val/mean R_at_1`
    there, `loss` is `loss/total`.
    """

    def __init__(self, run: TrackedRun) -> None:
        from mlflow import MlflowClient

        place = os.environ.get("MLFLOW_TRACKING_URI")
        if place is None:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions demand that files are asked for
            place = (run.folder.resolve().parent / "mlruns").as_uri()
        self._client = MlflowClient(tracking_uri=place)
        self._id = stored_id(run.folder, "mlflow", lambda: self._new_run(run))

    def _new_run(self, run: TrackedRun) -> str:
        from mlflow.entities import Param

        known = self._client.get_experiment_by_name(run.project)
        experiment = known.experiment_id if known else self._client.create_experiment(run.project)
        identity = self._client.create_run(experiment, run_name=run.name).info.run_id
        params = [Param(name, str(value)) for name, value in flatten(dict(run.settings)).items()]
        for first in range(0, len(params), MLFLOW_PARAMS):
            self._client.log_batch(identity, params=params[first : first + MLFLOW_PARAMS])
        return identity

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(mlflow_name(name), value, now, step) for name, value in numbers.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._id)


def mlflow_name(name: str) -> str:
    """Return the name of a number in mlflow."""
    return "loss/total" if name == "loss" else re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"))


class Trackio:
    """Writes a run of trackio to its local folder (TRACKIO_DIR)."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        self._run = trackio.init(
            project=run.project, name=run.name, config=flatten(dict(run.settings)), resume="allow", embed=False,
            auto_log_cpu=False, auto_log_gpu=False,  # a thread that samples the machine
        )  # fmt: skip

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        self._run.finish()


@dataclass(frozen=True)
class TrackerKind:
    """Holds the package that a tracker imports, the package that pip installs, and the class that opens it."""

    module: str
    package: str
    open: Callable[[TrackedRun], Tracker]


TRACKERS = {
    "tensorboard": TrackerKind("tensorboard", "tensorboard", TensorBoard),
    "wandb": TrackerKind("wandb", "wandb", Wandb),
    "mlflow": TrackerKind("mlflow", "mlflow-skinny", Mlflow),
    "trackio": TrackerKind("trackio", "trackio", Trackio),
}


def chosen_trackers(record: RecordSettings) -> tuple[str, ...]:
    """Return the trackers of a run; raise `UserError` for an unknown one and for one whose package is missing."""
    if record.trackers is None:
        there = record.tensorboard and importlib.util.find_spec(TRACKERS["tensorboard"].module) is not None
        return ("tensorboard",) if there else ()
    for name in record.trackers:
        if name not in TRACKERS:
            raise UserError(f"--record.trackers {name}: there are {', '.join(TRACKERS)}")
        kind = TRACKERS[name]
        if kind.module not in sys.modules and importlib.util.find_spec(kind.module) is None:
            raise UserError(f"--record.trackers {name} needs a package that is missing: pip install {kind.package}")
    return tuple(dict.fromkeys(record.trackers))


def stored_id(folder: Path, tracker: str, new: Callable[[], str]) -> str:
    """Return the id that a run has at a tracker. It is stored in the run folder: a resumed run goes on under it."""
    path = folder / TRACKED
    ids = read_object(path) if path.is_file() else {}
    if not isinstance(ids.get(tracker), str):
        ids[tracker] = new()
        write_json(path, ids)
    return ids[tracker]


class Trackers:
    """Sends numbers to several trackers. The first failure of a tracker is its last: `report` gets a line about it."""

    def __init__(self, names: Sequence[str], run: TrackedRun, report: Callable[[str], None]) -> None:
        self._open: dict[str, Tracker] = {}
        self._report = report
        for name in names:
            self._try(name, partial(self._open_one, name, run))

    def _open_one(self, name: str, run: TrackedRun) -> None:
        self._open[name] = TRACKERS[name].open(run)

    def log(self, step: int, numbers: Mapping[str, Any]) -> None:
        numeric = {name: value for name, value in numbers.items() if isinstance(value, int | float)}
        for name, tracker in list(self._open.items()):
            self._try(name, partial(tracker.log, step, numeric))

    def close(self) -> None:
        for name, tracker in list(self._open.items()):
            self._try(name, tracker.close)

    @property
    def names(self) -> Iterable[str]:
        """Return the trackers that still work."""
        return tuple(self._open)

    def _try(self, name: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # of another library, a network, a server
            self._open.pop(name, None)
            self._report(
                f"note: {name} failed ({type(error).__name__}: {first_line(error)}) and is left out from here on; "
                "training goes on, and metrics.jsonl has every number"
            )
