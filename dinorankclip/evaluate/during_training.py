"""Scores cheap enough to take during training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dinorankclip import distributed
from dinorankclip.data.damage import Damage
from dinorankclip.data.decode import MAX_PIXELS
from dinorankclip.data.open_data import open_stored, splits_of
from dinorankclip.data.streams import PipeSource
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.evaluate.embeddings import EmbeddedImages, embed_images, embed_texts
from dinorankclip.evaluate.fidelity import Fidelity, OwnProjector, collect, comparable, fidelity
from dinorankclip.evaluate.modality_gap import inspect
from dinorankclip.evaluate.retrieval import retrieval_scores
from dinorankclip.evaluate.scores import Score, mean_score
from dinorankclip.evaluate.scores_file import HELD_OUT, WRITING, write_training_items
from dinorankclip.evaluate.suite import SetResult
from dinorankclip.formatting import RECALLS, bare, held_out, images_scored
from dinorankclip.io import one_at_a_time, write_json
from dinorankclip.losses.distillation_terms import ON_TOKENS
from dinorankclip.methods import traits_of
from dinorankclip.models.card import FEW_SCORED
from dinorankclip.models.joint import JointModel
from dinorankclip.run_files import BEFORE, FUSION, LAST, SCORES, read_object, read_settings
from dinorankclip.teachers.cache_read import TeacherCache
from dinorankclip.train.assemble import Parts
from dinorankclip.train.cost import stored_reading
from dinorankclip.train.run_folder import say
from dinorankclip.types import Encoder, ImageRows, ImageSpec, Source, UserError

FIDELITY_ITEMS = {"train": 4000, "val": 1000, "test": 5000}  # the paper scores on 5000


class RetrievalEvaluator:
    """Retrieval on held-out pairs; every caption of an image is used. `rows`: what a frozen image side says of them."""

    def __init__(
        self,
        name: str,
        source: Source,
        image: ImageSpec,
        tokenizer: Tokenizer,
        rows: ImageRows | None = None,
        max_pixels: int = MAX_PIXELS,
    ):
        self.name, self.max_pixels = name, max_pixels
        self.source, self.image, self.tokenizer, self.rows = source, image, tokenizer, rows
        self.taken: list[Score] = []  # of the last call, with items

    def __call__(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        if self.rows is not None:
            seen = known_images(self.source, self.rows)
        else:
            encoders = {"embedding": encoder.encode_image}
            seen = embed_images(encoders, self.source, self.image, max_pixels=self.max_pixels)
        captions = [self.source.captions(int(index)) for index in seen.indices]
        rows = embed_texts(encoder.encode_text, self.tokenizer, [text for group in captions for text in group])
        self.taken = list(retrieval_scores(seen.rows["embedding"], rows, captions))
        yield from ((score.name, score.value) for score in self.taken)
        chance = self.taken[-1].chance
        assert chance is not None, "a recall has a chance"
        yield "chance R@1", chance
        yield "images", float(len(seen.indices))


def known_images(source: Source, rows: ImageRows) -> EmbeddedImages:
    """What `embed_images` would find, unit-norm, from rows that are kept."""
    found: list[Tensor] = []
    indices: list[int] = []
    damaged: list[tuple[str, str]] = []
    for index in range(len(source)):
        try:
            row = rows(index)
            source.captions(index)  # a pair is usable if both of its sides are
        except Damage as damage:
            damaged.append((source.key(index), damage.cause))
            continue
        found.append(row)
        indices.append(index)
    if not found:
        raise UserError(f"none of the {len(source)} held-out pairs can be read: {damaged[0][0]} ({damaged[0][1]})")
    return EmbeddedImages({"embedding": F.normalize(torch.stack(found), dim=-1)}, np.array(indices), damaged)


class FidelityEvaluator:
    """How faithful a model's students, or the trunk that was taught, are to the cached teacher (D17) on held-out pairs.

    `sources` are the training part, on which the ridge map is fitted, "val", on which its penalty is chosen, and
    "test"; without a test part the validation part is scored.
    """

    name = "fidelity"

    def __init__(
        self,
        cache: str,
        compare_grid: int | None,
        sources: dict[str, Source],
        tokenizer: Tokenizer,
        projectors: dict[str, OwnProjector] | None = None,
        max_pixels: int = MAX_PIXELS,
    ):
        self.cache, self.compare_grid, self.sources = cache, compare_grid, sources
        self.tokenizer, self.projectors, self.max_pixels = tokenizer, projectors or {}, max_pixels

    def __call__(self, model: JointModel, branches: Iterable[str]) -> Iterator[tuple[str, float]]:
        """`branches`: those that were taught; a fine-tuned model may have a student that the cache knows nothing of."""
        for branch in branches:
            for name, value in self.measure(model, branch).numbers().items():
                yield f"{branch} {name}", value

    def measure(self, model: JointModel, branch: str) -> Fidelity:
        """Everything that is known of one branch, histograms and Gram matrices included."""
        reads = self.tokenizer if branch == "text" else None
        sides = {}
        for part, source in self.sources.items():
            cache = TeacherCache(
                self.cache, part, compare_grid=self.compare_grid, tokenizer=reads
            )
            own = self.projectors.get(branch)
            sides[part] = collect(model, cache, source, branch, FIDELITY_ITEMS[part], reads, own, self.max_pixels)
        return fidelity(sides["train"], sides["val"], sides.get("test", sides["val"]))


# -------- run_fidelity
# Distillation fidelity of a trained run, taken from its folder: which data, which cached teacher.

NAME, VERSION = "fidelity", 2  # 2: captions without two common words are left out of the Gram distance


def run_fidelity(run: Path, model: Any) -> SetResult | None:
    """Fidelity on the run's held-out pairs; None for a run without students or teacher, or whose cache is gone."""
    settings = read_settings(run)
    distil = settings.get("distil", {})
    taught = distil.get("branches", "image").split("+")
    if distil.get("cache") and distil.get("into") == "trunk":
        model.parts.teach_trunk(*taught)
    if not distil.get("cache") or "image" not in model.parts.learners:
        return None
    if not Path(distil["cache"]).is_dir():
        raise UserError(f"the teacher cache {distil['cache']} of {run} is not there; fidelity needs it")
    reading = stored_reading(settings["reading"])
    parts = ["train", "val"] + (["test"] if "test" in splits_of(settings["data"], reading) else [])
    sources = {part: open_stored(settings["data"], reading, part) for part in parts}
    evaluator = FidelityEvaluator(
        distil["cache"], distil.get("compare_grid"), sources, model.tokenizer, max_pixels=reading.max_pixels
    )
    scored = sources[parts[-1]]
    result = SetResult("distillation", "fidelity", parts[-1], len(scored), scored.fingerprint)
    for branch in taught:
        for score in _scores(evaluator.measure(model.parts, branch), branch):
            result.scores[score.name] = score
    return result


