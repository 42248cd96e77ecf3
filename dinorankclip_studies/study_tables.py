"""Builds tables from an experiment and a study's results: means over seeds, differences paired by seed, their runs.

Nothing here knows a file format: table_files.py lays tables out and writes them. `PlainTable` is a table of plain texts
for values that do not fit the grid of cells and scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from dinorankclip.methods import HIGHEST_ORDER
from dinorankclip.report.html import wrapped
from dinorankclip.run_files import is_inert
from dinorankclip_studies.papers.paper_data import PaperValue, about_paper
from dinorankclip_studies.quantities import spread
from dinorankclip_studies.results import Results, RunRecord, at_chance, chance_of
from dinorankclip_studies.study import Column, Experiment
from dinorankclip_studies.verdicts import Effect, Summary, paired, summary

NOT_RUN, NOT_SCORED, MEANINGLESS = "not run", "not scored", "a quotient of scores at chance"


@dataclass(frozen=True)
class Measured:
    """Holds one score of one row. `effect` is the difference to the reference row, None for that row itself."""

    summary: Summary | None  # None: `why_missing` says why
    effect: Effect | None = None
    best: bool = False
    why_missing: str = ""


@dataclass(frozen=True)
class TableRow:
    """Holds a row. `runs` are all finished runs of the cell, by seed; `marks` are remarks, such as an inert order."""

    label: str
    cell: str
    measured: tuple[Measured, ...]
    paper: tuple[PaperValue | None, ...]
    runs: tuple[RunRecord, ...]
    marks: tuple[str, ...] = ()
    unmatched: bool = False

    @property
    def n(self) -> int:
        return len(self.runs)


@dataclass(frozen=True)
class Table:
    """Holds a table. `chances`: chance of each column or None; `at_chance`: no row is shown a point above chance."""

    experiment: Experiment
    rows: tuple[TableRow, ...]
    chances: tuple[float | None, ...]
    at_chance: tuple[bool, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.experiment.columns

    @property
    def reference(self) -> str:
        """Return the label of the row that the others are compared with."""
        cell = self.experiment.reference
        return next((row.label for row in self.rows if row.cell == cell), cell)

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Return the cells without a finished run."""
        return tuple(dict.fromkeys(row.cell for row in self.rows if not row.runs))


def build_table(experiment: Experiment, results: Results) -> Table:
    columns = experiment.columns
    runs = {row.cell: results.of(row.cell) for row in experiment.rows}
    near_chance = tuple(column.percent and at_chance(results, runs, column.score) for column in columns)
    best = [None if lost else _best_cell(experiment, column, results) for column, lost in zip(columns, near_chance)]
    rows = tuple(
        TableRow(
            row.label,
            row.cell,
            tuple(
                _measure(results, row.cell, column, experiment.reference, row.cell == best_cell)
                for column, best_cell in zip(columns, best)
            ),
            tuple(row.paper.get(column.heading) for column in columns),
            tuple(runs[row.cell][seed] for seed in sorted(runs[row.cell])),
            _inert_orders(results, row.cell),
            row.cell in experiment.unmatched,
        )
        for row in experiment.rows
    )
    return Table(experiment, rows, tuple(chance_of(results, column.score) for column in columns), near_chance)


def _values(results: Results, cell: str, column: Column) -> dict[int, float]:
    """Return the score by seed; empty where the score would be meaningless."""
    return {} if _is_meaningless(results, cell, column) else results.values(cell, column.score)


def _is_meaningless(results: Results, cell: str, column: Column) -> bool:
    return column.over is not None and at_chance(results, [cell], column.over)


def _measure(results: Results, cell: str, column: Column, reference: str, best: bool) -> Measured:
    if _is_meaningless(results, cell, column):
        return Measured(None, why_missing=MEANINGLESS)
    values = results.values(cell, column.score)
    if not values:
        return Measured(None, why_missing=NOT_SCORED if results.of(cell) else NOT_RUN)
    against = _values(results, reference, column)
    common = values.keys() & against.keys()
    effect = paired(against, values) if cell != reference and common else None
    return Measured(summary(values), effect, best)


def _best_cell(experiment: Experiment, column: Column, results: Results) -> str | None:
    """Return the cell to print in bold: its lead over every other cell is shown (`Effect.shown`).

    Leads are paired by seed, since means of cells with more seeds include other seeds. Cells with another budget do not
    compete, but where the mean of such a cell is better, nothing is bold: readers would take bold for the best value of
    the column. A column without a direction has no best cell.
    """
    if column.better is None:
        return None
    cells = dict.fromkeys(row.cell for row in experiment.rows)
    values = {cell: by_seed for cell in cells if (by_seed := _values(results, cell, column))}
    unmatched = [summary(values[cell]).mean for cell in experiment.unmatched if cell in values]
    competing = {cell: by_seed for cell, by_seed in values.items() if cell not in experiment.unmatched}
    sign = 1 if column.better == "higher" else -1
    for cell, own in competing.items():
        leads = [paired(theirs, own) for other, theirs in competing.items() if other != cell]
        if leads and all(lead.shown and sign * lead.mean > 0 for lead in leads):
            mean = summary(own).mean
            return cell if all(sign * (mean - other) >= 0 for other in unmatched) else None
    return None


def _inert_orders(results: Results, cell: str) -> tuple[str, ...]:
    """Name the orders of a cell whose relative spread ends too small to act (D13)."""
    spreads = {order: spread(results, cell, order) for order in range(2, HIGHEST_ORDER + 1)}
    return tuple(f"order {order} inert" for order, value in spreads.items() if value is not None and is_inert(value))


def teachers(tables: Sequence[Table]) -> dict[str, list[str]]:
    """Map each teacher, with the remark that must stand beside its results, to the labels of the rows it taught."""
    labels: dict[str, list[str]] = {}
    for row in chain.from_iterable(table.rows for table in tables):
        for teacher in dict.fromkeys(run.teacher for run in row.runs if run.teacher):
            taught = labels.setdefault(teacher, [])
            if row.label not in taught:
                taught.append(row.label)
    return labels


@dataclass(frozen=True)
class PlainTable:
    """Holds a table of plain texts. `paper`: the paper's values in it, whose headings carry the paper's label."""

    name: str
    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str
    paper: tuple[PaperValue, ...] = ()

    @property
    def notes(self) -> str:
        return " ".join(part for part in (self.note, about_paper(self.paper) if self.paper else "") if part)

    def markdown(self, level: int = 2) -> str:
        rows = [self.headings, ("---", *("--:" for _ in self.headings[1:])), *self.rows]
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        notes = [wrapped(self.notes), ""] if self.notes else []
        return "\n".join([f"{'#' * level} {self.title}", "", *lines, "", *notes, ""])
