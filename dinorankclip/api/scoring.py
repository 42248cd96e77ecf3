"""Scores a model on evaluation sets: `dinorankclip.score` in Python, and the work of the command."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dinorankclip.api.checks import check_interval, check_known
from dinorankclip.config import FindingSettings
from dinorankclip.io import demand_writable, digest, home, whole_file, write_text
from dinorankclip.pieces.contract import HERE, Pieces, Progress, Where, Work
from dinorankclip.run_files import PICTURES, is_run
from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip.data.benchmark_sets import SetLocation
    from dinorankclip.evaluate.suite import SetResult, SuiteOptions, SuiteResult
    from dinorankclip.evaluate.zero_shot import Shift
    from dinorankclip.models.loaded import LoadedModel
    from dinorankclip.train.cost import RunData

OUT = home() / "scores"  # of models that are no runs
Plane = Literal["pca", "umap"]


@dataclass(frozen=True)
class Scored:
    """Holds the scores of a model: by set and score, `scored.sets["scenes-pairs"].scores["mean R@1"].value`, with
    interval and chance beside. `errors` name sets that could not be scored; `file` is scores.json."""

    sets: dict[str, SetResult]
    errors: dict[str, str]
    file: Path
    pictures: int = 0

    def value(self, set_name: str, score: str) -> float:
        """Return one number."""
        return self.sets[set_name].scores[score].value


def score(
    model: str | Path,
    sets: str | Path | Sequence[str | Path] = ("scenes",),
    *,
    metrics: Sequence[str] = (),
    out: str | Path | None = None,
    split: str | None = None,
    sets_root: Path = Path("sets"),
    shift: Sequence[str] = (),
    captions_apart: bool = False,
    level: float = 0.95,
    draws: int = 1000,
    max_damaged: float = 0.0,
    cache: bool = True,
    pictures: bool = False,
    plane: Plane = "pca",
    device: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    reading: FindingSettings | None = None,
    where: Where = HERE,
    loaded: Callable[[LoadedModel], None] = lambda model: None,
    report: Callable[[SetResult], None] = lambda result: None,
) -> Scored:
    """Score a model on sets, store the scores beside the run (or in `out`), and return them.

        dinorankclip.score("runs/first", ["scenes"]).value("scenes-pairs", "mean R@1")

    The options are those of `dinorankclip score --help`. `loaded` is called with the model before the first set,
    `report` with the result of each set when it is done. Workers `where` embed the sets; scores are taken here.
    """
    import torch

    from dinorankclip.evaluate.embeddings import FOLDER, EmbeddingStore
    from dinorankclip.evaluate.examples import demand
    from dinorankclip.evaluate.scores_file import step_of, write_scores
    from dinorankclip.evaluate.suite import SuiteOptions, SuiteResult, all_scorers, run_suite
    from dinorankclip.models.loaded import load_model
    from dinorankclip.pieces.run import make_pieces
    from dinorankclip.train.cost import run_data

    check_interval(level, draws)
    if threads is not None and threads < 1:
        raise UserError(f"--threads {threads}: at least 1")
    model, wanted = str(model), [str(sets)] if isinstance(sets, str | Path) else list(map(str, sets))
    if where.on != "here" and not cache:
        raise UserError(f"--on {where.on}: workers hand over rows in the store of embeddings; leave out --no-cache")
    scorers = all_scorers(equal_captions=not captions_apart)
    chosen = known_metrics(tuple(metrics), [scorer.name for scorer in scorers])
    shifts = tuple(parse_shift(text) for text in shift)
    demand(plane)
    trained_on = run_data(model)
    places = [place for name in wanted for place in locate_sets(name, sets_root, reading, trained_on, split)]
    if threads is not None:
        torch.set_num_threads(threads)
    folder = Path(out) if out is not None else default_out(model)
    demand_writable(folder, "scores could not be stored there; give another folder with --out")
    step = step_of(Path(model))
    ready = load_model(model, device, precision)
    loaded(ready)
    options = SuiteOptions(chosen, split, max_damaged, shifts, level, draws)
    store = EmbeddingStore(FOLDER if cache else None)

    def keep(result: SetResult) -> None:
        report(result)
        write_scores(folder, ready, SuiteResult({result.name: result}, level=level), step)  # a later set may fail

    if where.on != "here":
        settings = {
            "model": model, "sets": wanted, "sets_root": str(sets_root), "split": split, "max_damaged": max_damaged,
            "metrics": chosen, "device": device, "precision": precision, "threads": threads,
            "reading": asdict(reading) if reading is not None else None,
        }  # fmt: skip
        pieces = SetPieces(ready, places, scorers, options)
        pieces.forget_failures()
        make_pieces(pieces, where, Work(f"{__name__}:open_work", settings, device), FOLDER / "sets" / pieces.identity)
    results = run_suite(ready, places, scorers, store, options, report=keep)
    if chosen is None or "fidelity" in chosen:
        _add_fidelity(model, ready, results, options, report)
    file = write_scores(folder, ready, results, step)
    drawn = draw_pictures(results, folder / PICTURES, chosen, plane) if pictures else 0
    return Scored(results.sets, results.errors, Path(file), drawn)


class SetPieces(Pieces):
    """Sets to embed as pieces of work: rows go to the store of embeddings, and a mark says that a set is done.

    A set that cannot be embedded is marked, too: whoever scores it afterwards finds out why."""

    title, unit = "embedding sets", "set"

    def __init__(
        self, model: LoadedModel, places: list[SetLocation], scorers: list[Any], options: SuiteOptions
    ) -> None:
        self.model, self.places, self.scorers, self.options = model, places, scorers, options
        self.identity = digest(model.identity, model.placement.precision, *(place.where for place in places))

    @property
    def sizes(self) -> list[int]:
        return [1] * len(self.places)

    def _mark(self, number: int) -> Path:
        place, options = self.places[number], self.options
        parts = (place.name, place.where, options.split, options.metrics, options.max_damaged)
        name = digest(self.model.identity, self.model.placement.precision, *parts)
        return home() / "embeddings" / "sets" / name

    def missing(self) -> list[int]:
        return [number for number in range(len(self.places)) if not self._mark(number).is_file()]

    def forget_failures(self) -> None:
        for number in range(len(self.places)):
            if self._mark(number).is_file() and self._mark(number).stat().st_size:
                self._mark(number).unlink()

    def make(self, number: int, progress: Progress) -> None:
        from dinorankclip.evaluate.embeddings import EmbeddingStore
        from dinorankclip.evaluate.suite import embed_set

        failure = ""
        try:
            embed_set(self.model, self.places[number], self.scorers, EmbeddingStore(), self.options)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        self._mark(number).parent.mkdir(parents=True, exist_ok=True)
        write_text(self._mark(number), failure)
        progress(1)


def open_work(settings: dict[str, Any]) -> SetPieces:
    """Open the model in a worker elsewhere, and find the sets."""
    import torch

    from dinorankclip.evaluate.suite import SuiteOptions, all_scorers
    from dinorankclip.models.loaded import load_model
    from dinorankclip.train.cost import run_data

    if settings["threads"] is not None:
        torch.set_num_threads(settings["threads"])
    model, split = settings["model"], settings["split"]
    reading = FindingSettings(**settings["reading"]) if settings["reading"] is not None else None
    root, trained_on = Path(settings["sets_root"]), run_data(model)
    places = [place for name in settings["sets"] for place in locate_sets(name, root, reading, trained_on, split)]
    metrics = tuple(settings["metrics"]) if settings["metrics"] is not None else None
    options = SuiteOptions(metrics, split, settings["max_damaged"])
    return SetPieces(load_model(model, settings["device"], settings["precision"]), places, all_scorers(), options)


def locate_sets(
    where: str,
    root: Path,
    reading: FindingSettings | None = None,
    trained_on: RunData | None = None,
    split: str | None = None,
) -> list[SetLocation]:
    """Return the sets behind one word after --sets: a path, or a name of the catalogue.

    Of data that the model itself was trained on, the validation part must be the one that its training set aside.
    """
    from dinorankclip.data.benchmark_sets import find_sets
    from dinorankclip.evaluate.catalogue import catalogue

    reading = reading or FindingSettings()
    if not os.path.exists(where) and catalogue().find(where) is not None:
        return [catalogue().locate(where, root)]
    try:
        if trained_on is None:
            return find_sets(where, reading)
        if trained_on.is_same(where):
            reading = trained_on.reading_for(reading)
        return [replace(place, note=trained_on.caution(place, split)) for place in find_sets(where, reading)]
    except UserError as error:
        if os.path.exists(where):
            raise
        raise UserError(
            f"{error}\n--sets takes pairs, a set in the clip-benchmark layout, a folder of sets, or a name of the "
            "catalogue (dinorankclip score --catalogue)"
        ) from None


def known_metrics(metrics: tuple[str, ...], scorers: list[str]) -> tuple[str, ...] | None:
    """Return names of scorers, which users may write with hyphens; None if `metrics` is empty."""
    names = {name.replace(" ", "-"): name for name in [*scorers, "shift", "fidelity"]}
    for metric in metrics:
        check_known("--metrics", metric.replace(" ", "-"), names)
    return tuple(names[metric.replace(" ", "-")] for metric in metrics) or None


def parse_shift(text: str) -> Shift:
    from dinorankclip.evaluate.zero_shot import Shift

    base, equals, renditions = text.partition("=")
    names = tuple(name for name in renditions.split(",") if name)
    if not equals or not base or not names:
        raise UserError(f"--shift {text}: write BASE=RENDITION,RENDITION with names of sets, e.g. photo=sketch,night")
    return Shift(base, names)


def default_out(model: str) -> Path:
    """Return a run itself; for another model a folder named after it.

    A digest tells apart names that are equal without their odd characters.
    """
    if is_run(Path(model)):
        return Path(model)
    name = re.sub(r"[^A-Za-z0-9.]+", "-", model).strip("-.") or "model"
    odd = re.search(r"[^A-Za-z0-9./:-]", model.removeprefix("open_clip:"))
    return OUT / (f"{name}-{digest(model)[:8]}" if odd else name)


def _add_fidelity(
    model: str,
    loaded: LoadedModel,
    results: SuiteResult,
    options: SuiteOptions,
    report: Callable[[SetResult], None],
) -> None:
    """Add the fidelity of a distilled run's students. For other models it is an error only if it was asked for."""
    from dinorankclip.evaluate.fidelity import NAME, VERSION, run_fidelity
    from dinorankclip.evaluate.suite import add_scores

    result, error = None, f"{model} is no run that learnt from a teacher"
    if is_run(Path(model)):
        try:
            result = run_fidelity(Path(model), loaded)
        except UserError as failure:
            error = str(failure)
            if options.metrics is None:
                print(f"fidelity was not measured: {error}")
    if result is not None:
        add_scores(result, list(result.scores.values()), NAME, VERSION, options)
        results.sets[result.name] = result
        report(result)
    elif options.metrics is not None:
        results.errors[NAME] = error