def _scores(found: Any, branch: str) -> list[Score]:
    """The columns that are means over items; their contributions are the items' own values, of those that have one."""
    columns = {
        "cosine": found.cosine,
        "cosine of the mean": found.cosine_of_mean,
        "centred cosine": found.centred_cosine,
        "gram distance": comparable(found.held_out.gram_distance),
    }
    return [
        mean_score(f"{branch} {name}", values.numpy(), unit="number") for name, values in columns.items() if len(values)
    ]


# -------- training_scores
# The scores and inspections that `train` takes before, during and after a run.


def evaluators(parts: Parts, *splits: str) -> list[RetrievalEvaluator]:
    if not traits_of(parts.settings.method).contrasts:  # the trunk does not learn: its retrieval says nothing
        return []
    image = parts.state.model.trunk.image_spec
    return [
        RetrievalEvaluator(
            split,
            parts.held_out[split],
            image,
            parts.tokenizer,
            parts.frozen.rows[split] if parts.frozen else None,
            parts.settings.reading.max_pixels,
        )
        for split in splits
        if split in parts.held_out
    ]


def take(parts: Parts, items: dict[str, Score] | None = None) -> dict[str, float]:
    """Scores of the held-out parts by name; `items` is filled with the same ones and what they are made of."""
    model = parts.state.model.eval()
    scores: dict[str, float] = {}
    for evaluator in evaluators(parts, "val", "test"):
        scores |= {f"{evaluator.name}/{name}": value for name, value in evaluator(model)}
        if items is not None:
            items |= {f"{evaluator.name}/{score.name}": score for score in evaluator.taken}
    model.train()
    return scores


def take_fidelity(parts: Parts) -> dict[str, float]:
    """How faithful the students are to the cached teacher; nothing without distillation, or, said so, where the cache
    does not have the held-out parts."""
    distil = parts.settings.distil
    distillation = parts.state.objective.distillation
    if distil.cache is None or distillation is None:
        return {}
    assert not isinstance(parts.train, PipeSource), "a cache goes with stored data"
    sources = {"train": parts.train, **parts.held_out}
    of_tokens = distil.criterion in ON_TOKENS
    own = {branch: OwnProjector(layer, of_tokens) for branch, layer in distillation.projectors.items()}
    evaluator = FidelityEvaluator(
        distil.cache, distil.compare_grid, sources, parts.tokenizer, own, parts.settings.reading.max_pixels
    )
    model = parts.state.model.eval()
    scores: dict[str, float] = {}
    try:
        for name, value in evaluator(model, distillation.branches):
            scores[name] = value
    except UserError as error:
        say(f"how faithful the students are was not measured: {error}")
    model.train()
    return scores


