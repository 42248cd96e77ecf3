"""Scores over the number of different training pairs, and whether the gap between two methods widens."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from dinorankclip.study.effects import paired
from dinorankclip.study.paper_values import LABEL, PAPER
from dinorankclip.study.results import Results
from dinorankclip.study.table_shapes import Column
from dinorankclip.writeup.figures.drawn import Drawn, Unavailable
from dinorankclip.writeup.figures.seed_lines import counts, draw_points, factor_of, measured, seeds_told
from dinorankclip.writeup.figures.style import BLACK, GREY, OF_METHOD, new_figure

METHODS = {"clip": ("CLIP", "^"), "rankclip": ("RankCLIP", "s"), "full": ("full method", "o")}
_SHIFT = {"clip": 0.97, "rankclip": 1.0, "full": 1.03}  # so that intervals do not hide each other

CAPTION = (
    "Data scaling: the same number of steps on fewer different pairs, over the seeds that all cells have ({counts}); "
    "bars, if there are any, are 95 % t-intervals. Middle: "
    "full method minus RankCLIP, paired by seed; the paper says that this gap widens. Right: the paper's own curves, "
    "with their gap; that of its method ends in a projection by its own statement."
)


def data_scaling(results: Results, column: Column, all_pairs: int) -> Drawn:
    """`all_pairs` is what runs saw whose settings name no smaller number."""
    by_size = {method: _sizes(results, method, all_pairs) for method in METHODS}
    sizes = sorted({size for cells in by_size.values() for size in cells})
    if len(sizes) < 2:
        raise Unavailable("data scaling needs finished runs on at least two amounts of data")
    cells = [cell for found in by_size.values() for cell in found.values()]
    results = results.on_common_seeds(cells)
    figure = new_figure(2.9)
    scores, gap, paper = figure.subplots(1, 3)
    factor = factor_of(column)
    for method, (label, marker) in METHODS.items():
        found = [by_size[method].get(size) for size in sizes]
        values = [measured(results, [cell], column.score)[0] if cell else None for cell in found]
        beside = [size * _SHIFT[method] for size in sizes]  # on a logarithmic axis
        draw_points(scores, beside, values, factor, color=OF_METHOD[method], marker=marker, label=label)
    scores.set(title=column.heading, ylabel="percent" if column.percent else "")
    _draw_gap(gap, results, column, by_size, sizes, factor)
    _draw_paper(paper)
    for axes, ticks in ((scores, sizes), (gap, sizes)):
        _size_axis(axes, ticks, "different pairs")
    title = seeds_told(results, cells)
    handles = scores.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=3, title=title, title_fontsize=8.5)
    return Drawn("data-scaling", "Data scaling", CAPTION.format(counts=counts(results, cells)), figure)


def _sizes(results: Results, method: str, all_pairs: int) -> dict[int, str]:
    """Number of different pairs → cell."""
    found = {}
    for cell in results.cells():
        if cell == method or (cell.startswith(f"{method}-n") and cell[len(method) + 2 :].isdigit()):
            run = next(iter(results.of(cell).values()))
            found[run.settings["reading"].get("train_items") or all_pairs] = cell
    return found


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
    told = PAPER["fig:scaling"]
    sizes = [float(size) for size in told["clip"]]
    for method, (_, marker) in METHODS.items():
        axes.plot(sizes, list(told[method].values()), color=OF_METHOD[method], marker=marker, linestyle=":")
    gaps = [ours - theirs for ours, theirs in zip(told["full"].values(), told["rankclip"].values())]
    for size, gap, top in zip(sizes, gaps, told["full"].values()):
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
