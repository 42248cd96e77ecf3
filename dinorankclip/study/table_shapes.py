"""What a table of the study is made of: rows are cells, columns are scores, one row is what the others pair against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .paper_values import PaperValue


@dataclass(frozen=True)
class Column:
    """`score` is a name in `RunRecord.scores`. Percent: a share, shown times 100. `over`: the share that it is divided
    by; where that is at chance, the quotient says nothing and is not shown."""

    score: str
    heading: str
    percent: bool = True
    better: Literal["higher", "lower"] | None = "higher"
    over: str | None = None


@dataclass(frozen=True)
class Row:
    """`paper`: column heading → the paper's value, where it has one (shown under its label)."""

    label: str
    cell: str
    paper: Mapping[str, PaperValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """`reference` is the cell to pair against; `unmatched` cells knowingly differ from it in the settings named there,
    and `note` says why."""

    name: str
    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    reference: str
    note: str = ""
    unmatched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
