"""Stores the queue of a study on disk: any worker, on this or another machine, can take the next run.

FOLDER/queue.json            settings of all runs that any `study run` asked for
FOLDER/holds/KEY             process and time spent on a run; KEY.lock is locked while the process lives
FOLDER/cells/KEY/            the run folder; its result.json marks the run as finished
FOLDER/failed/KEY.json       why the run failed; the next `study run` removes it and tries again
FOLDER/logs/KEY.log          the output of training and scoring
FOLDER/earlier/KEY.json      the record of a run that is being made again (results.py)
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from dinorankclip import json_shape
from dinorankclip.checked_files import UnfitFile, read_object
from dinorankclip.checksums import read_sealed, sealed
from dinorankclip.config import as_dict
from dinorankclip.io import one_at_a_time, write_json
from dinorankclip.stored_settings import settings_from_json
from dinorankclip.types import UserError
from dinorankclip.validate import validated
from dinorankclip_studies.results import CELLS, RESULT
from dinorankclip_studies.study import Run, distinct

POLL = 0.5  # seconds between looks at the folder
GLANCE = 0.05  # timeout in seconds of a lock: longer than `is_running` holds it
QUEUE, HOLDS, FAILED, LOGS = "queue.json", "holds", "failed", "logs"
_ENTRY = json_shape.entries(
    {"cell": json_shape.TEXT, "seed": json_shape.WHOLE, "key": json_shape.TEXT, "settings": json_shape.OBJECT},
    required=("cell", "seed", "key", "settings", "score"),
)
_QUEUE = json_shape.entries(
    {"runs": json_shape.listed(_ENTRY), "sets": json_shape.listed(json_shape.TEXT)}, required=("runs", "sets")
)


def write_queue(folder: Path, runs: Iterable[Run], sets: Iterable[str]) -> None:
    """Add runs to the queue. Runs of other calls stay: these calls may be running, or waiting for SLURM.

    Settings are validated here: a worker may reach a run only a day later.
    """
    entries = {}
    for run in distinct(runs):
        try:
            validated(run.settings)
        except UserError as error:
            raise UserError(f"cell {run.cell}: {error}") from error
        entry = {"cell": run.cell, "seed": run.seed, "key": run.key, "score": run.score}
        entries[run.key] = entry | {"settings": as_dict(run.settings)}
    path = folder / QUEUE
    with one_at_a_time("queue", folder=folder):
        before = read_sealed(path, _QUEUE)["runs"] if path.is_file() else []
        earlier = [entry for entry in before if entry["key"] not in entries]
        write_json(path, sealed({"sets": list(sets), "runs": [*entries.values(), *earlier]}))


def read_queue(folder: Path, keys: Sequence[str]) -> tuple[list[Run], tuple[str, ...]]:
    """Return the runs of these keys, in their order, and the sets that runs are scored on."""
    path = folder / QUEUE
    if not path.is_file():
        raise UserError(f"{folder} is no study folder with a queue: start it with dinorankclip study run NAME")
    stored = read_sealed(path, _QUEUE)
    entries = {entry["key"]: entry for entry in stored["runs"]}
    unknown = [key for key in keys if key not in entries]
    if unknown:
        raise UserError(f"the queue of {folder} has no run {unknown[0]}")
    runs = [
        Run(entry["cell"], entry["seed"], settings_from_json(entry["settings"]), entry["score"])
        for entry in map(entries.__getitem__, keys)
    ]
    return runs, tuple(stored["sets"])


def is_finished(folder: Path, key: str) -> bool:
    return (folder / CELLS / key / RESULT).is_file()


def is_failed(folder: Path, key: str) -> bool:
    return (folder / FAILED / f"{key}.json").is_file()


def is_over(folder: Path, key: str) -> bool:
    return is_finished(folder, key) or is_failed(folder, key)


def why_failed(folder: Path, key: str) -> str:
    try:
        return str(read_object(folder / FAILED / f"{key}.json").get("error", "unknown"))
    except UnfitFile as error:
        return str(error)


def record_failure(folder: Path, run: Run, error: str) -> None:
    (folder / FAILED).mkdir(parents=True, exist_ok=True)
    failure = {"cell": run.cell, "seed": run.seed, "error": error, "log": f"{LOGS}/{run.key}.log"}
    write_json(folder / FAILED / f"{run.key}.json", failure)


def forget_failures(folder: Path) -> None:
    for path in (folder / FAILED).glob("*.json"):
        path.unlink(missing_ok=True)


class RunLock:
    """Holds the exclusive right to make a run, and counts the seconds spent on the run, by earlier processes too."""

    def __init__(self, path: Path, lock: FileLock) -> None:
        self._path, self._lock, self._begin = path, lock, time.monotonic()
        self.earlier_seconds = float(_read_note(path).get("seconds", 0.0))
        self.save()

    @property
    def seconds(self) -> float:
        return self.earlier_seconds + time.monotonic() - self._begin

    def save(self) -> None:
        """Write the process and the time spent so far, for a process that continues after a crash."""
        note = {"pid": os.getpid(), "host": platform.node(), "seconds": round(self.seconds, 1)}
        write_json(self._path, note)

    def release(self) -> None:
        with contextlib.suppress(
            OSError
        ):  # on a full disk the note of the time is lost, and the lock is still released
            self.save()
        self._lock.release()


def lock_run(folder: Path, key: str) -> RunLock | None:
    """Lock a run; None if another process, of this or another `study run`, holds it."""
    (folder / HOLDS).mkdir(parents=True, exist_ok=True)
    lock = _try_lock(folder, key)
    return None if lock is None else RunLock(folder / HOLDS / key, lock)


def is_running(folder: Path, key: str) -> bool:
    """Return whether some process holds the lock of the run now."""
    if not (folder / HOLDS / f"{key}.lock").is_file():
        return False
    lock = _try_lock(folder, key)
    if lock is None:
        return True
    lock.release()
    return False


def _try_lock(folder: Path, key: str) -> FileLock | None:
    lock = FileLock(folder / HOLDS / f"{key}.lock", fallback_to_soft=False)
    try:
        lock.acquire(timeout=GLANCE, poll_interval=GLANCE / 4)
    except Timeout:
        return None
    except (OSError, NotImplementedError) as error:
        raise UserError(
            f"{folder} is on a disk without file locks ({error}), which workers need to share runs: keep the study on "
            "another disk (--folder), or mount this disk with locks"
        ) from error
    return lock


def was_locked_by(folder: Path, key: str, pid: int) -> bool:
    """Return whether this process of this machine holds the lock, or was the last to hold it."""
    note = _read_note(folder / HOLDS / key)
    return (note.get("pid"), note.get("host")) == (pid, platform.node())


def _read_note(path: Path) -> dict:
    with contextlib.suppress(OSError, UnfitFile):
        return read_object(path)
    return {}


def take_runs(
    folder: Path, runs: Sequence[Run], ready: Callable[[Run], bool]
) -> Generator[tuple[Run, RunLock], None, None]:
    """Yield one locked run after another until nothing is left that this process can take.

    Runs that are not `ready` (another worker is making the teacher features they need) are tried again later.
    """
    while True:
        skipped = False
        for run in runs:
            if is_over(folder, run.key):
                continue
            if not ready(run):
                skipped = True
                continue
            lock = lock_run(folder, run.key)
            if lock is None:
                continue
            try:
                # Another worker may have finished the run, or failed at it, before the lock was taken.
                if not is_over(folder, run.key):
                    yield run, lock
            finally:
                lock.release()
            break
        else:
            if not skipped:
                return
            time.sleep(POLL)
