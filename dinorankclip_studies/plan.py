"""Checks that cells of a table have matched budgets, and prints the cost and progress of a study.

Cells of one table agree in pairs seen, steps, batch, data, trunk, start, rates, ramp and precision. They need not agree
in time: steps of different methods cost differently, which the benches measure. Cells that an experiment lists as
`unmatched` may differ in the settings named there, and its note says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from dinorankclip.config import as_dict
from dinorankclip.stored_settings import flatten, meaning_of_absent
from dinorankclip.train.cost import Spending, unmatched
from dinorankclip.types import UserError
from dinorankclip_studies.results import Results, rates, read_tuned
from dinorankclip_studies.run_cell import KEPT_SEED
from dinorankclip_studies.run_queue import is_failed, is_finished, is_running
from dinorankclip_studies.run_times import Costs, duration
from dinorankclip_studies.study import Experiment, Run, Study, distinct

# Settings of the loss that belong to no method: methods must be compared at equal values.
SHARED_BY_METHODS = (
    "loss.ramp", "loss.utility", "loss.include_self", "loss.list_length", "loss.several_positives",
    "distil.weight", "distil.text_ratio", "distil.compare_grid", "distil.relational_items", "distil.gram_reduction",
)  # fmt: skip
STATES = ("finished", "running", "failed", "missing")
# Sizes on this machine: a stored model, and everything else of a run.
SMALL_MODEL_BYTES, SMALL_RUN_BYTES = 25e6, 1e6


def check_plan(study: Study) -> None:
    """Check the budgets before anything runs, from the settings alone."""
    planned = {}
    for cell in study.cells:
        settings = cell.settings(study.base, 0)
        planned[cell.name] = {0: Spending(as_dict(settings), settings.budget.epochs, None, None, None, None)}
    _refuse_differences(study.name, study.experiments, planned)


def check_results(experiments: Iterable[Experiment], results: Results) -> None:
    """Check the budgets after runs have finished, by the actual spending of each run, seed by seed."""
    spent: dict[str, dict[int, Spending]] = {}
    for run in results.runs:
        spending = Spending(run.settings, run.pairs_seen, None, None, run.data, None, run.device, run.precision)
        spent.setdefault(run.cell, {})[run.seed] = spending
    _refuse_differences(results.name, experiments, spent)


def _refuse_differences(
    study: str, experiments: Iterable[Experiment], spendings: Mapping[str, Mapping[int, Spending]]
) -> None:
    """Raise an error if budgets differ within a table. `spendings`: cell → seed → spending."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for experiment in experiments:
        reference = spendings.get(experiment.reference, {})
        for cell in dict.fromkeys(row.cell for row in experiment.rows):
            pair = (experiment.reference, cell)
            allowed = {name for each in pair for name in experiment.unmatched.get(each, ())}
            for seed in sorted(reference.keys() & spendings.get(cell, {}).keys()):
                lines = differing(reference[seed], spendings[cell][seed])
                if lines := [line for line in lines if line.split(":")[0] not in allowed]:
                    found.setdefault((experiment.name, *pair), lines)
    if found:
        text = "\n".join(
            f"  {experiment}: {reference} → {cell}: {'; '.join(lines)}"
            for (experiment, reference, cell), lines in found.items()
        )
        raise UserError(
            f"study {study} compares cells that differ in more than their method:\n{text}\n"
            "Give them the same budget, or name the settings that may differ in the experiment's `unmatched`, with the "
            "reason in its note."
        )


def differing(a: Spending, b: Spending) -> list[str]:
    """Return lines `name: A → B`; empty if the two runs may be compared."""
    ours, theirs = (meaning_of_absent() | flatten(spending.settings) for spending in (a, b))
    return unmatched(a, b) + [
        f"{name}: {ours[name]} → {theirs[name]}" for name in SHARED_BY_METHODS if ours[name] != theirs[name]
    ]


