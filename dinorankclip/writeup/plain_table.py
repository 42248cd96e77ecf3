"""A table of plain texts, for Markdown and HTML alike: for what does not fit the grid of cells and scores."""

from __future__ import annotations

from dataclasses import dataclass

from dinorankclip.study.paper_values import PaperValue
from dinorankclip.writeup.paper_words import about_paper
from dinorankclip.writeup.table_grids import wrapped


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
