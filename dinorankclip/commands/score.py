"""`dinorankclip score`: score a model on evaluation sets, with intervals."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from dinorankclip.commands.shared import call_verb, check_at_least, check_interval, check_known
from dinorankclip.config import FindingSettings
from dinorankclip.formatting import bare, written
from dinorankclip.io import demand_writable, digest, home, whole_file
from dinorankclip.run_files import PICTURES, REPORT, is_run
from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip.data.benchmark_sets import SetLocation
    from dinorankclip.evaluate.suite import SetResult, SuiteOptions, SuiteResult
    from dinorankclip.evaluate.zero_shot import Shift
    from dinorankclip.models.loaded import LoadedModel
    from dinorankclip.train.cost import RunData

OUT = home() / "scores"  # of models that are no runs
Plane = Literal["pca", "umap"]


def score(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    sets: tuple[str, ...] = ("scenes",),
    metrics: tuple[str, ...] = (),
    out: Path | None = None,
    split: str | None = None,
    sets_root: Path = Path("sets"),
    shift: tuple[str, ...] = (),
    captions_apart: bool = False,
    level: float = 0.95,
    draws: int = 1000,
    max_damaged: float = 0.0,
    cache: bool = True,
    pictures: bool = True,
    plane: Plane = "pca",
    device: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    reading: FindingSettings = FindingSettings(),  # noqa: B008 (frozen)
) -> None:
    """Score a model on evaluation sets: zero-shot, retrieval, linear probe, shift, modality gap, ranking quality.

    Examples:
      dinorankclip score runs/first --sets scenes
      dinorankclip score runs/first --sets data/caltech101 data/flickr8k --metrics zero-shot retrieval
      dinorankclip score open_clip:ViT-B-32:weights.safetensors --sets imagenet1k imagenet-r --sets-root sets
      dinorankclip score runs/first --sets photos.csv --split all
      dinorankclip score --catalogue

    A set is a folder in the clip-benchmark layout, a folder of such folders, a name of the catalogue, `scenes`
    (built in), or pairs of your own as train takes them; of data that a run was trained on, the part that it set aside
    is scored. Embeddings are kept under built/embeddings and used again. A run's report is written again.
    `--catalogue` alone, without a model, lists known sets. Exit status 1 if a set could not be scored; the others are.

    Args:
        model: A run (its last checkpoint), a checkpoint, an exported folder, open_clip:NAME:FILE,
            transformers:FOLDER, or starter.
        sets: The sets to score on.
        metrics: Some of zero-shot, retrieval, probe, shift, modality-gap, order-agreement, ranking-quality, fidelity;
            by default all that apply (known sets are probed only where the catalogue says so).
        out: The folder for scores.json; by default the run folder, for other models built/scores/NAME.
        split: The part to score; by default test, else val.
        sets_root: The folder of sets that are named as in the catalogue.
        shift: BASE=RENDITION,RENDITION: further sets that are renditions of another.
        captions_apart: In retrieval, count equal captions as different, as clip-benchmark does.
        level: Confidence level of the intervals.
        draws: Draws of the bootstrap.
        max_damaged: Share of damaged samples to leave out; a set with more is refused.
        cache: Keep embeddings under built/embeddings.
        pictures: Write retrieval examples, the hardest classes, images and captions in one plane as pictures.
        plane: The projection onto that plane; umap is an extra, and takes a minute.
        device: auto (the GPU if there is one), cpu, cuda or cuda:N.
        precision: auto, fp32 or bf16.
        threads: CPU threads; by default torch's choice.
        reading: How pairs of your own are found and divided; by default as in the run, of data it was trained on.
    """
    import torch

    from dinorankclip.commands.report import write_run
    from dinorankclip.evaluate.embeddings import FOLDER, EmbeddingStore
    from dinorankclip.evaluate.examples import demand
    from dinorankclip.evaluate.scores_file import step_of, write_scores
    from dinorankclip.evaluate.suite import SuiteOptions, SuiteResult, all_scorers, run_suite
    from dinorankclip.models.loaded import load_model
    from dinorankclip.train.cost import run_data

    check_interval(level, draws)
    check_at_least(1, threads=threads)
    scorers = all_scorers(equal_captions=not captions_apart)
    chosen = known_metrics(metrics, [scorer.name for scorer in scorers])
    shifts = tuple(parse_shift(text) for text in shift)
    demand(plane)
    trained_on = run_data(model)
    places = [place for where in sets for place in locate_sets(where, sets_root, reading, trained_on, split)]
    if threads is not None:
        torch.set_num_threads(threads)
    folder = out or default_out(model)
    demand_writable(folder, "scores could not be stored there; give another folder with --out")
    step = step_of(Path(model))
    loaded = load_model(model, device, precision)
    print(f"{loaded.name}: {loaded.reason}")
    interval = f"{100 * level:g} % interval"
    print(f"\n{'set':<26}{'score':<32}{'value':>10}{interval:>22}{'chance':>10}{'n':>9}")
    options = SuiteOptions(chosen, split, max_damaged, shifts, level, draws)
    store = EmbeddingStore(FOLDER if cache else None)

    def report(result: SetResult) -> None:
        show(result)
        write_scores(folder, loaded, SuiteResult({result.name: result}, level=level), step)  # a later set may fail

    results = run_suite(loaded, places, scorers, store, options, report=report)
    if chosen is None or "fidelity" in chosen:
        add_fidelity(model, loaded, results, options)
    print(f"\nscores in {write_scores(folder, loaded, results, step)}")
    if pictures and (drawn := draw_pictures(results, folder / PICTURES, chosen, plane)):
        print(f"{drawn} pictures in {folder / PICTURES}")
    if is_run(folder) and (folder / REPORT).is_file():
        write_run(folder, folder)
    if results.errors:
        print(f"\n{len(results.errors)} could NOT be scored:", file=sys.stderr)
        for name, text in results.errors.items():
            print(f"  {name}: {text}", file=sys.stderr)
        sys.exit(1)


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


def add_fidelity(model: str, loaded: LoadedModel, results: SuiteResult, options: SuiteOptions) -> None:
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
        show(result)
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


def show(result: SetResult) -> None:
    """Print a line for each score of a set, shares in percent, and what must be said beside them."""
    from dinorankclip.evaluate.during_training import few_images_caution
    from dinorankclip.evaluate.suite import AVERAGES

    if not result.scores:
        return
    for number, score in enumerate(result.scores.values()):
        name = result.name if number == 0 else ""
        value, chance = ("" if share is None else written(share, score.unit) for share in (score.value, score.chance))
        interval = ""
        if score.low is not None and score.high is not None:
            interval = f"[{bare(score.low, score.unit)}, {bare(score.high, score.unit)}]"
        print(f"{name:<26}{score.name:<32}{value:>10}{interval:>22}{chance:>10}{score.n:>9}")
    # Averages need no caution: their sets have had their own.
    few = few_images_caution({result.name: result.images}) if result.name != AVERAGES else ""
    for note in [*result.notes, few]:
        if note:
            print(f"{'':<26}note: {note}")
    sys.stdout.flush()


def main(argv: list[str]) -> None:
    if argv == ["--catalogue"]:
        from dinorankclip.evaluate.catalogue import catalogue_table

        print(catalogue_table())
        return
    call_verb(score, "score", argv)
