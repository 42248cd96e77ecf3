"""Opens the material of a study's report: results, definition, tables, and the stored models.

A study keeps the models of seed 0. Models and evaluation sets are opened on demand. A model or set that cannot be
opened raises `Unavailable` with a sentence for the report: numbers need no models, some figures do.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from dinorankclip.data.benchmark_sets import SetLocation, find_sets, open_set
from dinorankclip.data.open_data import open_stored
from dinorankclip.evaluate.embeddings import EmbeddingStore
from dinorankclip.evaluate.scores import EmbeddedSet
from dinorankclip.losses.transitions import TransitionHeads
from dinorankclip.models.folder import find_model
from dinorankclip.models.loaded import LoadedModel, load_model
from dinorankclip.report.figures import Unavailable
from dinorankclip.run_files import ENVIRONMENT, TENSORS, read_object, read_settings, refuse_command
from dinorankclip.teachers.cache_read import TeacherCache
from dinorankclip.train.cost import stored_reading
from dinorankclip.types import Source, UserError
from dinorankclip_studies.own_study import FILE, open_study
from dinorankclip_studies.papers import Paper, all_studies, opened, paper_of
from dinorankclip_studies.papers.paper_data import Measures
from dinorankclip_studies.results import RESULTS, Results, chances_of
from dinorankclip_studies.run_cell import KEPT_SEED
from dinorankclip_studies.study import Study
from dinorankclip_studies.study_tables import Table, build_table, teachers

BENCH = Path("docs/bench")  # dated records of step times


class StudyModels:
    """Opens stored models. `runs`: cell → run folder; `sets`: the evaluation sets that the study names."""

    def __init__(self, runs: dict[str, Path], sets: tuple[str, ...]) -> None:
        self.runs, self.sets = runs, sets
        self._models: dict[str, LoadedModel] = {}
        self._embedded: dict[tuple[str, str], EmbeddedSet] = {}

    def run(self, cell: str) -> Path:
        """Return the folder of the cell's stored run."""
        if cell not in self.runs:
            raise Unavailable(f"needs the seed-{KEPT_SEED} run of {cell}, which is not finished")
        try:
            find_model(self.runs[cell])
        except UserError as error:
            raise Unavailable(f"needs the seed-{KEPT_SEED} model of {cell}, which is not kept here") from error
        return self.runs[cell]

    def settings(self, cell: str) -> dict[str, Any]:
        with _or_unavailable(f"needs the settings of {cell}"):
            return read_settings(self.run(cell))

    def model(self, cell: str) -> LoadedModel:
        if cell not in self._models:
            run = self.run(cell)
            with warnings.catch_warnings(), _or_unavailable(f"the model of {cell} cannot be read"):
                warnings.simplefilter("ignore", UserWarning)
                self._models[cell] = load_model(run, device="cpu")
        return self._models[cell]

    def heads(self, cell: str, modality: str) -> TransitionHeads:
        """Return the transition heads of the run's loss, which are stored beside the model."""
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

    def embedded_set(self, cell: str, name: str) -> EmbeddedSet:
        """Return the scored part of an evaluation set, embedded by the cell's model."""
        if (cell, name) not in self._embedded:
            place = self._places.get(name)
            if place is None:
                raise Unavailable(f"needs the set {name}, which is not here")
            benchmark = open_set(place)
            probed = benchmark.kind == "classification" and "train" in benchmark.splits
            kinds = ("embedding", "features") if probed else ("embedding",)
            self._embedded[cell, name] = EmbeddedSet(
                benchmark, benchmark.scored_split(), self.model(cell), EmbeddingStore(), kinds
            )
        return self._embedded[cell, name]

    @cached_property
    def _places(self) -> dict[str, SetLocation]:
        places: dict[str, SetLocation] = {}
        for where in self.sets:
            try:
                places |= {place.name: place for place in find_sets(where)}
            except UserError:
                continue  # figures of this set report that it is missing
        return places

    def pairs(self, cell: str, split: str) -> Source:
        """Return a part of the run's own data."""
        settings = self.settings(cell)
        with _or_unavailable(f"needs the data of {cell}"):
            refuse_command(settings["data"], self.run(cell))
            return open_stored(settings["data"], stored_reading(settings["reading"]), split)

    def teacher(self, cell: str, split: str) -> TeacherCache:
        """Return the teacher cache of the cell on the cache's own grid, which is finer than the grid of the loss."""
        distil = self.settings(cell)["distil"]
        if not distil.get("cache"):
            raise Unavailable(f"{cell} learned from no teacher")
        with _or_unavailable(f"needs the teacher cache of {cell}"):
            grid = TeacherCache(distil["cache"], split).grid
            return TeacherCache(distil["cache"], split, compare_grid=min(grid))


