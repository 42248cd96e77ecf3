"""What a reader must know to read a table: its own words, and rules that tables share. A page of many tables tells the
rules once.
"""

from __future__ import annotations

from collections.abc import Sequence

from dinorankclip.study.effects import FEWEST_SEEDS
from dinorankclip.writeup.numbers import MISSING
from dinorankclip.writeup.paper_words import about_paper
from dinorankclip.writeup.table_grids import AT_CHANCE, SHOWN_EFFECT
from dinorankclip.writeup.tables import UNMATCHED, Table, teachers

READING = "Reading the tables"


def notes(table: Table) -> list[str]:
    """All that a table needs where it stands alone."""
    return [*_about(table), *reading_notes([table]), *_of_rows(table)]


def own_notes(table: Table) -> list[str]:
    """What is said of this table alone: what it compares, what it lacks, who taught its rows."""
    return [*_about(table), *_of_rows(table)]


def _about(table: Table) -> list[str]:
    return [table.experiment.note] if table.experiment.note else []


def _of_rows(table: Table) -> list[str]:
    found = []
    lacks = sorted({measured.lacks for row in table.rows for measured in row.measured if measured.lacks})
    if lacks:
        found.append(f"{MISSING}: {' or '.join(lacks)}.")
    found += [f"Teacher of {', '.join(labels)}: {teacher}." for teacher, labels in teachers([table]).items()]
    return found


def reading_notes(tables: Sequence[Table]) -> list[str]:
    """The rules that at least one of the tables needs."""
    found = []
    rows = [row for table in tables for row in table.rows]
    if max((row.n for row in rows), default=0) >= FEWEST_SEEDS:
        found.append(
            "Means over n seeds ± half of the 95 % t-interval; differences are paired by seed, and those whose "
            f"interval leaves zero out are marked {SHOWN_EFFECT} (by chance alone about one of twenty would be)."
        )
        found.append(
            "Bold: the best of its column, if n ≥ 3 and its paired interval to every other row leaves zero out; "
            "nothing is bold otherwise. A difference that is the same for every seed has no interval: six seeds "
            "are needed for a mark."
        )
    if any(len({row.n for row in table.rows if row.n}) > 1 for table in tables):
        found.append("Means of rows with different n are of different seeds: compare rows by their paired differences.")
    if any(0 < row.n < FEWEST_SEEDS for row in rows):
        found.append("n < 3: so few seeds have no interval, and nothing of them is bold.")
    if any(any(table.at_chance) for table in tables):
        found.append(
            f"{AT_CHANCE}: no row is shown to be a point above chance, by the lower end of its interval or, where n < "
            f"{FEWEST_SEEDS}, by its mean. Differences there are of models that can hardly do what is asked, and "
            "nothing is bold."
        )
    told = [value for row in rows for value in row.paper if value is not None]
    if told:
        found.append(about_paper(told))
    if any(row.unmatched for row in rows):
        found.append(
            f"{UNMATCHED} differs knowingly in budget or parameters and does not compete for bold; where its mean is "
            "the better one, nothing is bold."
        )
    return found
