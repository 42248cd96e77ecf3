"""The models that a study keeps (seed 0 of every cell) and the sets they were scored on, opened when asked for.

What cannot be opened any more becomes `Unavailable` with a sentence for the report: numbers need no models, pictures of
what a model does need one.
"""

from __future__ import annotations

import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from dinorankclip.data.benchmark_sets import Place, find_sets, open_set
from dinorankclip.data.opening import open_stored
from dinorankclip.dino.cached import TeacherCache
from dinorankclip.equations import resample_grid
from dinorankclip.joint.folder import find_model
from dinorankclip.joint.loaded import LoadedModel, load_model
from dinorankclip.joint.transitions import TransitionHeads
from dinorankclip.run_files import TENSORS, read_settings
from dinorankclip.scoring.embedding_store import EmbeddingStore
from dinorankclip.scoring.run_data import stored_reading
from dinorankclip.scoring.seen import SeenSet
from dinorankclip.types import Source, UserError
from dinorankclip.writeup.figures.drawn import Unavailable

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
            grid = TeacherCache(distil["cache"], split, resample=resample_grid).grid
            return TeacherCache(distil["cache"], split, resample=resample_grid, compare_grid=min(grid))
        except (UserError, OSError) as error:
            raise Unavailable(f"needs the teacher cache of {cell}: {error}") from error
