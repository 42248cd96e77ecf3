"""Which order is best on each suite, of both sweeps, and whether it can be told from order 3."""

from __future__ import annotations

from dinorankclip.study.chances import at_chance, chance_of
from dinorankclip.study.effects import paired, summary
from dinorankclip.study.paper_values import LABEL, PaperValue, paper_value
from dinorankclip.study.results import Results
from dinorankclip.study.table_shapes import Column
from dinorankclip.study.tables.orders import PLAIN, WITH_TEACHER
from dinorankclip.study.verdicts import ALPHA, p_value
from dinorankclip.writeup.numbers import MISSING, form_of
from dinorankclip.writeup.paper_words import paper_words
from dinorankclip.writeup.plain_table import PlainTable
from dinorankclip.writeup.study_material import StudyMaterial

SWEEPS = {"plain": PLAIN, "with teacher": WITH_TEACHER}
CLAIMED = 3
# What of the paper's stands beside our suites, by the column's place in the table `best-order`.
_PAPER_SUITES = ("ImageNet1K", "ImageNet-R", "COCO i2t R@1", "COCO t2i R@1", "CIFAR-100", "CUB-200")
_PAPER_COLUMNS = ("best order", "score")


def best_orders(material: StudyMaterial) -> list[PlainTable]:
    """None in a study that has no such table."""
    table = material.table("best-order")
    if table is None:
        return []
    beside = {
        suite: [paper_value("tab:per-dataset-order", suite, what) for what in _PAPER_COLUMNS] for suite in _PAPER_SUITES
    }
    rows = [
        row
        for column, paper in zip(table.columns, beside.values(), strict=True)
        for sweep, cells in SWEEPS.items()
        if (row := _row(material.results, column, sweep, cells, paper)) is not None
    ]
    return [
        PlainTable(
            "best-order-named",
            "Best order of each suite, by name",
            (
                "suite", "orders", "n", "best", "score there", "chance", f"minus order {CLAIMED}",
                f"told from {CLAIMED}", f"best, {LABEL}", f"score there, {LABEL}",
            ),
            tuple(rows),
            "Of the seeds that all orders of a sweep have; the smallest of equal orders. The difference is of all "
            f"seeds that the best order and order {CLAIMED} share. “No”: p > 5 %, corrected for being the best of "
            f"{len(PLAIN) - 1} rivals, or n < 3: any order may then come out best. “Near chance”: no order is shown to "
            "be a point above it. The best of six noisy means is also a little too good. The paper's suites are "
            f"{', '.join(_PAPER_SUITES[:-1])} and {_PAPER_SUITES[-1]}.",
            tuple(value for values in beside.values() for value in values),
        )
    ]  # fmt: skip


def _row(
    results: Results, column: Column, sweep: str, cells: tuple[str, ...], paper: list[PaperValue]
) -> tuple[str, ...] | None:
    common = results.on_common_seeds(cells)
    values = {order: found for order, cell in enumerate(cells) if (found := common.values(cell, column.score))}
    if len(values) < len(cells):
        return None  # the best of some orders is not the best of all
    means = {order: summary(found).mean for order, found in values.items()}
    best = max(means, key=lambda order: (means[order], -order))
    form, chance = form_of(means.values(), column.percent), chance_of(results, column.score)
    difference, told = MISSING, MISSING
    if best != CLAIMED:
        effect = paired(*(results.values(cells[order], column.score) for order in (CLAIMED, best)))
        difference = form.with_half(effect.mean, effect.low, effect.high, sign=True)
        told = "yes" if p_value(effect) * (len(cells) - 1) <= ALPHA else "no"
        if column.percent and at_chance(results, cells, column.score):
            told = "near chance"
    return (
        column.heading, sweep, str(len(values[best])), str(best), form.plain(means[best]),
        MISSING if chance is None else form.plain(chance), difference, told, *map(paper_words, paper),
    )  # fmt: skip
