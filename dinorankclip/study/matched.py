"""Matched budgets: cells of one table agree in pairs seen, steps, batch, data, trunk, start, rates, ramp and precision.
Not in time: a step of one method costs more than one of another, which the benches measure.

Cells that an experiment lists as `unmatched` may differ in what it names there, and its note says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dinorankclip.config import as_dict
from dinorankclip.pretrain.budget import Spending, unmatched
from dinorankclip.settings_difference import flatten
from dinorankclip.types import UserError

from .experiments import Experiment
from .outline import Study
from .results import Results, RunRecord

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
