"""Time and memory over the order, from the records of the benches; a study's own runs share cores and are not timed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from dinorankclip.study.paper_values import LABEL, PAPER
from dinorankclip.writeup.figures.drawn import Drawn, Unavailable
from dinorankclip.writeup.figures.style import BLUE, COLOURS, GREY, MARKERS, RED, new_figure

CAPTION = (
    "Cost over the order. Left: seconds of the ranking loss alone, forward and backward, for lists of all items of a "
    "batch of B. Middle: memory that it holds above its inputs. {step}"
)
_STEP = (
    "Right: a whole training step beside one of order 0 ({title}; median and range over alternating rounds), and "
    "what the paper prints for another machine. "
)


def cost_over_order(bench: Path) -> Drawn:
    """`bench` is the folder with `ranking-DATE.json` and, if it was run, `orders-DATE.json`."""
    ranking = _newest(bench, "ranking", lambda record: "loss" in record["results"])
    if ranking is None:
        raise Unavailable(f"there is no record of the ranking bench in {bench} (make bench-ranking)")
    orders = _newest(bench, "orders")
    step = _sweep(orders) if orders else None
    figure = new_figure(2.9)
    axes = figure.subplots(1, 3 if step else 2)
    _alone(axes[0], ranking, "seconds", 1.0, "seconds")
    _alone(axes[1], ranking, "bytes", 1e-6, "MB")
    if step:
        _steps(axes[2], step)
        figure.legend(*axes[2].get_legend_handles_labels(), loc="outside lower right", ncols=3)
    told = CAPTION.format(step=_STEP.format(title=step["title"]) if step else "")
    dates = ", ".join(record["date"] for record in (ranking, orders if step else None) if record)
    return Drawn("cost-over-order", "Cost over the order", f"{told.strip()} Measured {dates}.", figure)


def _newest(
    bench: Path, name: str, fits: Callable[[dict[str, Any]], bool] = lambda record: True
) -> dict[str, Any] | None:
    paths = sorted(bench.glob(f"{name}-[0-9]*.json"), reverse=True)
    return next((record for record in (json.loads(path.read_text()) for path in paths) if fits(record)), None)


def _alone(axes: Axes, record: dict[str, Any], what: str, factor: float, unit: str) -> None:
    lines: dict[int, dict[int, float]] = {}
    for name, cell in record["results"]["loss"].items():
        items, order = map(int, name.split("/"))
        lines.setdefault(items, {})[order] = factor * cell[what]
    for (items, values), colour, marker in zip(sorted(lines.items()), COLOURS, MARKERS):
        there = sorted(values)
        axes.plot(there, [values[order] for order in there], color=colour, marker=marker)
        # Before the first point: there lines lie well apart, and not all of them reach the last order.
        axes.annotate(
            f"B = {items}", (there[0], values[there[0]]), (-7, 0), textcoords="offset points", ha="right", va="center",
            fontsize=7.5, color=colour,
        )  # fmt: skip
    axes.set(yscale="log", xlabel="order R", ylabel=unit, title=f"ranking loss, {unit}")
    axes.set_xticks(sorted({order for values in lines.values() for order in values}))
    axes.set_xlim(left=-1.2)
    axes.grid(axis="y")


def _sweep(record: dict[str, Any]) -> dict[str, Any] | None:
    """The comparison with the most orders."""
    found = [one for one in record["comparisons"] if sum(side.startswith("order ") for side in one["sides"]) > 2]
    return max(found, key=lambda one: len(one["sides"]), default=None)


def _steps(axes: Axes, comparison: dict[str, Any]) -> None:
    # Beside each other, so that ranges do not hide each other.
    kinds = (("order ", "plain", BLUE, "o", -0.07), ("full method, order ", "full method", RED, "s", 0.07))
    for prefix, label, colour, marker, shift in kinds:
        found = {name: side["ratio"] for name, side in comparison["sides"].items() if name.startswith(prefix)}
        sides = {int(name.removeprefix(prefix)): ratio for name, ratio in found.items()}
        orders = sorted(sides)
        medians = [sides[order]["median"] for order in orders]
        below = [sides[order]["median"] - sides[order]["least"] for order in orders]
        above = [sides[order]["most"] - sides[order]["median"] for order in orders]
        beside = [order + shift for order in orders]
        axes.errorbar(beside, medians, [below, above], color=colour, marker=marker, capsize=2.5, label=label)
    paper = PAPER["tab:cost-accuracy"]
    base = paper["0"]["step ms"]
    told = [paper[str(order)]["step ms"] / base for order in range(6)]
    axes.plot(range(6), told, color=GREY, marker="^", linestyle=":", label=LABEL)
    axes.set(xlabel="order R", ylabel="times order 0", title="training step")
    axes.set_xticks(range(6))
    axes.grid(axis="y")
