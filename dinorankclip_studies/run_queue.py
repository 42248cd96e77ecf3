"""The runs of a study on disk, so that any worker, here or on another machine, can take the next one.

FOLDER/queue.json            settings of all runs that any `study run` asked for
FOLDER/holds/KEY             held under a lock by the process that makes the run; the lock falls when it dies
FOLDER/cells/KEY/            the run folder; result.json in it says that the run is finished
FOLDER/failed/KEY.json       why the run failed; removed by the next `study run`, which tries again
FOLDER/logs/KEY.log          what training and scoring printed
FOLDER/earlier/KEY.json      the record of a run that is being made again (results.py)
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

from dinorankclip.config import as_dict
from dinorankclip.io import one_at_a_time, write_json
from dinorankclip.types import UserError
from dinorankclip.validate import validated
from dinorankclip_studies.results import CELLS, RESULT
from dinorankclip_studies.study import Run, from_dict, once

POLL = 0.5  # seconds between looks
GLANCE = 0.05  # seconds; longer than `is_running` holds a lock that it only looks at
QUEUE, HOLDS, FAILED, LOGS = "queue.json", "holds", "failed", "logs"


def write_queue(folder: Path, runs: Iterable[Run], sets: Iterable[str]) -> None:
    """Runs that another call asked for stay: it may be going on, or SLURM may not have started them yet."""
    runs = once(runs)
    _demand_sense(runs)
    entries = {run.key: _entry(run) for run in runs}
    path = folder / QUEUE
    with one_at_a_time("queue", folder=folder):
        before = json.loads(path.read_text())["runs"] if path.is_file() else []
        earlier = [one for one in before if one["key"] not in entries]
        write_json(path, {"sets": list(sets), "runs": [*entries.values(), *earlier]})


def _demand_sense(runs: Iterable[Run]) -> None:
    """Now rather than when the run's turn comes, which may be a day later."""
    for run in runs:
        try:
            validated(run.settings)
        except UserError as error:
            raise UserError(f"cell {run.cell}: {error}") from error


def _entry(run: Run) -> dict[str, Any]:
    told = {"cell": run.cell, "seed": run.seed, "key": run.key, "score": run.score}
    return told | {"settings": as_dict(run.settings)}


def read_queue(folder: Path, keys: Sequence[str]) -> tuple[list[Run], tuple[str, ...]]:
    """The runs of these keys, in their order, and the sets they are scored on."""
    path = folder / QUEUE
    if not path.is_file():
        raise UserError(f"{folder} is no study folder with a queue: start it with dinorankclip study run NAME")
    stored = json.loads(path.read_text())
    known = {one["key"]: one for one in stored["runs"]}
    unknown = [key for key in keys if key not in known]
    if unknown:
        raise UserError(f"the queue of {folder} has no run {unknown[0]}")
    wanted = [known[key] for key in keys]
    runs = [Run(one["cell"], one["seed"], from_dict(one["settings"]), one["score"]) for one in wanted]
    return runs, tuple(stored["sets"])


def is_finished(folder: Path, key: str) -> bool:
    return (folder / CELLS / key / RESULT).is_file()


def is_failed(folder: Path, key: str) -> bool:
    return (folder / FAILED / f"{key}.json").is_file()


def why_failed(folder: Path, key: str) -> str:
    return json.loads((folder / FAILED / f"{key}.json").read_text())["error"]


def record_failure(folder: Path, run: Run, error: str) -> None:
    (folder / FAILED).mkdir(parents=True, exist_ok=True)
    told = {"cell": run.cell, "seed": run.seed, "error": error, "log": f"{LOGS}/{run.key}.log"}
    write_json(folder / FAILED / f"{run.key}.json", told)


def forget_failures(folder: Path) -> None:
    for path in (folder / FAILED).glob("*.json"):
        path.unlink(missing_ok=True)


class Hold:
    """The right to make a run, and the time that was spent on it before."""

    def __init__(self, path: Path, handle: int):
        self._path, self._handle = path, handle
        with contextlib.suppress(ValueError):
            self.before = float(json.loads(path.read_text() or "{}").get("seconds", 0.0))
        self._begin = time.monotonic()
        self.note()

    before = 0.0

    @property
    def seconds(self) -> float:
        """Spent on the run, earlier attempts included as far as they could say."""
        return self.before + time.monotonic() - self._begin

    def note(self) -> None:
        """Write down who has the hold and what was spent."""
        told = json.dumps({"pid": os.getpid(), "host": os.uname().nodename, "seconds": round(self.seconds, 1)})
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, told.encode(), 0)

    def release(self) -> None:
        self.note()
        os.close(self._handle)


def hold(folder: Path, key: str) -> Hold | None:
    """None if another process, of this or another `study run`, has it."""
    (folder / HOLDS).mkdir(parents=True, exist_ok=True)
    path = folder / HOLDS / key
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    for last in (False, True):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return Hold(path, handle)
        except BlockingIOError:
            if not last:
                time.sleep(GLANCE)
        except OSError as error:
            os.close(handle)
            raise _no_locks(folder, error) from error
    os.close(handle)
    return None


def is_running(folder: Path, key: str) -> bool:
    """Whether some process has it in hold now."""
    path = folder / HOLDS / key
    if not path.is_file():
        return False
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        raise _no_locks(folder, error) from error
    finally:
        os.close(handle)


def _no_locks(folder: Path, error: OSError) -> UserError:
    """Without locks nobody could know which runs are being made."""
    return UserError(
        f"{folder} is on a disk without file locks ({error.strerror}), which workers share runs by: keep the study on "
        "another disk (--folder), or have this one mounted with them"
    )


def was_held_by(folder: Path, key: str, pid: int) -> bool:
    """Whether this process of this machine has it in hold, or was the last that had."""
    try:
        told = json.loads((folder / HOLDS / key).read_text())
    except (OSError, ValueError):
        return False
    return (told.get("pid"), told.get("host")) == (pid, os.uname().nodename)


def open_runs(
    folder: Path, runs: Sequence[Run], ready: Callable[[Run], bool]
) -> Generator[tuple[Run, Hold], None, None]:
    """Runs in hold, one after another, until nothing is left that this process could take.

    Runs that are not `ready` (another worker is making what they need) are passed over, and looked at again.
    """
    while True:
        passed_over = False
        for run in runs:
            if _is_over(folder, run.key):
                continue
            if not ready(run):
                passed_over = True
                continue
            taken = hold(folder, run.key)
            if taken is None:
                continue
            try:
                # Another worker may have finished it, or failed at it, between the look and the hold.
                if not _is_over(folder, run.key):
                    yield run, taken
            finally:
                taken.release()
            break
        else:
            if not passed_over:
                return
            time.sleep(POLL)


def _is_over(folder: Path, key: str) -> bool:
    return is_finished(folder, key) or is_failed(folder, key)
