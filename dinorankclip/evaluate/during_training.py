"""Takes the scores of `train`: before the first step, during the run, and after the last step.

    before     starting_scores (fine-tuning shows before and after), starting_inspection (fusion)
    during     evaluators("val"), called by the loop at its intervals
    after      final_scores: retrieval on val and test, fidelity of students, fusion; writes scores.json

To add a number that is taken during training, yield it in `RetrievalEvaluator`; at the end alone, add it in `score`
inside `final_scores`. Scores for evaluation sets are scorers (scores.py), not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dinorankclip import distributed
from dinorankclip.checksums import read_sealed, sealed
from dinorankclip.data.damage import Damage
from dinorankclip.data.decode import MAX_PIXELS
from dinorankclip.evaluate.embeddings import EmbeddedImages, EmbeddingStore, Tokenize, embed_images, embed_texts
from dinorankclip.evaluate.example_queries import note_examples
from dinorankclip.evaluate.fidelity import FidelityEvaluator, OwnProjector
from dinorankclip.evaluate.gains import GENERAL, OWN, gains, gains_table, general_set, parts_of, set_scores
from dinorankclip.evaluate.geometry import inspect_fusion, inspection_table
from dinorankclip.evaluate.retrieval import retrieval_scores
from dinorankclip.evaluate.scores import Score
from dinorankclip.evaluate.scores_file import HELD_OUT, read_items, write_items, write_training_scores
from dinorankclip.formatting import RECALLS, bare, held_out, images_scored
from dinorankclip.io import write_json
from dinorankclip.json_shape import NUMBER, named
from dinorankclip.losses.distillation_terms import ON_TOKENS
from dinorankclip.methods import traits_of
from dinorankclip.models.aligned import AlignedModel
from dinorankclip.models.card import FEW_SCORED
from dinorankclip.models.loaded import LoadedModel
from dinorankclip.run_files import BEFORE, BEFORE_ITEMS, FUSION, LAST, read_fusion
from dinorankclip.train.assemble import RunParts, starting_model
from dinorankclip.train.run_folder import say
from dinorankclip.types import Encoder, ImageRows, ImageSpec, Source, UserError

ROWS_AT_ONCE = 1024  # stored rows that a model encodes at once


@dataclass(frozen=True)
class Examples:
    """Names the run folder whose example queries are stored, and the step that it has reached."""

    run: Path
    step: Callable[[], int]


@dataclass
class RetrievalEvaluator:
    """Scores retrieval on held-out pairs, with every caption of an image."""

    name: str
    source: Source
    image: ImageSpec
    tokenizer: Tokenize
    rows: ImageRows | None = None  # stored rows of a frozen image tower
    max_pixels: int = MAX_PIXELS
    examples: Examples | None = None  # stores what a few queries find
    scores: list[Score] = field(default_factory=list, init=False)  # scores of the last call, with items

    def __call__(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        if self.rows is not None:
            images = _stored_images(self.source, self.rows, encoder)
        else:
            encoders = {"embedding": encoder.encode_image}
            images = embed_images(encoders, self.source, self.image, max_pixels=self.max_pixels)
        captions = [self.source.captions(int(index)) for index in images.indices]
        rows = embed_texts(encoder.encode_text, self.tokenizer, [text for group in captions for text in group])
        table = images.rows["embedding"]
        if self.examples is not None:
            step, indices = self.examples.step(), images.indices.tolist()
            note_examples(self.examples.run, step, self.name, self.source, indices, captions, table, rows)
        self.scores = list(retrieval_scores(table, rows, captions))
        yield from ((score.name, score.value) for score in self.scores)
        chance = self.scores[-1].chance
        assert chance is not None, "a recall has a chance level"
        yield "chance R@1", chance
        yield "images", float(len(images.indices))


def _stored_images(source: Source, rows: ImageRows, encoder: Encoder) -> EmbeddedImages:
    """Return what `embed_images` would return, unit-norm, from stored rows."""
    usable: dict[int, Tensor] = {}
    damaged: list[tuple[str, str]] = []
    for index in range(len(source)):
        try:
            row = rows(index)
            source.captions(index)  # raises if the captions are damaged: a pair needs both sides
            usable[index] = row
        except Damage as damage:
            damaged.append((source.key(index), damage.cause))
    if not usable:
        raise UserError(f"none of the {len(source)} held-out pairs can be read: {damaged[0][0]} ({damaged[0][1]})")
    pieces = torch.stack(list(usable.values())).split(ROWS_AT_ONCE)
    table = torch.cat([encoder.encode_image(piece).float().cpu() for piece in pieces])
    return EmbeddedImages({"embedding": table}, np.array(list(usable)), damaged)


def evaluators(parts: RunParts, *splits: str) -> list[RetrievalEvaluator]:
    """Return an evaluator for each of these held-out parts that the data has."""
    if not traits_of(parts.settings.method).contrasts:  # the trunk does not learn, so its retrieval is meaningless
        return []
    image, max_pixels = parts.state.model.image_spec, parts.settings.reading.max_pixels
    rows = parts.frozen.rows if parts.frozen else {}
    sources = {split: parts.held_out[split] for split in splits if split in parts.held_out}
    run = Path(parts.settings.run or "")
    examples = {"val": Examples(run, lambda: parts.state.step)} if parts.settings.run and run.is_dir() else {}
    return [
        RetrievalEvaluator(split, source, image, parts.tokenizer, rows.get(split), max_pixels, examples.get(split))
        for split, source in sources.items()
    ]


def _take_retrieval(parts: RunParts) -> tuple[dict[str, float], dict[str, Score]]:
    """Return the numbers of the held-out parts by name, and the scores among them with their items."""
    model = parts.state.model.eval()
    numbers: dict[str, float] = {}
    scores: dict[str, Score] = {}
    for evaluator in evaluators(parts, "val", "test"):
        numbers |= {f"{evaluator.name}/{name}": value for name, value in evaluator(model)}
        scores |= {f"{evaluator.name}/{score.name}": score for score in evaluator.scores}
    model.train()
    return numbers, scores


def take_fidelity(parts: RunParts) -> dict[str, float]:
    """Measure how faithful the students are to the cached teacher; empty without distillation.

    Where the cache lacks the held-out parts, a note is printed and the result is empty.
    """
    distil, distillation = parts.settings.distil, parts.state.objective.distillation
    if distil.cache is None or distillation is None or isinstance(parts.state.model, AlignedModel):
        return {}
    sources = {"train": parts.train, **parts.held_out}
    of_tokens = distil.criterion in ON_TOKENS
    own = {branch: OwnProjector(distillation.mapping(branch), of_tokens) for branch in distillation.projectors}
    evaluator = FidelityEvaluator(
        distil.cache, distil.compare_grid, sources, parts.tokenizer, own, parts.settings.reading.max_pixels
    )
    model = parts.state.model.eval()
    numbers: dict[str, float] = {}
    try:
        numbers.update(evaluator(model, distillation.branches))
    except UserError as error:
        say(f"the fidelity of the students was not measured: {error}")
    model.train()
    return numbers


def starting_scores(parts: RunParts, folder: Path) -> dict[str, float]:
    """Score the starting weights once a run, so that fine-tuning can show before and after."""

    def score() -> None:
        if not (folder / BEFORE).exists():
            numbers, scores = _take_retrieval(parts)
            write_items(folder / BEFORE_ITEMS, scores)
            write_json(folder / BEFORE, sealed(numbers))

    distributed.leader_first(score)
    return read_sealed(folder / BEFORE, named(NUMBER))


def final_scores(
    parts: RunParts, before: dict[str, float], folder: Path, chosen: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Score the last weights on the held-out parts, print the table, write scores.json. A fine-tuned model is compared
    with its start; `chosen` says how its weights were chosen (blend.py)."""

    def score() -> None:
        numbers, scores = _take_retrieval(parts)
        faithful = take_fidelity(parts)
        stored: dict[str, Any] = {"checkpoint": LAST, "step": parts.state.step, "scores": numbers, "before": before}
        stored[HELD_OUT] = {split: source.fingerprint for split, source in parts.held_out.items()}
        if before and (parts.settings.init or parts.settings.model.weights):
            stored |= {"gains": _all_gains(parts, folder, scores), "chosen": dict(chosen)}
        write_training_scores(folder, stored | ({"fidelity": faithful} if faithful else {}), scores)
        if numbers and stored.get("gains"):
            say(gains_table(stored["gains"]) + few_scored(numbers))
        elif numbers:
            say(score_table(numbers, before) + few_scored(numbers))
        for name, value in faithful.items():
            say(f"held-out {name:<32}{value:8.3f}")
        _final_inspection(parts, folder)
        say(f"\nrun folder: {folder}")

    distributed.leader_first(score)