def starting_scores(parts: Parts, folder: Path) -> dict[str, float]:
    """Scores of the starting weights, so that fine-tuning can show before and after; taken once a run."""

    def score() -> None:
        if not (folder / BEFORE).exists():
            write_json(folder / BEFORE, take(parts))

    distributed.leader_first(score)
    return read_object(folder / BEFORE)


def final_scores(parts: Parts, before: dict[str, float], folder: Path) -> None:
    """Score the last weights on the held-out parts, print the table, write scores.json."""

    def score() -> None:
        items: dict[str, Score] = {}
        scores = take(parts, items)
        faithful = take_fidelity(parts)
        found = {"checkpoint": LAST, "step": parts.state.step, "scores": scores, "before": before}
        found[HELD_OUT] = {split: source.fingerprint for split, source in parts.held_out.items()}
        with one_at_a_time(WRITING, folder):
            kept = read_object(folder / SCORES) if (folder / SCORES).exists() else {}
            if kept.get("step") != parts.state.step:
                kept = {}  # what `score` wrote while the run went on is of earlier weights
            write_json(folder / SCORES, kept | found | ({"fidelity": faithful} if faithful else {}))
            write_training_items(folder, items)
        if scores:
            say(score_table(scores, before) + few_scored(scores))
        for name, value in faithful.items():
            say(f"held-out {name:<32}{value:8.3f}")
        final_inspection(parts, folder)
        say(f"\nrun folder: {folder}")

    distributed.leader_first(score)


def score_table(scores: dict[str, float], before: dict[str, float]) -> str:
    """Percentages, a line for each held-out part and direction; the starting weights above, if they were scored."""
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
    """A line of caution for parts that are too small to tell models apart; empty if there is none."""
    told = few_images_caution(images_scored(scores))
    return f"\n{told}" if told else ""


def starting_inspection(parts: Parts, folder: Path) -> None:
    """What fusion does before the first step, kept for the comparison at the end."""
    if is_fused(parts) and parts.state.step == 0:
        distributed.leader_first(lambda: write_json(folder / FUSION, {"start": take_inspection(parts)}))


def final_inspection(parts: Parts, folder: Path) -> None:
    if is_fused(parts):
        start = read_object(folder / FUSION) if (folder / FUSION).exists() else {}
        told = start | {"end": take_inspection(parts)}
        write_json(folder / FUSION, told)
        say("\n" + inspection_table(told))


def is_fused(parts: Parts) -> bool:
    return parts.state.model.fusion.variant != "none"


def take_inspection(parts: Parts) -> dict[str, Any]:
    model = parts.state.model.eval()
    found = inspect(model, parts.held_out["val"], parts.tokenizer, max_pixels=parts.settings.reading.max_pixels)
    model.train()
    return {branch: inspected.numbers() for branch, inspected in found.items()}


def inspection_table(told: dict[str, Any]) -> str:
    """Angle between fused and contrastive embedding, its bound and the gate, at the start and at the end."""
    columns = ("mean", "5 %", "median", "95 %", "max")
    lines = [f"{'fusion on held-out pairs':<36}" + "".join(f"{name:>9}" for name in columns)]
    for branch in told["end"]:
        for what, words in (("angle", "angle, degrees"), ("bound", "its bound"), ("gate", "gate α")):
            for when in ("start", "end") if "start" in told else ("end",):
                cells = told[when][branch][what]
                lines.append(f"{branch:<7}{words:<21}{when:<8}" + "".join(f"{cells[name]:>9.3f}" for name in columns))
        beyond = told["end"][branch]["share at ratio >= 1"]
        lines.append(f"{branch:<7}{100 * beyond:.1f} % of items at ratio ≥ 1, where the bound says nothing")
    return "\n".join(lines)


def few_images_caution(counts: dict[str, int]) -> str:
    """Return a caution if any part or set has few images. `counts`: images by the name of the part or set."""
    few = [f"{name} n = {count}" for name, count in counts.items() if count < FEW_SCORED]
    return f"so few images say little about the model: {', '.join(few)}" if few else ""
