"""Matched budgets: cells of one table agree in pairs seen, steps, batch, data, trunk, start, rates, ramp and precision.
Not in time: a step of one method costs more than one of another, which the benches measure.

Cells that an experiment lists as `unmatched` may differ in what it names there, and its note says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dinorankclip.config import as_dict, flatten
from dinorankclip.methods import LABEL, STUDENT_MILLIONS
from dinorankclip.train.cost import Spending, unmatched
from dinorankclip.types import UserError
from dinorankclip_studies.papers.dinorankclip.paper_values import PAPER, PAPER_GPUS
from dinorankclip_studies.prepare import cache_wishes, rates, read_tuned
from dinorankclip_studies.results import Results, RunRecord
from dinorankclip_studies.run_cell import KEPT_SEED
from dinorankclip_studies.run_queue import is_failed, is_finished, is_running
from dinorankclip_studies.run_times import Costs, duration
from dinorankclip_studies.study import Experiment, Run, Study, once

# Settings of the loss that are no part of a method: comparing methods on different ones would compare these.
SHARED_BY_METHODS = (
    "loss.ramp",
    "loss.utility",
    "loss.include_self",
    "loss.list_length",
    "distil.weight",
    "distil.text_ratio",
    "distil.compare_grid",
    "distil.relational_items",
    "distil.gram_reduction",
)


def check_plan(study: Study) -> None:
    """Before anything runs: from the settings alone."""
    spendings = {cell.name: _planned(study, cell.name) for cell in study.cells}
    _refuse(_differences(study.experiments, lambda cell: {0: spendings[cell]} if cell in spendings else {}), study.name)


def check_results(experiments: Iterable[Experiment], results: Results) -> None:
    """After runs have finished: from what each of them has really spent, seed by seed."""
    found = {cell: {seed: _spent(run) for seed, run in results.of(cell).items()} for cell in results.cells()}
    _refuse(_differences(experiments, lambda cell: found.get(cell, {})), results.name)


def _planned(study: Study, cell: str) -> Spending:
    settings = study.cell(cell).settings(study.base, 0)
    return Spending(as_dict(settings), settings.budget.epochs, None, None, None, None)


def _spent(run: RunRecord) -> Spending:
    return Spending(run.settings, run.pairs_seen, None, None, run.data, None, run.device, run.precision)


def _differences(experiments, of_cell) -> dict[tuple[str, str, str], list[str]]:
    """(experiment, reference, cell) → lines of what differs; `of_cell` gives spendings by seed."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for experiment in experiments:
        reference = of_cell(experiment.reference)
        for cell in dict.fromkeys(row.cell for row in experiment.rows):
            allowed = {name for one in (experiment.reference, cell) for name in experiment.unmatched.get(one, ())}
            theirs = of_cell(cell)
            for seed in sorted(reference.keys() & theirs.keys()):
                told = differing(reference[seed], theirs[seed])
                lines = [line for line in told if line.split(":")[0] not in allowed]
                if lines:
                    found.setdefault((experiment.name, experiment.reference, cell), lines)
    return found


def differing(a: Spending, b: Spending) -> list[str]:
    """Lines `name: A → B`; empty if the two may be compared."""
    ours, theirs = flatten(a.settings), flatten(b.settings)
    return unmatched(a, b) + [
        f"{name}: {ours[name]} → {theirs[name]}" for name in SHARED_BY_METHODS if ours[name] != theirs[name]
    ]


def _refuse(found: Mapping[tuple[str, str, str], list[str]], study: str) -> None:
    if found:
        text = "\n".join(
            f"  {experiment}: {reference} → {cell}: {'; '.join(lines)}"
            for (experiment, reference, cell), lines in found.items()
        )
        raise UserError(
            f"study {study} compares cells that differ in more than their method:\n{text}\n"
            "Give them the same budget, or name what may differ in the experiment's `unmatched`, with the reason in "
            "its note."
        )


# -------- plan
# What a study would cost before anything runs, and how far it is.

