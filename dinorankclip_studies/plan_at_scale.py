"""Prints the plan of the study at a paper's own scale: cells, node hours and disk, with the paper's figures beside.

Hours are steps times the step times that the paper prints. They count training alone: scoring and the extraction of
teacher features are not in them, and the paper's hours for these stand without a figure of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dinorankclip.formatting import MISSING
from dinorankclip.methods import LABEL, STUDENT_MILLIONS
from dinorankclip.presets import preset
from dinorankclip_studies.papers import Paper, paper_of
from dinorankclip_studies.plan import by_cell, size_text
from dinorankclip_studies.run_cell import KEPT_SEED, needed_caches
from dinorankclip_studies.study import Run, Study, distinct

TRUNK_PARAMETERS, STUDENT_PARAMETERS = 151.3e6, 1e6 * STUDENT_MILLIONS  # ViT-B/32; a student
CACHE_BYTES = {"8×8": 3_537, "14×14": 21_163}  # for each image: Gram and class token (docs/results.md)
TOKEN_BYTES = 196 * 256  # for each image: PCA-256 tokens of a 14×14 grid in 8 bits, for mse and cosine
BYTES_PER_PARAMETER = 12  # weight and AdamW's two moments, fp32
TWO_CAPTIONS = "alip"  # the method that sees a second caption of each image
MAIN_RUN, BASELINES, OWN = "main run", "baselines", "own"  # parts of the plan; the paper's profile has the first alone
NOT_COUNTED = ("teacher features", "Fine-grained Probe", "evaluation", "buffer")  # rows of its profile without training
WORDS = {
    MAIN_RUN: "main run: the method",
    BASELINES: "baselines and no teacher",
    OWN: "controls and settings",
    "Fine-grained Probe": "Fine-grained Probe runs",
}


@dataclass(frozen=True)
class Hours:
    """Computes the hours of runs on one node, by the paper's own step times."""

    study: Study
    paper: Paper

    def steps(self, run: Run) -> int:
        budget = run.settings.budget
        return self.study.pairs_of(run.settings) // budget.batch * budget.epochs

    def step_ms(self, run: Run) -> float:
        return self.paper.values["tab:cost-accuracy"][str(run.settings.loss.order)]["step ms"]

    def of(self, runs: Iterable[Run]) -> float:
        return sum(self.steps(run) * self.step_ms(run) / 3.6e6 for run in runs)


def paper_plan_lines(study: Study, runs: list[Run]) -> Iterator[str]:
    """Yield cells with their hours, the parts of the plan beside the paper's profile, differences, data and disk."""
    paper = paper_of(study.name)
    hours = Hours(study, paper)
    different = distinct(runs)
    yield f"study {study.name}: {study.title}"
    yield f"stands for: {study.paper}; {study.pairs / 1e6:.2f} M pairs"
    yield f"\n{'cell':<34}{'seeds':>6}{'order':>6}{'pairs':>9}{'epochs':>8}{'steps':>9}{'ms a step':>11}{'node h':>8}"
    first_with: dict[str, str] = {}
    for cell, runs_of_cell in by_cell(runs).items():
        run = runs_of_cell[0]
        shared = first_with.setdefault(run.key, cell)
        pairs = f"{study.pairs_of(run.settings) / 1e6:.2f} M"
        line = f"{cell:<34}{len(runs_of_cell):>6}{run.settings.loss.order:>6}{pairs:>9}{run.settings.budget.epochs:>8}"
        line += f"{hours.steps(run):>9,}{hours.step_ms(run):>11g}"
        yield line + (f"{hours.of(runs_of_cell):>8,.1f}" if shared == cell else f"     is {shared}")
    total = hours.of(different)
    nodes = f"{total:,.0f} hours of a node with {study.gpus} H100"
    gpu_hours = f"{total * study.gpus:,.0f} GPU hours"
    yield f"\n{len(different)} different runs of {len(by_cell(runs))} cells: {nodes}, {gpu_hours}."
    yield f"Step times: {LABEL}; scoring and the extraction of teacher features are not in them."
    yield from _beside_the_profile(study, paper, different, hours)
    yield from _needs(runs)
    yield from _disk(study, runs)


