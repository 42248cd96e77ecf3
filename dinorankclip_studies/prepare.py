"""What runs of a study share, made once: scenes before the workers start, teachers' features by the first worker that
needs them.

FOLDER/caches/NAME.json      of a cache that was made, or why it could not be
"""

from __future__ import annotations

import json
import shutil
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dinorankclip.config import TrainSettings
from dinorankclip.io import digest, one_at_a_time, write_json
from dinorankclip.methods import AUTO
from dinorankclip.run_files import CHECKPOINTS
from dinorankclip.teachers.cache_request import CacheSpec
from dinorankclip.train.distil_setup import wish_of
from dinorankclip.train.loop import CHOOSES_BEST
from dinorankclip.types import UserError
from dinorankclip_studies.results import (
    CELLS,
    CHANCES,
    RESULT,
    Results,
    adopted_chances,
    earlier_record,
    read_record,
    write_record,
)
from dinorankclip_studies.run_cell import KEPT_SEED
from dinorankclip_studies.run_queue import hold, is_finished, is_running
from dinorankclip_studies.study import TUNING_SEED, Run, Scenes, Study

CACHES = "caches"


def make_scenes(wanted: Scenes) -> None:
    from dinorankclip.data.scenes import make

    folder = Path(wanted.folder)
    counts = {"train": wanted.train, "val": wanted.val, "test": wanted.test} | dict(wanted.others)
    with one_at_a_time(folder.name, folder=folder.parent):
        make.make_scenes(folder, **counts)


def cache_wishes(runs: Iterable[Run]) -> dict[CacheSpec, TrainSettings]:
    """Every cache that runs ask to be made, with settings of one of them."""
    found: dict[CacheSpec, TrainSettings] = {}
    for run in runs:
        if run.settings.distil.cache == AUTO:
            found.setdefault(wish_of(run.settings), run.settings)
    return found


def name_of(wish: CacheSpec) -> str:
    """Under which a study's folder holds and tells of a cache: made of the words for it, so they must stay."""
    return f"cache-{digest(str(wish))[:12]}"


def cache_is_ready(folder: Path, run: Run, make: Callable[[TrainSettings], object]) -> bool:
    """Whether the features that a run reads are there; they are made now unless somebody else is at it.

    Features that cannot be made count as ready: the run that wants them then fails with the same words.
    """
    for wish, settings in cache_wishes([run]).items():
        if told_of(folder, wish):
            continue
        taken = hold(folder, name_of(wish))
        if taken is None:
            return False
        try:
            if not told_of(folder, wish):
                begin = time.monotonic()  # of this attempt: a hold counts earlier ones, too
                came_of_it = _made(settings, make)
                tell(folder, wish, came_of_it | {"seconds": round(time.monotonic() - begin, 1)})
        finally:
            taken.release()
    return True


def _made(settings: TrainSettings, make: Callable[[TrainSettings], object]) -> dict[str, str]:
    try:
        make(settings)
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    return {}


def tell(folder: Path, wish: CacheSpec, told: dict[str, object]) -> None:
    """Write down what came of a cache."""
    (folder / CACHES).mkdir(parents=True, exist_ok=True)
    write_json(folder / CACHES / f"{name_of(wish)}.json", {"cache": str(wish)} | told)


def told_of(folder: Path, wish: CacheSpec) -> dict[str, Any] | None:
    """What came of a cache; None if it is not made yet."""
    path = folder / CACHES / f"{name_of(wish)}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def forget_caches(folder: Path) -> None:
    """Look at every cache again: one that is there is found at once."""
    for path in (folder / CACHES).glob("*.json"):
        path.unlink(missing_ok=True)


# -------- tuning
# The learning rate: the same small grid for every method, one seed that is not reported, validation alone.
#
# One rate for all methods, the best on their average. A single run tells a method's rates apart by no more than chance
# does (500 validation pairs, one seed), and a rate chosen by luck would be an advantage that all seeds share, so that no
# interval over seeds could show it.

TUNED = "tuned.json"


def choose(runs: Sequence[Run], folder: Path) -> dict[str, Any]:
    """Read the finished tuning runs of all methods, choose, and keep choice and values in tuned.json."""
    tuned: dict[str, Any] = {}
    for run in runs:
        record = read_record(folder / CELLS / run.key)
        if record is None:
            raise UserError(f"the tuning run {run.cell} at {run.settings.optim.lr:g} is not finished")
        tried = tuned.setdefault(run.settings.method, {"cell": run.cell, "seed": TUNING_SEED, "tried": {}})["tried"]
        tried[f"{run.settings.optim.lr:g}"] = record.scores[CHOOSES_BEST]
    if tuned:
        tables = [told["tried"] for told in tuned.values()]
        # Of equal rates the smallest, so that the choice does not hang on the order of the grid.
        best = max(sorted(tables[0], key=float), key=lambda rate: sum(tried[rate] for tried in tables))
        for told in tuned.values():
            told["chosen"] = float(best)
        write_json(folder / TUNED, tuned)
    return tuned


def read_tuned(folder: Path) -> dict[str, Any]:
    """Empty if nothing was tuned (yet)."""
    return json.loads((folder / TUNED).read_text()) if (folder / TUNED).is_file() else {}


def rates(tuned: Mapping[str, Any]) -> dict[str, float]:
    return {method: told["chosen"] for method, told in tuned.items()}


# -------- adopting
# Finished runs and tuned rates taken over from the results.json of another machine, or from the committed one.
#
# A study that outlasts its machine goes on with nothing but that small file. It has no models: runs whose models
# pictures need can be made again, last of all.


def adopt_rates(study: Study, folder: Path, given: Results) -> None:
    """Rates that are chosen here already must be the same: else no run of there fits one of here."""
    if given.name != study.name:
        raise UserError(f"these are results of the study '{given.name}', not of '{study.name}'")
    here = read_tuned(folder)
    if here and rates(here) != rates(given.tuned):
        raise UserError(f"{folder / TUNED} has other learning rates than the results to adopt")
    if given.tuned and not here:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / TUNED, dict(given.tuned))


def adopt_runs(folder: Path, given: Results, runs: Iterable[Run]) -> int:
    """Write the records of `runs` that are finished there and not here; how many that were. Runs whose settings have
    changed since have other keys, and are not taken; nor are those that are being made here."""
    there = {record.key: record for record in given.runs}
    taken = 0
    for run in runs:
        place = folder / CELLS / run.key
        if run.key in there and read_record(place) is None and not is_running(folder, run.key):
            shutil.rmtree(place, ignore_errors=True)  # half a run here is no model of the whole one there
            place.mkdir(parents=True)
            write_record(place, replace(there[run.key], cell=""))
            taken += 1
    if taken and given.chances:  # which runs tell in files that are not here
        write_json(folder / CHANCES, adopted_chances(folder) | dict(given.chances))
    return taken


def reopen_runs_without_model(folder: Path, runs: Iterable[Run], cells: Iterable[str]) -> list[Run]:
    """Of these cells, the finished runs whose model should be kept here and is not: to be made again. Their records
    count until new ones are there."""
    kept = set(cells)
    reopened = []
    for run in runs:
        place = folder / CELLS / run.key
        has_model = (place / CHECKPOINTS).is_dir()
        if run.seed == KEPT_SEED and run.cell in kept and is_finished(folder, run.key) and not has_model:
            earlier_record(place).parent.mkdir(exist_ok=True)
            (place / RESULT).rename(earlier_record(place))
            reopened.append(run)
    return reopened