# At the paper's scale.
TRUNK_PARAMETERS, STUDENT_PARAMETERS = 151.3e6, 1e6 * STUDENT_MILLIONS  # ViT-B/32; a student
CACHE_BYTES = {"8×8": 3_537, "14×14": 21_163}  # an image, Gram and class token (docs/results.md)
TOKEN_BYTES = 196 * 256  # an image, PCA-256 tokens of a 14×14 grid in 8 bits, for mse and cosine
SMALL_MODEL_BYTES, SMALL_RUN_BYTES = 25e6, 1e6  # on this machine: a kept model; all else of a run
BYTES_PER_PARAMETER = 12  # weight and AdamW's two moments, fp32


@dataclass(frozen=True)
class Standing:
    """How many runs of a cell there are, and in which state."""

    finished: int = 0
    running: int = 0
    failed: int = 0
    missing: int = 0


def standing(folder: Path, runs: list[Run]) -> Standing:
    counts = dict.fromkeys(("finished", "running", "failed", "missing"), 0)
    for run in runs:
        counts[_state(folder, run)] += 1
    return Standing(**counts)


def _state(folder: Path, run: Run) -> str:
    if is_finished(folder, run.key):
        return "finished"
    if is_running(folder, run.key):
        return "running"
    return "failed" if is_failed(folder, run.key) else "missing"


