"""`dinorankclip score`: a model on evaluation sets, with intervals."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from dinorankclip.config import FindingSettings
from dinorankclip.formatting import bare, written
from dinorankclip.io import digest
from dinorankclip.run_files import PICTURES, is_run
from dinorankclip.types import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

    from dinorankclip.data.benchmark_sets import Place
    from dinorankclip.evaluate.scores import Score, SeenSet
    from dinorankclip.evaluate.suite import SetResult, SuiteResult
    from dinorankclip.evaluate.zero_shot import Shift
    from dinorankclip.train.cost import RunData

HELP = """\
Score a model on evaluation sets: zero-shot, retrieval, linear probe, shift, modality gap, ranking quality.

Examples:
  dinorankclip score runs/first --sets scenes
  dinorankclip score runs/first --sets data/caltech101 data/flickr8k --metrics zero-shot retrieval
  dinorankclip score open_clip:ViT-B-32:weights.safetensors --sets imagenet1k imagenet-r --sets-root sets
  dinorankclip score runs/first --sets photos.csv --split all
  dinorankclip score --catalogue

A set is a folder in the clip-benchmark layout, a folder of such folders, a name of the catalogue, `scenes` (built in),
or pairs of your own as train takes them; of data that a run was trained on, the part that it set aside is scored.
Embeddings are kept under built/embeddings and used again. `--catalogue` alone, without a model, lists known sets.
Exit status 1 if a set could not be scored; the others are.
"""
OUT = Path("built/scores")
Method = Literal["pca", "umap"]


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
    plane: Method = "pca",
    device: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    reading: FindingSettings = FindingSettings(),  # noqa: B008 (frozen)
) -> None:
    """Score a model.

    Args:
        model: A run (its last checkpoint), a checkpoint, an exported folder, or open_clip:NAME:FILE.
        sets: What to score on.
        metrics: Of zero-shot, retrieval, probe, shift, modality-gap, order-agreement, ranking-quality, fidelity;
            by default all that apply (known sets are probed only where the catalogue says so).
        out: Where scores.json goes; by default the run folder, for other models built/scores/NAME.
        split: The part to score; by default test, else val.
        sets_root: Where sets named as in the catalogue are.
        shift: BASE=RENDITION,RENDITION: further sets that are renditions of another.
        captions_apart: In retrieval, count captions that read alike as different ones, as clip-benchmark does.
        level: Of the intervals.
        draws: Of the bootstrap.
        max_damaged: Share of damaged samples to leave out; a set with more is refused.
        cache: Keep embeddings under built/embeddings.
        pictures: Write retrieval examples, the hardest classes, images and captions in one plane as pictures.
        plane: How that plane is found; umap is an extra, and takes a minute.
        device: Where the model runs.
        precision: auto, fp32 or bf16.
        threads: CPU threads; by default torch's choice.
        reading: How pairs of your own are found and divided; by default as in the run, of data it was trained on.
    """
    import torch

    from dinorankclip.commands.shared import check_at_least, check_interval
    from dinorankclip.evaluate.embeddings import FOLDER, EmbeddingStore
    from dinorankclip.evaluate.examples import demand
    from dinorankclip.evaluate.scores_file import step_of, write_scores
    from dinorankclip.evaluate.suite import SuiteOptions, SuiteResult, all_scorers, run_suite
    from dinorankclip.models.loaded import load_model
    from dinorankclip.train.cost import run_data

    check_interval(level, draws)
    check_at_least(1, threads=threads)
    scorers = all_scorers(equal_captions=not captions_apart)
    wanted = known_metrics(metrics, [scorer.name for scorer in scorers])
    shifts = tuple(parse_shift(text) for text in shift)
    demand(plane)
    trained_on = run_data(model)
    places = [place for where in sets for place in find(where, sets_root, reading, trained_on, split)]
    if threads is not None:
        torch.set_num_threads(threads)
    step = step_of(Path(model))
    loaded = load_model(model, device, precision)
    print(f"{loaded.name}: {loaded.reason}")
    print(heading(level))
    options = SuiteOptions(wanted, split, max_damaged, shifts, level, draws)
    store = EmbeddingStore(FOLDER if cache else None)
    folder = out or default_out(model)

    def report(result: SetResult) -> None:
        show(result)
        write_scores(folder, loaded, SuiteResult({result.name: result}, level=level), step)  # a later set may fail

    found = run_suite(loaded, places, scorers, store, options, report=report)
    if wanted is None or "fidelity" in wanted:
        add_fidelity(model, loaded, found, options)
    print(f"\nscores in {write_scores(folder, loaded, found, step)}")
    if pictures:
        drawn = draw(found, folder / PICTURES, wanted, plane)
        if drawn:
            print(f"{drawn} pictures in {folder / 'pictures'}")
    if found.errors:
        print(f"\n{len(found.errors)} could NOT be scored:", file=sys.stderr)
        for name, text in found.errors.items():
            print(f"  {name}: {text}", file=sys.stderr)
        sys.exit(1)


def find(
    where: str,
    root: Path,
    reading: FindingSettings | None = None,
    trained_on: RunData | None = None,
    split: str | None = None,
) -> list[Place]:
    """Sets behind one word after --sets: a path, or a name of the catalogue.

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


