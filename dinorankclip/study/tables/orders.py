"""The Plackett–Luce order: without a teacher, with one, and the paper's curve, which mixes the two; heads and stages.

What a step of each order costs stands in docs/bench (`study.bench_figures`), never in these tables.
"""

from __future__ import annotations

from ..cell_list import QUICK
from ..measures import Measures
from ..paper_values import projected
from ..table_shapes import Column, Experiment, Row
from . import columns

PLAIN = ("clip", "rankclip", "rank-2", "rank-3", "rank-4", "rank-5")
WITH_TEACHER = ("full-0", "full-1", "full-2", "full", "full-4", "full-5")
MIXED = ("clip", "rankclip", "full-2", "full", "full-4", "full-5")  # as the paper's curve is made
_NAMES = {0: "0 (CLIP)", 1: "1 (RankCLIP)"}


def _columns(measures: Measures) -> tuple[Column, ...]:
    return (
        *columns.headline(measures),
        Column(measures.recall("i2t", 1), "i→t R@1"),
        Column(measures.recall("t2i", 1), "t→i R@1"),
        *columns.ranking(measures),
        columns.cone(measures),
    )


def plain(measures: Measures, highest: int = 5, name: str = "orders-plain") -> Experiment:
    rows = tuple(Row(_NAMES.get(order, str(order)), cell) for order, cell in enumerate(PLAIN[: highest + 1]))
    return Experiment(
        name,
        "Order sweep without the teacher",
        rows,
        _columns(measures),
        reference="rankclip",
        note="Nothing differs between these rows but the order. One whose relative spread ends below 1e-3 is inert, "
        "whatever its row says.",
    )


def with_teacher(measures: Measures, name: str = "orders-teacher") -> Experiment:
    return Experiment(
        name,
        "Order sweep with teacher and fusion",
        tuple(Row(str(order), cell) for order, cell in enumerate(WITH_TEACHER)),
        _columns(measures),
        reference="full-1",
        note="Order 0 here is CLIP with students, fusion and teacher; order 1 is RankCLIP with them.",
    )


def mixed(measures: Measures, name: str = "orders-paper") -> Experiment:
    wanted = {columns.TOP1: "T@1", columns.SHIFT: "InR"}
    return Experiment(
        name,
        "The paper's order curve: orders 0 and 1 plain, the others with teacher and fusion",
        tuple(
            Row(_NAMES.get(order, f"{order} (full)"), cell, projected("tab:cost-accuracy", str(order), wanted))
            for order, cell in enumerate(MIXED)
        ),
        _columns(measures),
        reference="rankclip",
        note="The paper draws this as one curve over the order. From 1 to 2 the teacher, both students and the fusion "
        "come in with the order, so the curve is no ablation of the order; the two sweeps above are. Its ImageNet-R "
        "column stands beside our mean over renditions.",
    )


def best_order(measures: Measures, name: str = "best-order") -> Experiment:
    """Rows as in the sweep without teacher, a column for each suite: the reader looks for each column's best row."""
    suites = (
        columns.top1(measures),
        columns.shift(measures),
        Column(measures.recall("i2t", 1), "i→t R@1"),
        Column(measures.recall("t2i", 1), "t→i R@1"),
        Column(measures.coarse_probe, f"{measures.coarse} probe" if measures.several_fine else "kinds probe"),
        columns.fine(measures),
    )
    rows = [Row(f"{order} plain", cell) for order, cell in enumerate(PLAIN)]
    rows += [Row(f"{order} with teacher", cell) for order, cell in enumerate(WITH_TEACHER)]
    return Experiment(
        name,
        "Best order of each suite",
        tuple(rows),
        suites,
        reference="rank-3",
        note="The paper names order 3 for all suites but STL10 and gives the scores of the full model.",
    )


def quick_heads(measures: Measures, name: str = "quick-heads") -> Experiment:
    faster = f"heads {QUICK:g} times as fast"
    return Experiment(
        name,
        "Orders whose heads can learn in a short run",
        (
            Row("1 (RankCLIP)", "rankclip"),
            Row("2", "rank-2"),
            Row(f"2, {faster}", "rank-2-quick"),
            Row("3", "rank-3"),
            Row(f"3, {faster}", "rank-3-quick"),
            Row("full (order 3)", "full"),
            Row(f"full, {faster}", "full-quick"),
        ),
        _columns(measures),
        reference="rankclip",
        note="At the trunk's learning rate, in as many steps as these, heads and gates hardly recover transitions that "
        "were planted; at a higher one they do (docs/bench/planted). The factor was chosen on those made-up lists; the "
        "quick rows differ in it on purpose.",
        unmatched=dict.fromkeys(("rank-2-quick", "rank-3-quick", "full-quick"), ("optim.heads_rate",)),
    )


def head_width(measures: Measures, name: str = "head-width") -> Experiment:
    return Experiment(
        name,
        "Width of the transition heads",
        (Row("h = 16", "full-h16"), Row("h = 32", "full"), Row("h = 64", "full-h64")),
        (*columns.headline(measures), *columns.ranking(measures)),
        reference="full",
        note="The paper announces this sweep for a supplement and prints no values.",
    )


def warm_start(measures: Measures, name: str = "warm-start") -> Experiment:
    return Experiment(
        name,
        "Staged warm-start of the orders",
        (Row("staged", "full"), Row("all orders from the start", "full-unstaged")),
        (*columns.headline(measures), *columns.ranking(measures)),
        reference="full",
        note="The paper's warm-start: order r is frozen before epoch 3(r-1). Here the epochs are scaled down to the "
        "run's length. The paper calls the heads sensitive to it and prints no values.",
    )
