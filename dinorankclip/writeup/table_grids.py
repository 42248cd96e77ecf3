"""A table as rows of short texts, the same for every format: what was measured, the paper's values, differences.

Several grids, since means with intervals, differences and the paper's values side by side fit no page.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field

from dinorankclip.writeup.numbers import MISSING, Form, form_of
from dinorankclip.writeup.paper_words import digits_for, paper_words
from dinorankclip.writeup.tables import PAPER, UNMATCHED, Measured, Table, TableRow

SHOWN_EFFECT = "*"
CHANCE, AT_CHANCE = "chance", "[near chance]"
BESIDE = 4  # so many columns of the paper stand beside ours; more become a grid of their own below


@dataclass(frozen=True)
class Words:
    text: str
    bold: bool = False


@dataclass(frozen=True)
class Grid:
    """`groups[i]` is what stands above heading i: nothing, or that the column is the paper's."""

    headings: tuple[str, ...]
    groups: tuple[str, ...]
    rows: tuple[tuple[Words, ...], ...] = field(default=())


def grids(table: Table) -> list[Grid]:
    """All of a table: means, the paper's values if they are too many to stand beside them, differences."""
    found = [value_grid(table), _paper_grid(table), difference_grid(table)]
    return [grid for grid in found if grid is not None]


def value_grid(table: Table) -> Grid:
    """Label, n, our means with intervals, then the paper's values if they are few; what chance gives below."""
    forms = _forms(table)
    shown = _paper_columns(table)
    shown = shown if len(shown) <= BESIDE else []
    headings = ["", "n", *_headings(table), *(table.columns[at].heading for at in shown)]
    groups = [""] * (2 + len(table.columns)) + [PAPER] * len(shown)
    digits = {at: digits_for(row.paper[at] for row in table.rows) for at in shown}
    rows = []
    for row in table.rows:
        ours = [_value(measured, form) for measured, form in zip(row.measured, forms)]
        theirs = [Words(paper_words(row.paper[at], digits[at])) for at in shown]
        rows.append((Words(label_of(row)), Words(str(row.n) if row.n else MISSING), *ours, *theirs))
    if any(chance is not None for chance in table.chances):
        chances = [MISSING if chance is None else form.plain(chance) for chance, form in zip(table.chances, forms)]
        rows.append(tuple(Words(text) for text in (CHANCE, MISSING, *chances, *(MISSING for _ in shown))))
    return Grid(tuple(headings), tuple(groups), tuple(rows))


def _paper_grid(table: Table) -> Grid | None:
    """The paper's values alone."""
    shown = _paper_columns(table)
    if len(shown) <= BESIDE:
        return None
    digits = {at: digits_for(row.paper[at] for row in table.rows) for at in shown}
    rows = [
        (Words(row.label), *(Words(paper_words(row.paper[at], digits[at])) for at in shown))
        for row in table.rows
        if any(value is not None for value in row.paper)
    ]
    headings = ("", *(table.columns[at].heading for at in shown))
    return Grid(headings, ("", *(PAPER for _ in shown)), tuple(rows))


def _paper_columns(table: Table) -> list[int]:
    return [at for at in range(len(table.columns)) if any(row.paper[at] is not None for row in table.rows)]


def difference_grid(table: Table) -> Grid | None:
    """Each row less the reference, paired by seed; None if there is nothing to pair."""
    forms = _forms(table)
    rows = []
    for row in table.rows:
        pairs = [measured.effect.n for measured in row.measured if measured.effect is not None]
        if pairs:
            cells = [_difference(measured, form) for measured, form in zip(row.measured, forms)]
            rows.append((Words(label_of(row)), Words(str(max(pairs))), *cells))
    if not rows:
        return None
    headings = (f"minus {table.reference}", "n", *_headings(table))
    return Grid(headings, ("",) * len(headings), tuple(rows))


def _headings(table: Table) -> list[str]:
    marked = zip(table.columns, table.at_chance)
    return [f"{column.heading} {AT_CHANCE}" if lost else column.heading for column, lost in marked]


def label_of(row: TableRow) -> str:
    label = f"{row.label} {UNMATCHED}" if row.unmatched else row.label
    return f"{label} [{', '.join(row.marks)}]" if row.marks else label


def _forms(table: Table) -> list[Form]:
    return [
        form_of(_means(row.measured[at] for row in table.rows), column.percent)
        for at, column in enumerate(table.columns)
    ]


def _means(measured: Iterable[Measured]) -> list[float]:
    return [one.summary.mean for one in measured if one.summary is not None]


def _value(measured: Measured, form: Form) -> Words:
    found = measured.summary
    if found is None:
        return Words(MISSING)
    return Words(form.with_half(found.mean, found.low, found.high), measured.best)


def _difference(measured: Measured, form: Form) -> Words:
    effect = measured.effect
    if effect is None:
        return Words(MISSING)
    text = form.with_half(effect.mean, effect.low, effect.high, sign=True)
    return Words(text + (f" {SHOWN_EFFECT}" if effect.shown else ""))


def wrapped(text: str, width: int = 118) -> str:
    return "\n".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False))
