"""A table of plain texts, for Markdown and HTML alike: for what does not fit the grid of cells and scores."""

from __future__ import annotations

from dataclasses import dataclass

from dinorankclip.writeup.table_grids import wrapped


@dataclass(frozen=True)
class PlainTable:
    name: str
    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str

    def markdown(self) -> str:
        rows = [self.headings, ("---", *("--:" for _ in self.headings[1:])), *self.rows]
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        return "\n".join([f"## {self.title}", "", *lines, "", wrapped(self.note), "", ""])
