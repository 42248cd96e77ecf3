"""`dinorankclip score`: score a model on evaluation sets, with intervals."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dinorankclip.api.scoring import Plane, default_out, known_metrics, locate_sets, parse_shift
from dinorankclip.api.scoring import score as score_model
from dinorankclip.commands.shared import call_verb
from dinorankclip.config import FindingSettings
from dinorankclip.formatting import bare, written
from dinorankclip.pieces.contract import HERE, Where
from dinorankclip.run_files import PICTURES, REPORT, is_run

if TYPE_CHECKING:
    from dinorankclip.evaluate.suite import SetResult
    from dinorankclip.models.loaded import LoadedModel

__all__ = ["default_out", "known_metrics", "locate_sets", "main", "parse_shift", "score"]


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
    where: Annotated[Where, tyro.conf.arg(name="")] = HERE,
) -> None:
    """Score a model on evaluation sets: zero-shot, retrieval, linear probe, shift, modality gap, ranking quality.

    Examples:
      dinorankclip score runs/first --sets scenes
      dinorankclip score runs/first --sets data/caltech101 data/flickr8k --metrics zero-shot retrieval
      dinorankclip score open_clip:ViT-B-32:weights.safetensors --sets imagenet1k imagenet-r --sets-root sets
      dinorankclip score runs/first --sets photos.csv --split all
      dinorankclip score runs/first --sets-root sets --sets imagenet1k caltech101 --on ray --ray.address head:6379
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
        where: Who embeds the sets, one set a piece; scores are taken here.
    """
    from dinorankclip.commands.report import write_run

    print_head = partial(_print_head, level)
    scored = score_model(
        model, sets, metrics=metrics, out=out, split=split, sets_root=sets_root, shift=shift,
        captions_apart=captions_apart, level=level, draws=draws, max_damaged=max_damaged, cache=cache,
        pictures=pictures, plane=plane, device=device, precision=precision, threads=threads, reading=reading,
        where=where, loaded=print_head, report=show,
    )  # fmt: skip
    print(f"\nscores in {scored.file}")
    if scored.pictures:
        print(f"{scored.pictures} pictures in {scored.file.parent / PICTURES}")
    if is_run(scored.file.parent) and (scored.file.parent / REPORT).is_file():
        write_run(scored.file.parent, scored.file.parent)
    if scored.errors:
        print(f"\n{len(scored.errors)} could NOT be scored:", file=sys.stderr)
        for name, text in scored.errors.items():
            print(f"  {name}: {text}", file=sys.stderr)
        sys.exit(1)


def _print_head(level: float, loaded: LoadedModel) -> None:
    print(f"{loaded.name}: {loaded.reason}")
    interval = f"{100 * level:g} % interval"
    print(f"\n{'set':<26}{'score':<32}{'value':>10}{interval:>22}{'chance':>10}{'n':>9}")


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
