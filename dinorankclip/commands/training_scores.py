"""The scores and inspections that `train` takes before, during and after a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dinorankclip import comm
from dinorankclip.commands.few_images import caution
from dinorankclip.data.pipes import PipeSource
from dinorankclip.locks import one_at_a_time
from dinorankclip.losses.distillation import ON_TOKENS
from dinorankclip.methods import traits_of
from dinorankclip.pretrain.assemble import Parts
from dinorankclip.pretrain.records import say
from dinorankclip.run_files import BEFORE, FUSION, LAST, SCORES, read_object
from dinorankclip.score_words import RECALLS, bare, held_out, images_scored
from dinorankclip.scoring.evaluators import FidelityEvaluator, RetrievalEvaluator
from dinorankclip.scoring.fidelity import OwnProjector
from dinorankclip.scoring.inspection import inspect
from dinorankclip.scoring.score_files import WRITING, write_training_items
from dinorankclip.scoring.scored import HELD_OUT
from dinorankclip.scoring.scores import Score
from dinorankclip.types import UserError
from dinorankclip.whole_files import write_json


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

    comm.leader_first(score)
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

    comm.leader_first(score)


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
    told = caution(images_scored(scores))
    return f"\n{told}" if told else ""


def starting_inspection(parts: Parts, folder: Path) -> None:
    """What fusion does before the first step, kept for the comparison at the end."""
    if is_fused(parts) and parts.state.step == 0:
        comm.leader_first(lambda: write_json(folder / FUSION, {"start": take_inspection(parts)}))


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