@contextlib.contextmanager
def _or_unavailable(message: str) -> Iterator[None]:
    """Turn an error of the block into `Unavailable` with this message and the reason."""
    try:
        yield
    except (UserError, OSError) as error:
        raise Unavailable(f"{message}: {error}") from error


@dataclass(frozen=True)
class StudyMaterial:
    """Opens a study's `folder`: results.json and, unless it is a committed copy, the run folders below `cells/`."""

    folder: Path
    study: Study
    results: Results
    bench: Path = BENCH

    @property
    def paper(self) -> Paper:
        return paper_of(self.study.name)

    @property
    def measures(self) -> Measures:
        return self.paper.measures(self.study.name)

    @cached_property
    def tables(self) -> list[Table]:
        return [build_table(experiment, self.results) for experiment in self.study.experiments]

    def table(self, name: str) -> Table | None:
        return next((table for table in self.tables if table.experiment.name == name), None)

    @cached_property
    def models(self) -> StudyModels:
        runs = {run.cell: self.folder / run.folder for run in self.results.runs if run.seed == KEPT_SEED}
        return StudyModels(runs, self.study.sets)

    @property
    def pictured(self) -> str:
        """Return the keys of the runs whose models figures are drawn from."""
        cells = self.paper.pictured
        return " ".join(sorted(run.key for run in self.results.runs if run.seed == KEPT_SEED and run.cell in cells))

    @property
    def unfinished(self) -> dict[str, list[int]]:
        """Return the seeds of each cell that are not finished."""
        missing = {}
        for cell in self.study.cells:
            finished = self.results.of(cell.name)
            seeds = [seed for seed in range(self.study.seeds[cell.name]) if seed not in finished]
            if seeds:
                missing[cell.name] = seeds
        return missing

    @property
    def state(self) -> str:
        """Return words such as `3 of 200 runs are not finished`; empty if all runs are finished."""
        keys = {(run.cell, run.seed): run.key for run in self.study.runs()}  # cells with equal settings share a run
        missing = {keys[cell, seed] for cell, seeds in self.unfinished.items() for seed in seeds}
        return f"{len(missing)} of {len(set(keys.values()))} runs are not finished" if missing else ""

    @cached_property
    def teachers(self) -> list[str]:
        """Return the teachers, each with the remark that must stand beside its results."""
        return list(teachers(self.tables))

    @property
    def teacher_sentence(self) -> str:
        names = [run.teacher for run in self.results.of(self.paper.main_cells[-1]).values() if run.teacher]
        return f"Teacher: {names[0]}." if names else ""

    def environments(self) -> list[tuple[dict[str, Any], int]]:
        """Return machines with versions and the number of runs on each; empty for a copy without run folders."""
        counts: Counter[str] = Counter()
        for run in self.results.runs:
            path = self.folder / run.folder / ENVIRONMENT
            if path.is_file():
                stored = read_object(path)
                machine = {name: value for name, value in stored.items() if name not in ("command", "revision")}
                counts[json.dumps(machine, sort_keys=True)] += 1
        return [(json.loads(text), count) for text, count in counts.most_common()]


def open_material(folder: Path, bench: Path = BENCH) -> StudyMaterial:
    """Open a study folder, or the folder of its committed results."""
    results = Results.load(folder)
    studies = all_studies()
    if results.name not in opened and (folder / FILE).is_file():
        studies[results.name] = partial(open_study, folder / FILE)
    if results.name not in studies:
        raise UserError(f"{folder / RESULTS} is of a study '{results.name}', which this version does not know")
    if not results.chances:
        results = replace(results, chances=chances_of(folder / run.folder for run in results.runs))
    return StudyMaterial(folder, studies[results.name](), results, bench)
