"""Draws scores and costs over the order of the ranking, and scores over the amount of data.

Costs come from the records of the benches; a study's own runs share cores and are not timed. Other figures use
`summaries` and `counts`, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from dinorankclip.methods import LABEL
from dinorankclip.report import figures
from dinorankclip.report.figures import BLACK, BLUE, COLOURS, GREY, MARKERS, METHOD_COLOURS, ORANGE, RED
from dinorankclip_studies.papers.dinorankclip import PAPER
from dinorankclip_studies.papers.dinorankclip.paper_tables import MIXED, PLAIN, WITH_TEACHER
from dinorankclip_studies.results import Results, chance_of
from dinorankclip_studies.study import Column
from dinorankclip_studies.verdicts import FEWEST_SEEDS, Effect, Summary, paired, summary


def summaries(results: Results, cells: Sequence[str], score: str) -> list[Summary | None]:
    """Summarise a score of each cell; None where no finished run has the score."""
    return [summary(values) if (values := results.values(cell, score)) else None for cell in cells]


def draw_points(
    axes: Axes, xs: Sequence[float], points: Sequence[Summary | Effect | None], factor: float, **look: Any
) -> None:
    """Draw a line through the means with intervals as bars; missing points are left out."""
    present = {float(x): point for x, point in zip(xs, points) if point is not None}
    means = [factor * point.mean for point in present.values()]
    halves = [factor * (point.half or 0.0) for point in present.values()]
    if any(halves):
        axes.errorbar([*present], means, halves, capsize=2.5, elinewidth=1.1, **look)
    elif present:
        axes.plot([*present], means, **look)  # the legend must not show bars, either


def factor_of(column: Column) -> float:
    return 100.0 if column.percent else 1.0


def seeds_title(results: Results, cells: Sequence[str]) -> str:
    """Title a figure's legend with n and the meaning of its bars."""
    several = any(len(results.of(cell)) >= FEWEST_SEEDS for cell in cells)
    return f"{counts(results, cells)}; " + ("bars: 95 % t-intervals" if several else "too few seeds for intervals")


def counts(results: Results, cells: Sequence[str]) -> str:
    """Write the number of seeds behind a figure: `n = 3` or `n = 3 to 8`."""
    numbers = [len(results.of(cell)) for cell in cells if results.of(cell)] or [0]
    return f"n = {min(numbers)}" + (f" to {max(numbers)}" if min(numbers) < max(numbers) else "")


ORDERS = tuple(range(6))
MOST_PANELS = 5

ORDERS_CAPTION = (
    "Order sweep, over the seeds that all orders have ({counts}); bars, if there are any, are 95 % t-intervals over "
    "seeds. Blue: the ranking loss alone (order 0 is CLIP, 1 is RankCLIP). Orange: the same orders with teacher, "
    "students and fusion. Grey band: our values, put together as the paper's curve is: orders 0 and 1 are plain while "
    "the others have the teacher, so that the step from 1 to 2 is a change of model, too. Dotted: chance, of shares. "
    "{about} Last panel: the paper's own values, from order 2 on projections by its own statement."
)
_MIXED = "plain at 0 and 1, full above (the paper's mix), our values"


