"""Reads the numbers that a paper prints (`paper_values.json`) and writes them into tables under their label.

The file names each table or figure of the paper by its label:

    {"tab:main": {"title": …, "columns": ["T@1", …], "rows": {"clip": [9.06, …]},
                  "row_of_cell": {"rank-2": "2"}, "black": [{"rows": ["clip"], "columns": ["T@1"]}]}}

A row bears the name of the cell that stands for it in our studies; `row_of_cell` names the row where the two differ.
`black` selects the values that the paper prints as results (without `rows` or `columns`: all of them). All other values
are projections by the paper's own statement. Nothing may print a value without `dinorankclip.methods.LABEL`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dinorankclip.formatting import MISSING
from dinorankclip.methods import LABEL

IN_BLACK = "‡"
Rows = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class PaperValue:
    """One number of the paper. `black`: printed as a result. `place`: table, row and column; None for a number that we
    worked out of several."""

    value: float
    black: bool
    place: tuple[str, str, str] | None = None


class PaperValues(Mapping[str, Rows]):
    """All printed numbers of a paper: label of the table → row → column → number."""

    def __init__(self, path: Path) -> None:
        self._tables: dict[str, Rows] = {}
        self.titles: dict[str, str] = {}
        self._row_of_cell: dict[str, Mapping[str, str]] = {}
        self._black: dict[str, list[Mapping[str, Sequence[str]]]] = {}
        for label, table in json.loads(path.read_text(encoding="utf-8")).items():
            columns, rows = table.pop("columns"), table.pop("rows")
            for row, numbers in rows.items():
                if len(numbers) != len(columns):
                    raise ValueError(f"{path}: {label}, {row}: {len(numbers)} numbers for {len(columns)} columns")
            self._tables[label] = {row: dict(zip(columns, map(float, numbers))) for row, numbers in rows.items()}
            self.titles[label], self._black[label] = table.pop("title"), table.pop("black")
            self._row_of_cell[label] = table.pop("row_of_cell", {})
            named = {name for part in self._black[label] for name in (*part.get("rows", ()), *part.get("columns", ()))}
            unknown = [*table, *(named | set(self._row_of_cell[label].values())) - {*rows, *columns}]
            if unknown:
                raise ValueError(f"{path}: {label}: unknown keys, rows or columns: {', '.join(sorted(unknown))}")

    def __getitem__(self, label: str) -> Rows:
        return self._tables[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def row_of(self, label: str, cell: str) -> str:
        """Return the row that stands beside a cell; the table need not have it."""
        return self._row_of_cell[label].get(cell, cell)

    def in_black(self, label: str, row: str, column: str) -> bool:
        return any(
            row in part.get("rows", (row,)) and column in part.get("columns", (column,)) for part in self._black[label]
        )

    def value(self, label: str, row: str, column: str) -> PaperValue:
        return PaperValue(self[label][row][column], self.in_black(label, row, column), (label, row, column))

    def beside(self, label: str, cell: str, columns: Mapping[str, str]) -> dict[str, PaperValue]:
        """Return the values beside a cell. `columns`: our heading → the paper's column; what the paper lacks is left
        out."""
        row = self.row_of(label, cell)
        printed = self[label].get(row, {})
        return {heading: self.value(label, row, column) for heading, column in columns.items() if column in printed}

    def gain(self, label: str, column: str, row: str, over: str) -> float:
        """Return the printed difference of two rows, in the column's own unit."""
        return round(self[label][row][column] - self[label][over][column], 6)


def paper_words(value: PaperValue | None, digits: int | None = None) -> str:
    """Write a value as `11.30`, or `9.06 ‡` in black. Shares are in percent already. Without `digits`, the value has as
    many as it needs."""
    if value is None:
        return MISSING
    number = f"{value.value:g}" if digits is None else f"{value.value:.{digits}f}"
    return f"{number} {IN_BLACK}" if value.black else number


def digits_for(values: Iterable[PaperValue | None]) -> int:
    """Return the number of decimals that the longest value of a column needs."""
    return max((len(f"{value.value:.6f}".rstrip("0").split(".")[1]) for value in values if value), default=0)


def about_paper(values: Iterable[PaperValue]) -> str:
    """Return the sentences that must stand below a table with these values."""
    colours = {value.black for value in values}
    sentences = [f"“{LABEL}”: the paper's numbers, of other data and models; none was measured here."]
    if False in colours:
        which = "Those without a mark" if True in colours else "They"
        sentences.append(
            f"{which} are projections by its own statement (red), “and will be replaced once the runs complete”."
        )
    if True in colours:
        sentences.append(f"{IN_BLACK}: printed as a result (black); of its baselines it says that they were retrained.")
    return " ".join(sentences)
