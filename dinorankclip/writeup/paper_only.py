"""The paper's values that stand beside nothing in a study's tables, so that all of them can be read somewhere."""

from __future__ import annotations

from dataclasses import dataclass

from dinorankclip.study.paper_values import LABEL, PAPER, TITLES, PaperValue, paper_value
from dinorankclip.writeup.best_orders import best_orders
from dinorankclip.writeup.cost_tables import cost_tables
from dinorankclip.writeup.numbers import MISSING
from dinorankclip.writeup.paper_words import about_paper, digits_for, paper_words
from dinorankclip.writeup.plain_table import PlainTable
from dinorankclip.writeup.study_material import StudyMaterial

TITLE = "The paper's values that this study has no cell for"

Left = dict[tuple[str, str], PaperValue]  # (row, column) → value, of one table


@dataclass(frozen=True)
class PaperOnly:
    about: str
    tables: list[PlainTable]


def paper_only(material: StudyMaterial) -> PaperOnly:
    """A grid for each table of the paper that has values which no table of the study shows."""
    beside = [value for table in material.tables for row in table.rows for value in row.paper if value is not None]
    beside += [value for plain in (*best_orders(material), *cost_tables(material)) for value in plain.paper]
    shown = {value.place for value in beside}
    left = {label: found for label in PAPER if (found := _left(label, shown))}
    about = (
        f"{about_paper([value for values in left.values() for value in values.values()])} Rows bear the names of the "
        f"cells that stand for them in our studies, where there are any. {MISSING}: stands in a table above, or is not "
        "printed by the paper."
    )
    return PaperOnly(about, [_grid(label, values) for label, values in left.items()])


def _left(label: str, shown: set[tuple[str, str, str] | None]) -> Left:
    return {
        (row, column): paper_value(label, row, column)
        for row, told in PAPER[label].items()
        for column in told
        if (label, row, column) not in shown
    }


def _grid(label: str, left: Left) -> PlainTable:
    """Rows and columns that are wholly shown elsewhere are left out."""
    rows, columns = (tuple(dict.fromkeys(place[at] for place in left)) for at in (0, 1))
    digits = {column: digits_for(left.get((row, column)) for row in rows) for column in columns}
    return PlainTable(
        label,
        f"{TITLES[label]} ({label})",
        ("", *(f"{column}, {LABEL}" for column in columns)),
        tuple((row, *(paper_words(left.get((row, column)), digits[column]) for column in columns)) for row in rows),
        note="",
    )