def order_curves(results: Results, columns: Sequence[Column], about: str = "") -> figures.Drawn:
    """Draw the orders plain, with teacher and fusion, and mixed as the paper's curve is: a panel for each column, and a
    panel of the paper's values. `about` explains columns."""
    results = results.on_common_seeds(PLAIN + WITH_TEACHER)
    cells = PLAIN + WITH_TEACHER
    columns = [column for column in columns if any(summaries(results, cells, column.score))][:MOST_PANELS]
    if not columns:
        raise figures.Unavailable("the order curves need finished runs of at least one order")
    wide = min(3, len(columns) + 1)
    high = -(-(len(columns) + 1) // wide)
    figure = figures.new_figure(0.6 + 2.35 * high)
    grid = figure.subplots(high, wide, squeeze=False)
    named: dict[str, Any] = {}
    for axes, column in zip(grid.flat, columns):
        _panel(axes, results, column)
        named |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels())}
    _paper_panel(grid.flat[len(columns)])
    for axes in grid.flat[len(columns) + 1 :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel("percent")
    look = {"ncols": 2, "title": seeds_title(results, cells), "title_fontsize": 8.5}
    figure.legend(list(named.values()), list(named), loc="outside lower center", **look)
    caption = ORDERS_CAPTION.format(counts=counts(results, cells), about=about).replace("  ", " ")
    return figures.Drawn("order-curves", "Scores over the order", caption, figure)


def _panel(axes: Axes, results: Results, column: Column) -> None:
    factor = factor_of(column)
    points = zip(ORDERS, summaries(results, MIXED, column.score))
    mixed = [(order, factor * point.mean) for order, point in points if point is not None]
    axes.plot(*zip(*mixed), color=GREY, alpha=0.28, linewidth=8, solid_capstyle="round", label=_MIXED)
    curves = ((PLAIN, -0.05, BLUE, "o", "plain"), (WITH_TEACHER, 0.05, ORANGE, "s", "with teacher and fusion"))
    for cells, shift, colour, marker, label in curves:
        xs, means = [order + shift for order in ORDERS], summaries(results, cells, column.score)
        draw_points(axes, xs, means, factor, color=colour, marker=marker, label=label)
    chance = chance_of(results, column.score)
    if column.percent and chance is not None:  # the chance of τ-b is 0, too far off for the picture
        axes.axhline(factor * chance, color=BLACK, linewidth=1.2, linestyle=":", label="chance")
    axes.set_title(column.heading if column.percent else f"{column.heading} (number)")
    _order_axis(axes)


def _paper_panel(axes: Axes) -> None:
    printed = PAPER.values["tab:cost-accuracy"]
    for name, label, colour, marker in (("T@1", "ImageNet1K", RED, "^"), ("InR", "ImageNet-R", GREY, "v")):
        values = [printed[str(order)][name] for order in ORDERS]
        axes.plot(ORDERS, values, color=colour, marker=marker, linestyle=":", label=label)
        axes.annotate(label, (ORDERS[-1], values[-1]), (0, -12), textcoords="offset points", ha="right", fontsize=8)
    axes.set(title=LABEL, ylabel="T@1, percent")
    axes.margins(y=0.16)
    _order_axis(axes)


def _order_axis(axes: Axes) -> None:
    axes.set_xticks(ORDERS)
    axes.set_xlabel("order R")
    axes.grid(axis="y")


COST_CAPTION = (
    "Cost over the order. Left: seconds of the ranking loss alone, forward and backward, for lists of all items of a "
    "batch of B. Middle: memory that it holds above its inputs. {step}"
)
_STEP = (
    "Right: a whole training step beside one of order 0 ({title}; median and range over alternating rounds), and "
    "what the paper prints for another machine. "
)


def cost_over_order(bench: Path) -> figures.Drawn:
    """Draw time and memory over the order. `bench` is the folder with `ranking-DATE.json` and, if that bench was run,
    `orders-DATE.json`."""
    ranking = _newest(bench, "ranking", lambda record: "loss" in record["results"])
    if ranking is None:
        raise figures.Unavailable(f"there is no record of the ranking bench in {bench} (make bench-ranking)")
    orders = _newest(bench, "orders")
    step = _sweep(orders) if orders else None
    figure = figures.new_figure(2.9)
    axes = figure.subplots(1, 3 if step else 2)
    _alone(axes[0], ranking, "seconds", 1.0, "seconds")
    _alone(axes[1], ranking, "bytes", 1e-6, "MB")
    if step:
        _steps(axes[2], step)
        figure.legend(*axes[2].get_legend_handles_labels(), loc="outside lower right", ncols=3)
    caption = COST_CAPTION.format(step=_STEP.format(title=step["title"]) if step else "")
    dates = ", ".join(record["date"] for record in (ranking, orders if step else None) if record)
    return figures.Drawn("cost-over-order", "Cost over the order", f"{caption.strip()} Measured {dates}.", figure)


def _newest(bench: Path, name: str, fits: Callable[[dict], bool] = lambda record: True) -> dict[str, Any] | None:
    paths = sorted(bench.glob(f"{name}-[0-9]*.json"), reverse=True)
    return next(
        (record for record in (json.loads(path.read_text(encoding="utf-8")) for path in paths) if fits(record)), None
    )


def _alone(axes: Axes, record: dict[str, Any], what: str, factor: float, unit: str) -> None:
    lines: dict[int, dict[int, float]] = {}
    for name, cell in record["results"]["loss"].items():
        items, order = map(int, name.split("/"))
        lines.setdefault(items, {})[order] = factor * cell[what]
    for (items, values), colour, marker in zip(sorted(lines.items()), COLOURS, MARKERS):
        there = sorted(values)
        axes.plot(there, [values[order] for order in there], color=colour, marker=marker)
        # The label stands before the first point: lines lie well apart there, and not all reach the last order.
        axes.annotate(
            f"B = {items}", (there[0], values[there[0]]), (-7, 0), textcoords="offset points", ha="right", va="center",
            fontsize=7.5, color=colour,
        )  # fmt: skip
    axes.set(yscale="log", xlabel="order R", ylabel=unit, title=f"ranking loss, {unit}")
    axes.set_xticks(sorted({order for values in lines.values() for order in values}))
    axes.set_xlim(left=-1.2)
    axes.grid(axis="y")


def _sweep(record: dict[str, Any]) -> dict[str, Any] | None:
    """Return the comparison with the most orders."""
    sweeps = [entry for entry in record["comparisons"] if sum(side.startswith("order ") for side in entry["sides"]) > 2]
    return max(sweeps, key=lambda entry: len(entry["sides"]), default=None)


def _steps(axes: Axes, comparison: dict[str, Any]) -> None:
    # Points are shifted, so that ranges do not hide each other.
    kinds = (("order ", "plain", BLUE, "o", -0.07), ("full method, order ", "full method", RED, "s", 0.07))
    for prefix, label, colour, marker, shift in kinds:
        sides = {
            int(name.removeprefix(prefix)): side["ratio"]
            for name, side in comparison["sides"].items()
            if name.startswith(prefix)
        }
        orders = sorted(sides)
        least, medians, most = ([sides[order][end] for order in orders] for end in ("least", "median", "most"))
        reach = [np.subtract(medians, least), np.subtract(most, medians)]
        beside = [order + shift for order in orders]
        axes.errorbar(beside, medians, reach, color=colour, marker=marker, capsize=2.5, label=label)
    paper = PAPER.values["tab:cost-accuracy"]
    ratios = [paper[str(order)]["step ms"] / paper["0"]["step ms"] for order in ORDERS]
    axes.plot(ORDERS, ratios, color=GREY, marker="^", linestyle=":", label=LABEL)
    axes.set(xlabel="order R", ylabel="times order 0", title="training step")
    axes.set_xticks(range(6))
    axes.grid(axis="y")


METHODS = {"clip": ("CLIP", "^"), "rankclip": ("RankCLIP", "s"), "full": ("full method", "o")}
_SHIFT = {"clip": 0.97, "rankclip": 1.0, "full": 1.03}  # factors that keep intervals from hiding each other

SCALING_CAPTION = (
    "Data scaling: the same number of steps on fewer different pairs, over the seeds that all cells have ({counts}); "
    "bars, if there are any, are 95 % t-intervals. Middle: "
    "full method minus RankCLIP, paired by seed; the paper says that this gap widens. Right: the paper's own curves, "
    "with their gap; that of its method ends in a projection by its own statement."
)


def data_scaling(results: Results, column: Column, all_pairs: int) -> figures.Drawn:
    """Draw scores over the number of different training pairs, and the gap between two methods. `all_pairs`: the number
    of pairs of a run whose settings name no smaller number."""
    by_size = {method: _sizes(results, method, all_pairs) for method in METHODS}
    sizes = sorted({size for cells in by_size.values() for size in cells})
    if len(sizes) < 2:
        raise figures.Unavailable("data scaling needs finished runs on at least two amounts of data")
    cells = [cell for sizes_of_method in by_size.values() for cell in sizes_of_method.values()]
    results = results.on_common_seeds(cells)
    figure = figures.new_figure(2.9)
    scores, gap, paper = figure.subplots(1, 3)
    factor = factor_of(column)
    for method, (label, marker) in METHODS.items():
        of_size = [by_size[method].get(size) for size in sizes]
        values = [summaries(results, [cell], column.score)[0] if cell else None for cell in of_size]
        beside = [size * _SHIFT[method] for size in sizes]  # the axis is logarithmic
        draw_points(scores, beside, values, factor, color=METHOD_COLOURS[method], marker=marker, label=label)
    scores.set(title=column.heading, ylabel="percent" if column.percent else "")
    _draw_gap(gap, results, column, by_size, sizes, factor)
    _draw_paper(paper)
    for axes in (scores, gap):
        _size_axis(axes, sizes, "different pairs")
    handles, title = scores.get_legend_handles_labels(), seeds_title(results, cells)
    figure.legend(*handles, loc="outside lower center", ncols=3, title=title, title_fontsize=8.5)
    return figures.Drawn("data-scaling", "Data scaling", SCALING_CAPTION.format(counts=counts(results, cells)), figure)


def _sizes(results: Results, method: str, all_pairs: int) -> dict[int, str]:
    """Return the cell of each number of different pairs."""
    by_size = {}
    for cell in results.cells():
        if cell == method or (cell.startswith(f"{method}-n") and cell[len(method) + 2 :].isdigit()):
            run = next(iter(results.of(cell).values()))
            by_size[run.settings["reading"].get("train_items") or all_pairs] = cell
    return by_size


def _draw_gap(
    axes: Axes, results: Results, column: Column, by_size: dict[str, dict[int, str]], sizes: list[int], factor: float
) -> None:
    effects = []
    for size in sizes:
        cells = by_size["rankclip"].get(size), by_size["full"].get(size)
        pair = [results.values(cell, column.score) if cell else {} for cell in cells]
        effects.append(paired(*pair) if pair[0].keys() & pair[1].keys() else None)
    axes.axhline(0, color=GREY, linewidth=1)
    draw_points(axes, sizes, effects, factor, color=BLACK, marker="D")
    axes.set(title="full − RankCLIP", ylabel="points" if column.percent else "")


def _draw_paper(axes: Axes) -> None:
    printed = PAPER.values["fig:scaling"]
    sizes = [float(size) for size in printed["clip"]]
    for method, (_, marker) in METHODS.items():
        axes.plot(sizes, list(printed[method].values()), color=METHOD_COLOURS[method], marker=marker, linestyle=":")
    gaps = [ours - theirs for ours, theirs in zip(printed["full"].values(), printed["rankclip"].values())]
    for size, gap, top in zip(sizes, gaps, printed["full"].values()):
        axes.annotate(f"+{gap:.2f}", (size, top), (-4, 6), textcoords="offset points", ha="center", fontsize=7.5)
    axes.set(title=LABEL, ylabel="T@1, %")
    axes.margins(x=0.16, y=0.14)
    _size_axis(axes, sizes, "million pairs (ImageNet1K)")


def _size_axis(axes: Axes, sizes: Sequence[float], label: str) -> None:
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,g}" for size in sizes])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(label)
    axes.grid(axis="y")