def draw_pictures(results: SuiteResult, folder: Path, chosen: tuple[str, ...] | None, method: Plane) -> int:
    """Write the pictures of all sets for the chosen metrics. Return their number."""
    from dinorankclip.evaluate.examples import hardest_classes, plane, retrieval_examples
    from dinorankclip.report.pictures import draw_hardest, draw_projection, draw_retrieval

    pictures = {}
    for name, embedded in results.embedded.items():
        is_retrieval = embedded.kind == "retrieval"
        if is_retrieval and (chosen is None or "retrieval" in chosen):
            examples = retrieval_examples(embedded)
            pictures[f"{name}-retrieval"] = draw_retrieval(f"{name}: what was found", *examples)
        if is_retrieval and (chosen is None or "modality gap" in chosen) and len(embedded.indices()) > 1:
            title = f"{name}: images and captions in one plane"  # one image and its caption would span no plane
            pictures[f"{name}-plane"] = draw_projection(title, plane(embedded, method))
        if not is_retrieval and (chosen is None or "zero-shot" in chosen):
            pictures[f"{name}-hardest"] = draw_hardest(f"{name}: the hardest classes", hardest_classes(embedded))
    if pictures:
        folder.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        with whole_file(folder / f"{name}.png") as aside:
            picture.save(aside, "PNG")
    return len(pictures)