def _all_gains(parts: RunParts, folder: Path, scores: dict[str, Score]) -> list[dict[str, Any]]:
    """Compare the end of a run with its start, on its own held-out parts and on the general set."""
    rows: list[dict[str, Any]] = []
    items = read_items(folder, BEFORE_ITEMS)
    for part in parts.held_out:
        before, after = (
            {name.removeprefix(f"{part}/"): held for name, held in all_of.items() if name.startswith(f"{part}/")}
            for all_of in (items, scores)
        )
        rows += gains(OWN, part, before, after)
    settings = parts.settings
    if isinstance(parts.state.model, AlignedModel) or (general := general_set(settings)) is None:
        return rows
    part = parts_of(general)[1]
    say(f"general set: {general.name}, {part} part")
    start, end = starting_model(settings), starting_model(settings)
    end.load_state_dict(parts.state.model.own_state())  # low-rank corrections merged
    name = str(settings.init or settings.model.weights)
    loaded = (LoadedModel(model, name, parts.placement) for model in (start, end))
    rows_of = (set_scores(model, general, part, EmbeddingStore()) for model in loaded)
    return rows + list(gains(GENERAL, part, *rows_of))


def score_table(scores: dict[str, float], before: dict[str, float]) -> str:
    """Format percentages, a line for each held-out part and direction, below the lines of the starting weights."""
    lines = [f"{'held-out retrieval, %':<28}" + "".join(f"{name:>8}" for name in RECALLS)]
    started = held_out(before)
    for part, ways in held_out(scores).items():
        for words, now in ways.items():
            for when, cells in (("before", started[part][words] if before else ()), ("after" if before else "", now)):
                if cells:
                    numbers = "".join(f"{'' if cell is None else bare(cell, 'share'):>8}" for cell in cells)
                    lines.append(f"{part:<6}{words:<14}{when:<8}{numbers}")
        lines.append(f"{part:<6}{'chance':<22}{bare(scores[f'{part}/chance R@1'], 'share'):>8}")
    return "\n".join(lines)