def known_metrics(asked: tuple[str, ...], scorers: list[str]) -> tuple[str, ...] | None:
    """Names of scorers, which may be written with hyphens; None if nothing was asked for."""
    if not asked:
        return None
    names = {name.replace(" ", "-"): name for name in [*scorers, "shift", "fidelity"]}
    unknown = [name for name in asked if name.replace(" ", "-") not in names]
    if unknown:
        near = difflib.get_close_matches(unknown[0], names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"--metrics {unknown[0]}: there are {', '.join(names)}{hint}")
    return tuple(names[name.replace(" ", "-")] for name in asked)


def parse_shift(text: str) -> Shift:
    from dinorankclip.evaluate.zero_shot import Shift

    base, equals, renditions = text.partition("=")
    names = tuple(name for name in renditions.split(",") if name)
    if not equals or not base or not names:
        raise UserError(f"--shift {text}: write BASE=RENDITION,RENDITION with names of sets, e.g. photo=sketch,night")
    return Shift(base, names)


def default_out(model: str) -> Path:
    """A run keeps its scores; other models' go to a folder named after them.

    Names that read alike without their odd characters are told apart by a digest.
    """
    if is_run(Path(model)):
        return Path(model)
    name = re.sub(r"[^A-Za-z0-9.]+", "-", model).strip("-.") or "model"
    odd = re.search(r"[^A-Za-z0-9./:-]", model.removeprefix("open_clip:"))
    return OUT / (f"{name}-{digest(model)[:8]}" if odd else name)


def add_fidelity(model: str, loaded: Any, found: SuiteResult, options: Any) -> None:
    """Of runs that were distilled, how faithful the students are. Of others it is an error only if it was asked for."""
    from dinorankclip.evaluate import during_training
    from dinorankclip.evaluate.suite import add_scores

    asked = options.metrics is not None
    try:
        result = during_training.run_fidelity(Path(model), loaded) if is_run(Path(model)) else None
    except UserError as error:
        if asked:
            found.errors[during_training.NAME] = str(error)
        else:
            print(f"fidelity was not measured: {error}")
        return
    if result is None:
        if asked:
            found.errors[during_training.NAME] = f"{model} is no run that learnt from a teacher"
    else:
        add_scores(result, list(result.scores.values()), during_training.NAME, during_training.VERSION, options)
        found.sets[result.name] = result
        show(result)


def draw(found: SuiteResult, folder: Path, wanted: tuple[str, ...] | None, method: Method = "pca") -> int:
    """The pictures that sets have to show for the metrics that were wanted; how many there are."""
    count = 0
    for name, seen in found.seen.items():
        for kind, picture in pictures_of(seen, wanted, method):
            folder.mkdir(parents=True, exist_ok=True)
            picture.save(folder / f"{name}-{kind}.png")
            count += 1
    return count


def pictures_of(seen: SeenSet, wanted: tuple[str, ...] | None, method: Method) -> Iterator[tuple[str, Image]]:
    from dinorankclip.evaluate.examples import hardest_classes, plane, retrieval_examples
    from dinorankclip.report.pictures import draw_hardest, draw_projection, draw_retrieval

    shown = ("retrieval", "modality gap") if seen.kind == "retrieval" else ("zero-shot",)
    for metric in [metric for metric in shown if wanted is None or metric in wanted]:
        if metric == "retrieval":
            yield "retrieval", draw_retrieval(f"{seen.name}: what was found", *retrieval_examples(seen))
        elif metric == "modality gap" and len(seen.indices()) > 1:  # one image and its caption span no plane
            yield "plane", draw_projection(f"{seen.name}: images and captions in one plane", plane(seen, method))
        elif metric == "zero-shot":
            yield "hardest", draw_hardest(f"{seen.name}: the hardest classes", hardest_classes(seen))


def heading(level: float) -> str:
    return f"\n{'set':<26}{'score':<32}{'value':>10}{f'{100 * level:g} % interval':>22}{'chance':>10}{'n':>9}"


def show(result: SetResult) -> None:
    if result.scores:
        print(rows_of(result), flush=True)


def rows_of(result: SetResult) -> str:
    """A line for each score of a set; shares in percent."""
    from dinorankclip.evaluate.during_training import few_images_caution
    from dinorankclip.evaluate.suite import AVERAGES

    lines = []
    for number, found in enumerate(result.scores.values()):
        name = result.name if number == 0 else ""
        value, chance = _shown(found, found.value), _shown(found, found.chance)
        lines.append(f"{name:<26}{found.name:<32}{value:>10}{_interval(found):>22}{chance:>10}{found.n:>9}")
    few = (
        few_images_caution({result.name: result.images}) if result.name != AVERAGES else ""
    )  # its sets have had their own
    lines += [f"{'':<26}note: {note}" for note in [*result.notes, few] if note]
    return "\n".join(lines)


def _shown(found: Score, value: float | None) -> str:
    return "" if value is None else written(value, found.unit)


def _interval(found: Score) -> str:
    if found.low is None or found.high is None:
        return ""
    return f"[{bare(found.low, found.unit)}, {bare(found.high, found.unit)}]"


def main(argv: list[str]) -> None:
    if argv == ["--catalogue"]:
        from dinorankclip.evaluate.catalogue import catalogue_table

        print(catalogue_table())
        return
    tyro.cli(score, args=argv, prog="dinorankclip score", description=HELP)
