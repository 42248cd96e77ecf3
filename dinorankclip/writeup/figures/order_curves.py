"""Scores over the order of the ranking: plain, with teacher and fusion, and mixed of both, as the paper's curve is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from dinorankclip.study.chances import chance_of
from dinorankclip.study.paper_values import LABEL, PAPER
from dinorankclip.study.results import Results
from dinorankclip.study.table_shapes import Column
from dinorankclip.study.tables.orders import MIXED, PLAIN, WITH_TEACHER
from dinorankclip.writeup.figures.drawn import Drawn, Unavailable
from dinorankclip.writeup.figures.seed_lines import counts, draw_points, factor_of, measured, seeds_told
from dinorankclip.writeup.figures.style import BLACK, BLUE, GREY, ORANGE, RED, new_figure

ORDERS = tuple(range(6))
MOST_PANELS = 5

CAPTION = (
    "Order sweep, over the seeds that all orders have ({counts}); bars, if there are any, are 95 % t-intervals over "
    "seeds. Blue: the ranking loss alone (order 0 is CLIP, 1 is RankCLIP). Orange: the same orders with teacher, "
    "students and fusion. Grey band: our values, put together as the paper's curve is: orders 0 and 1 are plain while "
    "the others have the teacher, so that the step from 1 to 2 is a change of model, too. Dotted: chance, of shares. "
    "{about} Last panel: the paper's own values, from order 2 on projections by its own statement."
)
_MIXED = "plain at 0 and 1, full above (the paper's mix), our values"


def order_curves(results: Results, columns: Sequence[Column], about: str = "") -> Drawn:
    """A panel for each column, and one for what the paper prints; `about` explains columns."""
    results = results.on_common_seeds(PLAIN + WITH_TEACHER)
    columns = [column for column in columns if any(measured(results, PLAIN + WITH_TEACHER, column.score))][:MOST_PANELS]
    if not columns:
        raise Unavailable("the order curves need finished runs of at least one order")
    panels = len(columns) + 1
    wide = min(3, panels)
    high = -(-panels // wide)
    figure = new_figure(0.6 + 2.35 * high)
    grid = figure.subplots(high, wide, squeeze=False)
    flat = [axes for row in grid for axes in row]
    for axes, column in zip(flat, columns):
        _panel(axes, results, column)
    _paper_panel(flat[len(columns)])
    for axes in flat[panels:]:
        axes.set_axis_off()
    for row in grid:
        row[0].set_ylabel("percent")
    named: dict[str, Any] = {}
    for axes in flat[: len(columns)]:
        named |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels())}
    seeds = seeds_told(results, PLAIN + WITH_TEACHER)
    handles, labels = list(named.values()), list(named)
    figure.legend(handles, labels, loc="outside lower center", ncols=2, title=seeds, title_fontsize=8.5)
    told = CAPTION.format(counts=counts(results, PLAIN + WITH_TEACHER), about=about).replace("  ", " ")
    return Drawn("order-curves", "Scores over the order", told, figure)


def _panel(axes: Axes, results: Results, column: Column) -> None:
    factor = factor_of(column)
    mixed = [(order, factor * one.mean) for order, one in zip(ORDERS, measured(results, MIXED, column.score)) if one]
    axes.plot(*zip(*mixed), color=GREY, alpha=0.28, linewidth=8, solid_capstyle="round", label=_MIXED)
    plain, taught = (measured(results, cells, column.score) for cells in (PLAIN, WITH_TEACHER))
    draw_points(axes, ORDERS, plain, factor, -0.05, color=BLUE, marker="o", label="plain")
    draw_points(axes, ORDERS, taught, factor, 0.05, color=ORANGE, marker="s", label="with teacher and fusion")
    chance = chance_of(results, column.score)
    if column.percent and chance is not None:  # of τ-b it is 0, too far off to be in the picture
        axes.axhline(factor * chance, color=BLACK, linewidth=1.2, linestyle=":", label="chance")
    axes.set_title(column.heading if column.percent else f"{column.heading} (number)")
    _order_axis(axes)


def _paper_panel(axes: Axes) -> None:
    told = PAPER["tab:cost-accuracy"]
    for name, label, look in (("T@1", "ImageNet1K", (RED, "^")), ("InR", "ImageNet-R", (GREY, "v"))):
        values = [told[str(order)][name] for order in ORDERS]
        axes.plot(ORDERS, values, color=look[0], marker=look[1], linestyle=":", label=label)
        axes.annotate(label, (ORDERS[-1], values[-1]), (0, -12), textcoords="offset points", ha="right", fontsize=8)
    axes.set(title=LABEL, ylabel="T@1, percent")
    axes.margins(y=0.16)
    _order_axis(axes)


def _order_axis(axes: Axes) -> None:
    axes.set_xticks(ORDERS)
    axes.set_xlabel("order R")
    axes.grid(axis="y")
