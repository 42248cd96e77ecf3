"""Figures of a study or a run, one file each. Numbers come from earlier rooms; here they only become pictures."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from dinorankclip.run_files import INERT_SPREAD, MODALITIES, gate_name, orders_told, spread_name
from dinorankclip.train.loop import CHOOSES_BEST, ITS_CHANCE

# -------- style
# How all figures look: a palette that colour-blind readers can tell apart, sizes that fit a page of text, no screen.
#
# A line never differs from another by colour alone: `MARKERS` go along with the colours.

# Okabe and Ito's palette, without its yellow, which is too light for lines on white.
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, BLACK = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#56b4e9",
    "#1a1a1a",
)
GREY, FAINT, GRID = "#6e6e6e", "#9a9a9a", "#e4e4e4"
COLOURS = (BLUE, RED, GREEN, ORANGE, PURPLE, SKY, BLACK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# The same method looks the same in every figure.
OF_METHOD = {"clip": GREY, "rankclip": BLUE, "rank": GREEN, "full": RED}

WIDTH = 7.4  # inches: the width of a page of text
DPI = 150

# Red suppresses, blue promotes, as in the paper; light in the middle. Empty cells (NaN) are hatched by the caller.
AROUND_ZERO = LinearSegmentedColormap.from_list("around zero", ["#b2182b", "#f4a582", "#f7f7f7", "#92c5de", "#2166ac"])
SEQUENTIAL = "cividis"

_SETTINGS: dict[Any, Any] = {  # the stubs list every name there is
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": BLACK,
    "ytick.labelcolor": BLACK,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.fonttype": "path",
    "svg.hashsalt": "dinorankclip",  # the same picture gives the same file
}


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """An empty figure in inches. It belongs to no window, so nothing needs to be closed.

    The look is set for the whole process: matplotlib asks for it again with every text and when a file is written.
    """
    matplotlib.rcParams.update(_SETTINGS)
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def write_on_bar(axes: Axes, x: float, y: float, text: str, colour: str, fontsize: float = 9.5) -> None:
    """White on the bar's own colour, in front of its interval: else the interval would strike the number out."""
    box = {"facecolor": colour, "edgecolor": "none", "pad": 1.5}
    axes.text(x, y, text, ha="center", va="center", color="white", weight="bold", fontsize=fontsize, bbox=box, zorder=5)


# -------- drawn
# A finished figure with the words that belong to it, and its files.

# Texts in a PNG file, under names that its standard has.
CAPTION, DRAWN_FROM = "Description", "Source"


class Unavailable(Exception):
    """A figure cannot be drawn yet; the text says what lacks, as a sentence for the report."""


@dataclass(frozen=True)
class Drawn:
    """`name` names the files; `caption` is plain text. Pictures of photographs or thousands of points are no SVG.

    `shows_items`: images or captions of the data can be seen in it, which not everybody may pass on.
    `drawn_from`: the runs whose models were opened, as the file itself says beside the caption.
    Both forms are drawn once, however many files and pages they go to.
    """

    name: str
    title: str
    caption: str
    picture: Figure | Image.Image
    vector: bool = True
    shows_items: bool = False
    drawn_from: str = ""

    @cached_property
    def png(self) -> bytes:
        data = io.BytesIO()
        words = {CAPTION: self.caption, DRAWN_FROM: self.drawn_from}
        if isinstance(self.picture, Image.Image):
            self.picture.save(data, "PNG", optimize=True, pnginfo=png_texts(words))
        else:
            self.picture.savefig(data, format="png", dpi=DPI, metadata=words | {"Software": None})
        return data.getvalue()

    @cached_property
    def svg(self) -> bytes | None:
        """None where a drawing of lines would be larger than a picture of pixels."""
        if not self.vector or isinstance(self.picture, Image.Image):
            return None
        data = io.BytesIO()
        self.picture.savefig(data, format="svg", metadata={"Date": None, "Creator": None})
        return data.getvalue()

    def save(self, folder: Path) -> list[Path]:
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for ending, data in (("png", self.png), ("svg", self.svg)):
            if data is not None:
                path = folder / f"{self.name}.{ending}"
                path.write_bytes(data)
                written.append(path)
        return written


def png_texts(words: Mapping[str, str]) -> PngInfo:
    told = PngInfo()
    for name, text in words.items():
        told.add_text(name, text)
    return told


# -------- run_curves
# One run over its steps: loss terms, held-out retrieval, gates and spread of the orders.

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