def parts_of(study: Study, paper: Paper, runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Group runs by row of the paper's compute profile. A run that several rows share counts for the first of them."""
    cells_of = {MAIN_RUN: {paper.main_cells[-1]}}
    for part, tables in ({BASELINES: ("main", "modality-gap")} | dict(paper.profile)).items():
        cells_of[part] = {row.cell for table in study.experiments if table.name in tables for row in table.rows}
    grouped: dict[str, list[Run]] = {part: [] for part in (*cells_of, OWN)}
    for run in runs:
        grouped[next((part for part, cells in cells_of.items() if run.cell in cells), OWN)].append(run)
    return grouped


def _beside_the_profile(study: Study, paper: Paper, runs: list[Run], hours: Hours) -> Iterator[str]:
    profile = {row: values["hours"] for row, values in paper.values["tab:compute"].items()}
    printed_total = profile.pop("total printed")
    grouped = parts_of(study, paper, runs)
    yield f"\n{'node hours by part of the plan':<34}{'runs':>6}{'here':>10}{LABEL:>20}"
    for part, members in grouped.items():
        printed = f"{profile[part]:g}" if part in profile else MISSING
        yield f"{WORDS.get(part, part):<34}{len(members):>6}{hours.of(members):>10,.1f}{printed:>20}"
    for part in NOT_COUNTED:
        yield f"{WORDS.get(part, part):<34}{MISSING:>6}{MISSING:>10}{profile[part]:>20g}"
    total = hours.of(runs)
    yield f"{'all':<34}{len(runs):>6}{total:>10,.1f}{printed_total:>20g}"
    yield f"\nWhere this differs from the paper's {printed_total:g} hours ({LABEL}):"
    common = [part for part in grouped if part in profile]
    ours, theirs = sum(hours.of(grouped[part]) for part in common), sum(profile[part] for part in common)
    yield (
        f"  {ours - theirs:+,.1f} h in parts that both have ({ours:,.1f} against {theirs:g}): the paper's own steps "
        "times its own step times give more than its profile, and its order sweep is one curve of six runs where this "
        "plan has the order alone and the order with teacher and fusion."
    )
    for part, why in (
        (BASELINES, "its profile has no run of CLIP, CyCLIP, ALIP, RankCLIP or the method without its teacher"),
        (OWN, "controls, scales of the lists, widths of the heads and the warm-start, which its profile does not have"),
    ):
        yield f"  {hours.of(grouped[part]):+,.1f} h: {why}."
    uncounted = sum(profile[part] for part in NOT_COUNTED)
    yield (
        f"  {-uncounted:+,.1f} h that are not estimated here: teacher features, evaluation, buffer, and its runs for "
        "the Fine-grained Probe, which is taken on the main models here."
    )
    grid, own = study.base.distil.compare_grid, preset(study.base.preset).distil.compare_grid
    if grid != own:
        yield (
            f"  Grams are compared on a {grid}×{grid} grid in every cell, where train --preset {study.base.preset} has "
            f"{own}×{own} as the paper: half of the cached grid is right under crops, and keys of cells belong to it."
        )
    yield "  Other numbers: --epochs, --pairs, --seeds, --sweep-epochs, --ablation-epochs, --ablation-pairs."


def _needs(runs: list[Run]) -> Iterator[str]:
    """Yield what some cells need of the data."""
    files = {run.settings.reading.second_captions: run.cell for run in runs if run.settings.method == TWO_CAPTIONS}
    if files:
        yield "\ndata"
    for file, cell in files.items():
        yield (
            f"  {cell}: sees two captions of an image in a step, and needs a second caption for each pair, which CC3M "
            f"lacks. It reads {file}: key and caption of each image, written by any captioner (docs/data.md). Other "
            "cells need none."
        )


def _disk(study: Study, runs: list[Run]) -> Iterator[str]:
    checkpoint = (TRUNK_PARAMETERS + 2 * STUDENT_PARAMETERS) * BYTES_PER_PARAMETER
    kept = study.base.record.keep
    running = checkpoint * (kept + 2)  # includes the best checkpoint and the checkpoint being written
    models = sum(run.seed == KEPT_SEED for run in distinct(runs)) * checkpoint / 3
    caches = needed_caches(runs)
    tokens = sum(spec.keeps_tokens for spec in caches)
    cache = study.pairs * (len(caches) * CACHE_BYTES["14×14"] + tokens * TOKEN_BYTES)
    fine, coarse = (size_text(study.pairs * CACHE_BYTES[grid]) for grid in ("14×14", "8×8"))
    yield "\ndisk"
    yield f"  {size_text(running):>9}  checkpoints of each run under way ({kept} kept, the best, one being written)"
    yield f"  {size_text(models):>9}  models that stay (seed {KEPT_SEED} of every cell)"
    each = f"{fine} each; {coarse} at 8×8"
    yield f"  {size_text(cache):>9}  {len(caches)} teacher caches of the whole corpus at 14×14 ({each}),"
    yield f"  {'':>9}  {tokens} of them with PCA-256 tokens besides; captions' features not counted"
    yield f"  {size_text(running + models + cache):>9}  all, with one run under way"