def few_scored(scores: dict[str, float]) -> str:
    """Return a line of caution about parts that are too small to tell models apart; empty if there is none."""
    caution = few_images_caution(images_scored(scores))
    return f"\n{caution}" if caution else ""


def few_images_caution(counts: dict[str, int]) -> str:
    """Return a caution if any part or set has few images. `counts`: images by the name of the part or set."""
    few = [f"{name} n = {count}" for name, count in counts.items() if count < FEW_SCORED]
    return f"so few images say little about the model: {', '.join(few)}" if few else ""


def starting_inspection(parts: RunParts, folder: Path) -> None:
    """Measure fusion before the first step, for the comparison at the end."""
    if parts.state.model.fusion.variant != "none" and parts.state.step == 0:
        distributed.leader_first(lambda: write_json(folder / FUSION, sealed({"start": _take_inspection(parts)})))


def _final_inspection(parts: RunParts, folder: Path) -> None:
    if parts.state.model.fusion.variant != "none":
        start = read_fusion(folder)
        numbers = start | {"end": _take_inspection(parts)}
        write_json(folder / FUSION, sealed(numbers))
        say("\n" + inspection_table(numbers))


def _take_inspection(parts: RunParts) -> dict[str, Any]:
    model, settings = parts.state.model.eval(), parts.settings
    # The rows of a frozen image tower are embeddings, those of an aligned model are what its heads start from.
    rows = parts.frozen.rows["val"] if parts.frozen is not None and isinstance(model, AlignedModel) else None
    numbers = inspect_fusion(model, parts.held_out["val"], parts.tokenizer, settings.reading.max_pixels, rows)
    model.train()
    return numbers