def plan_lines(study: Study, folder: Path, runs: list[Run], workers: int) -> Iterator[str]:
    """Yield a table of cells with their cost on this machine."""
    costs = Costs(folder, runs, study)
    yield f"study {study.name}: {study.title}"
    if study.paper:
        yield f"stands for: {study.paper}"
    yield _where(folder)
    yield _learning_rates(study, folder)
    yield f"\n{'cell':<28}{'runs':>6}{'finished':>10}{'a run':>10}{'to go':>10}"
    first_cell: dict[str, str] = {}
    for cell, runs_of_cell in by_cell(runs).items():
        waiting = [run for run in runs_of_cell if not is_finished(folder, run.key)]
        finished, shared = len(runs_of_cell) - len(waiting), {first_cell.get(run.key) for run in runs_of_cell}
        line = f"{cell:<28}{len(runs_of_cell):>6}{finished:>10}"
        if len(shared) == 1 and (same := shared.pop()):
            yield f"{line}  the runs of {same}"
            continue
        times = duration(costs.of(runs_of_cell[0])), duration(sum(map(costs.of, waiting))) if waiting else "-"
        yield f"{line}{times[0]:>10}{times[1]:>10}"
        first_cell |= {run.key: cell for run in runs_of_cell}
    different = distinct(runs)
    waiting = [run for run in different if not is_finished(folder, run.key)]
    source = "runs finished here" if costs.scale else "runs on another two-core machine"
    yield (
        f"\n{len(different)} different runs of {len(by_cell(runs))} cells, {len(different) - len(waiting)} finished; "
        f"{duration(costs.left(waiting, workers))} to go, {workers} at a time (from {source})"
    )
    kept = sum(run.seed == KEPT_SEED for run in different)
    disk = kept * SMALL_MODEL_BYTES + len(different) * SMALL_RUN_BYTES
    yield f"disk: about {size_text(disk)}, {kept} models of seed {KEPT_SEED} included; --keep keeps all checkpoints"


def status_lines(study: Study, folder: Path, runs: list[Run], workers: int) -> Iterator[str]:
    """Yield the cells with their finished, running, failed and missing runs, and the time left."""
    yield f"study {study.name}"
    yield _where(folder)
    yield _learning_rates(study, folder)
    yield f"{'cell':<28}" + "".join(f"{state:>9}" for state in STATES)
    for cell, runs_of_cell in by_cell(runs).items():
        counts = Counter(state_of(folder, run) for run in runs_of_cell)
        yield f"{cell:<28}" + "".join(f"{counts[state]:>9}" for state in STATES)
    different = distinct(runs)
    waiting = [run for run in different if not is_finished(folder, run.key)]
    left = Costs(folder, runs, study).left(waiting, workers)
    yield f"{len(different) - len(waiting)} of {len(different)} runs finished" + (
        f"; {duration(left)} left with {workers} at a time" if waiting else ""
    )


def state_of(folder: Path, run: Run) -> str:
    """Return the state of a run, one of STATES."""
    checks: tuple[Callable[[Path, str], bool], ...] = (is_finished, is_running, is_failed)
    return next((state for state, holds in zip(STATES, checks) if holds(folder, run.key)), "missing")


def by_cell(runs: list[Run]) -> dict[str, list[Run]]:
    """Group runs by cell, and tuning runs by method."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.cell if run.score else f"tuning {run.settings.method}", []).append(run)
    return groups


def _where(folder: Path) -> str:
    return f"folder: {folder}" + ("" if folder.is_dir() else " (not there yet: nothing has run)")


def _learning_rates(study: Study, folder: Path) -> str:
    tuned = rates(read_tuned(folder))
    if tuned:
        return "learning rates: " + ", ".join(f"{name} {rate:g}" for name, rate in tuned.items())
    if study.grid:
        return f"learning rates: not tuned yet; {', '.join(f'{rate:g}' for rate in study.grid)} are tried first"
    note = f": {study.rate_note}" if study.rate_note else ""
    return f"learning rates: {study.base.optim.lr:g}, of the preset{note}"


def size_text(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count < 1e12 else f"{count / 1e12:.1f} TB"
