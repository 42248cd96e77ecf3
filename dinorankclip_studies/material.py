"""The models that a study keeps (seed 0 of every cell) and the sets they were scored on, opened when asked for.

What cannot be opened any more becomes `Unavailable` with a sentence for the report: numbers need no models, pictures of
what a model does need one.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from dinorankclip.data.benchmark_sets import Place, find_sets, open_set
from dinorankclip.data.open_data import open_stored
from dinorankclip.evaluate.embeddings import EmbeddingStore
from dinorankclip.evaluate.scores import SeenSet
from dinorankclip.losses.transitions import TransitionHeads
from dinorankclip.models.folder import find_model
from dinorankclip.models.loaded import LoadedModel, load_model
from dinorankclip.report.figures import Unavailable
from dinorankclip.run_files import ENVIRONMENT, TENSORS, read_settings
from dinorankclip.teachers.cache_read import TeacherCache
from dinorankclip.train.cost import stored_reading
from dinorankclip.types import Source, UserError
from dinorankclip_studies.papers.dinorankclip.cells import PICTURED
from dinorankclip_studies.papers.dinorankclip.measures import Measures, measures_of
from dinorankclip_studies.papers.dinorankclip.plans import STUDIES
from dinorankclip_studies.results import RESULTS, Results, chances_of
from dinorankclip_studies.study import Study
from dinorankclip_studies.study_tables import Table, build_table, teachers

SEED = 0  # the one whose models are kept


class KeptModels:
    """`runs`: cell → run folder with a model in it; `sets`: what the study names as its evaluation sets."""

    def __init__(self, runs: dict[str, Path], sets: tuple[str, ...]) -> None:
        self.runs, self.sets = runs, sets
        self._models: dict[str, LoadedModel] = {}
        self._seen: dict[tuple[str, str], SeenSet] = {}

    def run(self, cell: str) -> Path:
        """The folder of the cell's kept run."""
        if cell not in self.runs:
            raise Unavailable(f"needs the seed-{SEED} run of {cell}, which is not finished")
        try:
            find_model(self.runs[cell])
        except UserError as error:
            raise Unavailable(f"needs the seed-{SEED} model of {cell}, which is not kept here") from error
        return self.runs[cell]

    def settings(self, cell: str) -> dict[str, Any]:
        try:
            return read_settings(self.run(cell))
        except UserError as error:
            raise Unavailable(f"needs the settings of {cell}: {error}") from error

    def model(self, cell: str) -> LoadedModel:
        if cell not in self._models:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                try:
                    self._models[cell] = load_model(self.run(cell), device="cpu")
                except UserError as error:
                    raise Unavailable(f"the model of {cell} cannot be read: {error}") from error
        return self._models[cell]

    def heads(self, cell: str, modality: str) -> TransitionHeads:
        """Transition heads of the run's loss: they train with the model and are kept beside it."""
        run, settings = self.run(cell), self.settings(cell)["loss"]
        path = find_model(run) / TENSORS
        prefix = f"objective/ranking.transitions.{modality}."
        tensors = load_file(path) if path.is_file() else {}
        weights = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        if not weights:
            raise Unavailable(f"needs the transition heads of {cell}, which are not kept here")
        heads = TransitionHeads(self.model(cell).dim, settings["order"], settings["head_dim"], modality=modality)
        heads.load_state_dict(weights)
        return heads.eval().requires_grad_(False)

    def seen(self, cell: str, name: str) -> SeenSet:
        """An evaluation set's usual part, as the cell's model sees it."""
        if (cell, name) not in self._seen:
            place = self._places.get(name)
            if place is None:
                raise Unavailable(f"needs the set {name}, which is not here")
            benchmark = open_set(place)
            probed = ("embedding", "features") if "train" in benchmark.splits else ("embedding",)
            kinds = probed if benchmark.kind == "classification" else ("embedding",)
            seen = SeenSet(benchmark, benchmark.scored_split(), self.model(cell), EmbeddingStore(), kinds)
            self._seen[cell, name] = seen
        return self._seen[cell, name]

    @cached_property
    def _places(self) -> dict[str, Place]:
        found: dict[str, Place] = {}
        for where in self.sets:
            try:
                found |= {place.name: place for place in find_sets(where)}
            except UserError:
                continue  # its figures will say that it is not here
        return found

    def pairs(self, cell: str, split: str) -> Source:
        """A part of the run's own data."""
        settings = self.settings(cell)
        try:
            return open_stored(settings["data"], stored_reading(settings["reading"]), split)
        except (UserError, OSError) as error:
            raise Unavailable(f"needs the data of {cell}: {error}") from error

    def teacher(self, cell: str, split: str) -> TeacherCache:
        """The cached teacher that the cell learned from, on its own grid and not on the coarser one of the loss."""
        distil = self.settings(cell)["distil"]
        if not distil.get("cache"):
            raise Unavailable(f"{cell} learned from no teacher")
        try:
            grid = TeacherCache(distil["cache"], split).grid
            return TeacherCache(distil["cache"], split, compare_grid=min(grid))
        except (UserError, OSError) as error:
            raise Unavailable(f"needs the teacher cache of {cell}: {error}") from error


# -------- study_material
# Everything that a study's report is made of, read from its folder: results, definition, tables, kept models.

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
