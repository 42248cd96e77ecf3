"""An experiment and a study's results become a table: means over seeds, differences paired by seed, their runs.

Nothing here knows a file format; `table_grids` lays a table out, `table_files` and `page` write it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from dinorankclip.methods import HIGHEST_ORDER
from dinorankclip.methods import LABEL as PAPER
from dinorankclip.report.html import wrapped
from dinorankclip.run_files import is_inert
from dinorankclip_studies.papers.dinorankclip.paper_values import PaperValue, about_paper
from dinorankclip_studies.quantities import spread
from dinorankclip_studies.results import Results, RunRecord, at_chance, chance_of
from dinorankclip_studies.study import Column, Experiment
from dinorankclip_studies.verdicts import Effect, Summary, paired, summary

__all__ = ["PAPER", "Measured", "Table", "TableRow", "build_table", "teachers"]

UNMATCHED = "†"
NOT_RUN, NOT_SCORED, MEANINGLESS = "not run", "not scored", "a quotient of scores at chance"


@dataclass(frozen=True)
class Measured:
    """One score of one row. `effect` is the difference to the reference row, None for that row itself."""

    summary: Summary | None  # None: `lacks` says why
    effect: Effect | None = None
    best: bool = False
    lacks: str = ""


@dataclass(frozen=True)
class TableRow:
    """`runs` are all finished runs of the cell, by seed; `marks` are remarks on the row, such as an order that is
    inert."""

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
    """`chances`: of each column, None where it is not known; `at_chance`: whether no row is shown to be a point above
    it."""

    experiment: Experiment
    rows: tuple[TableRow, ...]
    chances: tuple[float | None, ...]
    at_chance: tuple[bool, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.experiment.columns

    @property
    def reference(self) -> str:
        """The label of the row that the others are compared with."""
        cell = self.experiment.reference
        return next((row.label for row in self.rows if row.cell == cell), cell)

    @property
    def lacking(self) -> tuple[str, ...]:
        """Cells without a finished run."""
        return tuple(dict.fromkeys(row.cell for row in self.rows if not row.runs))


def build_table(experiment: Experiment, results: Results) -> Table:
    by_cell = {row.cell: results.of(row.cell) for row in experiment.rows}
    lost = tuple(column.percent and at_chance(results, by_cell, column.score) for column in experiment.columns)
    best = [None if at else _best_cell(experiment, column, results) for column, at in zip(experiment.columns, lost)]
    rows = []
    for row in experiment.rows:
        runs = by_cell[row.cell]
        measured = [
            _measure(results, row.cell, column, experiment.reference, bool(runs), row.cell == best_cell)
            for column, best_cell in zip(experiment.columns, best)
        ]
        rows.append(
            TableRow(
                row.label,
                row.cell,
                tuple(measured),
                tuple(row.paper.get(column.heading) for column in experiment.columns),
                tuple(runs[seed] for seed in sorted(runs)),
                tuple(_marks(results, row.cell)),
                row.cell in experiment.unmatched,
            )
        )
    return Table(
        experiment,
        tuple(rows),
        tuple(chance_of(results, column.score) for column in experiment.columns),
        lost,
    )


def _values(results: Results, cell: str, column: Column) -> dict[int, float]:
    """By seed; none where they would mean nothing."""
    return {} if _meaningless(results, cell, column) else results.values(cell, column.score)


def _meaningless(results: Results, cell: str, column: Column) -> bool:
    return column.over is not None and at_chance(results, [cell], column.over)


def _measure(results: Results, cell: str, column: Column, reference: str, ran: bool, best: bool) -> Measured:
    if _meaningless(results, cell, column):
        return Measured(None, lacks=MEANINGLESS)
    values = results.values(cell, column.score)
    if not values:
        return Measured(None, lacks=NOT_SCORED if ran else NOT_RUN)
    against = _values(results, reference, column)
    common = values.keys() & against.keys()
    effect = paired(against, values) if cell != reference and common else None
    return Measured(summary(values), effect, best)


def _best_cell(experiment: Experiment, column: Column, results: Results) -> str | None:
    """The cell to print in bold: the one whose lead over every other is shown (`Effect.shown`). Leads are paired by
    seed, since means of cells with more seeds are of other seeds, too.

    Cells with another budget do not compete, but where the mean of one is better nothing is bold: it would be read as
    the best that can be seen. A column without a direction has no best.
    """
    if column.better is None:
        return None
    cells = dict.fromkeys(row.cell for row in experiment.rows)
    values = {cell: found for cell in cells if (found := _values(results, cell, column))}
    others = [summary(values[cell]).mean for cell in experiment.unmatched if cell in values]
    competing = {cell: found for cell, found in values.items() if cell not in experiment.unmatched}
    sign = 1 if column.better == "higher" else -1
    for cell, own in competing.items():
        leads = [paired(theirs, own) for other, theirs in competing.items() if other != cell]
        if leads and all(lead.shown and sign * lead.mean > 0 for lead in leads):
            mean = summary(own).mean
            return cell if all(sign * (mean - other) >= 0 for other in others) else None
    return None


def _marks(results: Results, cell: str) -> list[str]:
    """Orders of the cell that do nothing by their end (D13)."""
    found = {order: spread(results, cell, order) for order in range(2, HIGHEST_ORDER + 1)}
    return [f"order {order} inert" for order, value in found.items() if value is not None and is_inert(value)]


def teachers(tables: Sequence[Table]) -> dict[str, list[str]]:
    """Teacher, with what must be said beside its results → labels of the rows it taught."""
    found: dict[str, list[str]] = {}
    for row in chain.from_iterable(table.rows for table in tables):
        for teacher in dict.fromkeys(run.teacher for run in row.runs if run.teacher):
            labels = found.setdefault(teacher, [])
            if row.label not in labels:
                labels.append(row.label)
    return found


# -------- plain_table
# A table of plain texts, for Markdown and HTML alike: for what does not fit the grid of cells and scores.


@dataclass(frozen=True)
class PlainTable:
    """`paper`: the paper's values that stand in it, whose headings carry its label."""

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
