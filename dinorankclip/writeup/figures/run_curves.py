"""One run over its steps: loss terms, held-out retrieval, gates and spread of the orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from dinorankclip.joint.acting_orders import INERT_SPREAD, MODALITIES, gate_name, orders_told, spread_name
from dinorankclip.pretrain.loop import CHOOSES_BEST, ITS_CHANCE
from dinorankclip.writeup.figures.drawn import Drawn, Unavailable
from dinorankclip.writeup.figures.style import COLOURS, GREY, MARKERS, new_figure

Lines = Sequence[dict[str, Any]]


def loss_curves(lines: Lines) -> Drawn:
    """Weighted terms of the loss, as they add up."""
    steps = [line for line in lines if "loss" in line]
    if not steps:
        raise Unavailable("the run has logged no step yet")
    names = [name for name in dict.fromkeys(name for line in steps for name in line) if name.startswith("loss/")]
    figure = new_figure(3.0)
    left, right = figure.subplots(1, 2)
    large = [name for name in names if max(line.get(name, 0.0) for line in steps) >= 0.1]
    small = [name for name in names if name not in large]
    _terms(left, steps, ["loss", *large])
    _terms(right, steps, small or large)
    left.set(title="loss and its larger terms", xlabel="step")
    right.set(title="smaller terms" if small else "terms", xlabel="step")
    if small:
        right.set_yscale("log")
    caption = "Terms of the loss as they are weighted at each step. A term that is not drawn has been zero."
    return Drawn("loss", "Loss", caption, figure)


def score_curves(lines: Lines) -> Drawn:
    found = [line for line in lines if CHOOSES_BEST in line]
    if not found:
        raise Unavailable("no validation score was taken")
    figure = new_figure(2.8)
    axes = figure.subplots()
    steps = [line["step"] for line in found]
    for (name, label), colour, marker in zip(
        (("val/i2t R@1", "image → text"), ("val/t2i R@1", "text → image"), (CHOOSES_BEST, "mean")), COLOURS, MARKERS
    ):
        axes.plot(steps, [100 * line[name] for line in found], color=colour, marker=marker, label=label)
    axes.axhline(100 * found[-1][ITS_CHANCE], color=GREY, linestyle=":", label="chance")
    axes.set(xlabel="step", ylabel="R@1, percent", title="held-out retrieval")
    axes.grid(axis="y")
    axes.legend()
    return Drawn(
        "retrieval", "Validation", "Validation R@1 at the end of each epoch; the test part is not looked at.", figure
    )


def order_telemetry(lines: Lines) -> Drawn:
    """λ_r and relative spread per order and modality (D13)."""
    acting = orders_told(name for line in lines for name in line)
    if not acting:
        raise Unavailable("the run has no order above 1")
    figure = new_figure(2.9)
    left, right = figure.subplots(1, 2)
    for order, colour in zip(acting, COLOURS):
        for modality, style in zip(MODALITIES, ("-", "--")):
            for axes, name in ((left, gate_name(order, modality)), (right, spread_name(order, modality))):
                there = [(line["step"], line[name]) for line in lines if line.get(name)]
                if there:
                    axes.plot(*zip(*there), color=colour, linestyle=style, label=f"order {order}, {modality}")
    right.axhline(INERT_SPREAD, color=GREY, linewidth=1)
    right.annotate("inert below", (0.02, INERT_SPREAD), xycoords=("axes fraction", "data"), xytext=(0, 3),
                   textcoords="offset points", fontsize=7.5, color=GREY)  # fmt: skip
    left.set(title="gate λ", xlabel="step", yscale="log")
    right.set(title="spread beside that of θ", xlabel="step", yscale="log")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=min(4, 2 * len(acting)))
    caption = (
        "Gates of the orders, and the spread of each order's correction over the remaining candidates relative to the "
        f"spread of the utilities. An order that ends below {INERT_SPREAD:g} is inert."
    )
    return Drawn("orders", "Which orders act", caption, figure)


def _terms(axes: Axes, steps: Lines, names: Sequence[str]) -> None:
    for at, name in enumerate(names):
        there = [(line["step"], line[name]) for line in steps if line.get(name)]
        if there:
            label = name.removeprefix("loss/").replace("_", " ")
            style = ("-", "--", ":")[at // len(COLOURS) % 3]
            look: dict[str, Any] = {"color": COLOURS[at % len(COLOURS)], "linestyle": style, "linewidth": 1.4}
            axes.plot(*zip(*there), label="total" if name == "loss" else label, **look)
    axes.grid(axis="y")
    axes.legend(fontsize=7.5)