def by_cell(runs: list[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.cell if run.score else f"tuning {run.settings.method}", []).append(run)
    return found


def plan_lines(study: Study, folder: Path, runs: list[Run], workers: int) -> Iterator[str]:
    """A table of cells with what each costs on this machine."""
    costs = Costs(folder, runs, study)
    yield f"study {study.name}: {study.title}"
    yield f"stands for: {study.paper}"
    yield _where(folder)
    yield _learning_rates(study, folder)
    yield f"\n{'cell':<28}{'runs':>6}{'finished':>10}{'a run':>10}{'to go':>10}"
    for cell, theirs in by_cell(runs).items():
        open_ones = [run for run in theirs if not is_finished(folder, run.key)]
        times = duration(costs.of(theirs[0])), duration(sum(map(costs.of, open_ones))) if open_ones else "-"
        yield f"{cell:<28}{len(theirs):>6}{len(theirs) - len(open_ones):>10}{times[0]:>10}{times[1]:>10}"
    different = once(runs)
    waiting = [run for run in different if not is_finished(folder, run.key)]
    source = "runs finished here" if costs.scale else "runs on another two-core machine"
    yield (
        f"\n{len(different)} different runs of {len(by_cell(runs))} cells, {len(different) - len(waiting)} finished; "
        f"{duration(costs.left(waiting, workers))} to go, {workers} at a time (from {source})"
    )
    kept = sum(run.seed == KEPT_SEED for run in different)
    disk = kept * SMALL_MODEL_BYTES + len(different) * SMALL_RUN_BYTES
    yield f"disk: about {_size(disk)}, {kept} models of seed {KEPT_SEED} included; --keep keeps all checkpoints"


def paper_plan_lines(study: Study, runs: list[Run]) -> Iterator[str]:
    """The same for the paper's machine; GPU hours are steps × the paper's step times."""
    budget, paper = study.base.budget, PAPER["tab:cost-accuracy"]
    steps = study.pairs // budget.batch * budget.epochs
    yield f"study {study.name}: {study.title}"
    yield f"{study.pairs / 1e6:.2f} M pairs × {budget.epochs} epochs, batch {budget.batch}: {steps:,} steps a run"
    yield f"\n{'cell':<28}{'seeds':>6}{'order':>7}{'ms a step':>11}{'GPU hours':>11}"
    total = 0.0
    for cell, theirs in by_cell(runs).items():
        order = theirs[0].settings.loss.order
        step, longer = paper[str(order)]["step ms"], theirs[0].settings.budget.epochs / budget.epochs
        hours = len(theirs) * longer * steps * step / 3.6e6 * PAPER_GPUS
        total += hours
        yield f"{cell:<28}{len(theirs):>6}{order:>7}{step:>11g}{hours:>11,.0f}"
    own = {cell.name: cell.changes for cell in study.cells if "reading.train_items" in cell.changes}
    if own:
        items = (f"{name} {changes['reading.train_items'] / 1e6:g} M" for name, changes in own.items())
        yield f"\nDifferent pairs, where they are fewer (names are those of the small studies): {', '.join(items)}."
    nodes = total / PAPER_GPUS
    yield f"\n{len(runs)} runs, {total:,.0f} GPU hours: {nodes:,.0f} hours of a node with {PAPER_GPUS} H100."
    yield f"Step times: {LABEL}; scoring and the extraction of teacher features are not in them."
    one, planned = steps * paper["0"]["step ms"] / 3.6e6, PAPER["tab:compute"]["total printed"]["hours"]
    yield (
        f"The paper plans its whole study in {planned:g} node hours, most of it on 1 M pairs × 32 epochs, and "
        f"{paper['0']['hours']:g} h for an order-0 run ({LABEL}); its own step time times its own steps is {one:.1f} h."
    )
    yield from _paper_disk(study, runs)


def _paper_disk(study: Study, runs: list[Run]) -> Iterator[str]:
    checkpoint = (TRUNK_PARAMETERS + 2 * STUDENT_PARAMETERS) * BYTES_PER_PARAMETER
    running = checkpoint * (study.base.record.keep + 2)  # the best one and the one being written besides
    models = sum(run.seed == KEPT_SEED for run in runs) * checkpoint / 3
    caches = cache_wishes(runs)
    tokens = sum(wish.keeps_tokens for wish in caches)
    cache = study.pairs * (len(caches) * CACHE_BYTES["14×14"] + tokens * TOKEN_BYTES)
    yield "\ndisk"
    kept = study.base.record.keep
    yield f"  {_size(running):>9}  checkpoints of each run under way ({kept} kept, the best, one being written)"
    yield f"  {_size(models):>9}  models that stay (seed {KEPT_SEED} of every cell)"
    fine, coarse = (_size(study.pairs * CACHE_BYTES[grid]) for grid in ("14×14", "8×8"))
    yield f"  {_size(cache):>9}  {len(caches)} teacher caches at 14×14 ({fine} each; {coarse} at 8×8),"
    yield f"  {'':>9}  {tokens} of them with PCA-256 tokens besides; captions' features not counted"


def status_lines(study: Study, folder: Path, runs: list[Run], workers: int) -> Iterator[str]:
    """Cells with finished, running, failed and missing runs, and the time left."""
    yield f"study {study.name}"
    yield _where(folder)
    yield _learning_rates(study, folder)
    yield f"{'cell':<28}{'finished':>9}{'running':>9}{'failed':>9}{'missing':>9}"
    for cell, theirs in by_cell(runs).items():
        now = standing(folder, theirs)
        yield f"{cell:<28}{now.finished:>9}{now.running:>9}{now.failed:>9}{now.missing:>9}"
    different = once(runs)
    waiting = [run for run in different if not is_finished(folder, run.key)]
    left = Costs(folder, runs, study).left(waiting, workers)
    yield f"{len(different) - len(waiting)} of {len(different)} runs finished" + (
        f"; {duration(left)} left with {workers} at a time" if waiting else ""
    )


def _where(folder: Path) -> str:
    return f"folder: {folder}" + ("" if folder.is_dir() else " (not there yet: nothing has run)")


def _learning_rates(study: Study, folder: Path) -> str:
    tuned = rates(read_tuned(folder))
    if tuned:
        told = ", ".join(f"{name} {rate:g}" for name, rate in tuned.items())
    elif study.grid:
        told = f"not tuned yet; {', '.join(f'{rate:g}' for rate in study.grid)} are tried first"
    else:
        told = f"{study.base.optim.lr:g}, of the preset"
    return f"learning rates: {told}"


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count < 1e12 else f"{count / 1e12:.1f} TB"
