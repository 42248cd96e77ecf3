"""Everything that a study's report is made of, read from its folder: results, definition, tables, kept models."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dinorankclip.run_files import ENVIRONMENT
from dinorankclip.study.cell_list import PICTURED
from dinorankclip.study.definition import STUDIES
from dinorankclip.study.measures import Measures, measures_of
from dinorankclip.study.outline import Study
from dinorankclip.study.results import RESULTS, Results, chances_of
from dinorankclip.types import UserError
from dinorankclip.writeup.kept_models import SEED, KeptModels
from dinorankclip.writeup.tables import Table, build_table, teachers

BENCH = Path("docs/bench")  # dated records of what a step costs


@dataclass(frozen=True)
class StudyMaterial:
    """`folder` holds results.json and, unless it is a committed copy, the run folders below `cells/`."""

    folder: Path
    study: Study
    results: Results
    bench: Path = BENCH

    @property
    def measures(self) -> Measures:
        return measures_of(self.study.name)

    @cached_property
    def tables(self) -> list[Table]:
        return [build_table(experiment, self.results) for experiment in self.study.experiments]

    def table(self, name: str) -> Table | None:
        return next((table for table in self.tables if table.experiment.name == name), None)

    @cached_property
    def models(self) -> KeptModels:
        runs = {run.cell: self.folder / run.folder for run in self.results.runs if run.seed == SEED}
        return KeptModels(runs, self.study.sets)

    @property
    def pictured(self) -> str:
        """The runs whose models pictures are drawn from, by their keys."""
        return " ".join(sorted(run.key for run in self.results.runs if run.seed == SEED and run.cell in PICTURED))

    @property
    def lacking(self) -> dict[str, list[int]]:
        """Cell → seeds that are not finished."""
        found = {}
        for cell in self.study.cells:
            there = self.results.of(cell.name)
            seeds = [seed for seed in range(self.study.seeds[cell.name]) if seed not in there]
            if seeds:
                found[cell.name] = seeds
        return found

    @cached_property
    def teachers(self) -> list[str]:
        """Who the teachers were, with what must be said beside their results."""
        return list(teachers(self.tables))

    @property
    def teacher_sentence(self) -> str:
        of_full = [run.teacher for run in self.results.of("full").values() if run.teacher]
        return f"Teacher: {of_full[0]}." if of_full else ""

    def revisions(self) -> dict[str, int]:
        """Revision of the code → runs that were made with it."""
        return dict(Counter(run.revision or "unknown" for run in self.results.runs))

    def environments(self) -> list[tuple[dict[str, Any], int]]:
        """Different machines and versions with the number of runs on each; empty for a copy without run folders."""
        found: Counter[str] = Counter()
        for run in self.results.runs:
            path = self.folder / run.folder / ENVIRONMENT
            if path.is_file():
                stored = json.loads(path.read_text())
                kept = {name: value for name, value in stored.items() if name not in ("command", "revision")}
                found[json.dumps(kept, sort_keys=True)] += 1
        return [(json.loads(text), count) for text, count in found.most_common()]


def open_material(folder: Path, bench: Path = BENCH) -> StudyMaterial:
    """From a study folder, or from the folder of its committed results."""
    results = Results.load(folder)
    if results.name not in STUDIES:
        raise UserError(f"{folder / RESULTS} is of a study '{results.name}', which this version does not know")
    if not results.chances:
        results = replace(results, chances=chances_of(folder / run.folder for run in results.runs))
    return StudyMaterial(folder, STUDIES[results.name](), results, bench)
