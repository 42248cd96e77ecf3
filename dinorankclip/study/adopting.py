"""Finished runs and tuned rates taken over from the results.json of another machine, or from the committed one.

A study that outlasts its machine goes on with nothing but that small file. It has no models: runs whose models
pictures need can be made again, last of all.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from dinorankclip.run_files import CHECKPOINTS
from dinorankclip.types import UserError
from dinorankclip.whole_files import write_json

from .outline import Run, Study
from .queue import is_finished, is_running
from .results import CELLS, CHANCES, RESULT, Results, adopted_chances, earlier_record, read_record, write_record
from .tidying import KEPT_SEED
from .tuning import TUNED, rates, read_tuned


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
