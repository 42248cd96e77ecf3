"""Defines the look of all figures and a finished figure with its files; draws the curves of one run.

Colours are those that colour-blind readers can tell apart, sizes fit a page of text, and no screen is needed.
A line never differs from another by colour alone: `MARKERS` go along with `COLOURS`.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
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

from dinorankclip.io import write_bytes
from dinorankclip.run_files import INERT_SPREAD, MODALITIES, gate_name, logged_orders, spread_name
from dinorankclip.train.loop import CHOOSES_BEST, ITS_CHANCE

# Okabe and Ito's palette, without its yellow, which is too light for lines on white.
BLUE, ORANGE, GREEN, RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"
PURPLE, SKY, BLACK = "#cc79a7", "#56b4e9", "#1a1a1a"
GREY, FAINT, GRID = "#6e6e6e", "#9a9a9a", "#e4e4e4"
COLOURS = (BLUE, RED, GREEN, ORANGE, PURPLE, SKY, BLACK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
METHOD_COLOURS = {"clip": GREY, "rankclip": BLUE, "rank": GREEN, "full": RED}  # the same in every figure

WIDTH = 7.4  # inches: the width of a page of text
DPI = 150

# Red suppresses, blue promotes, as in the paper. The caller hatches empty cells (NaN).
AROUND_ZERO = LinearSegmentedColormap.from_list("around zero", ["#b2182b", "#f4a582", "#f7f7f7", "#92c5de", "#2166ac"])
SEQUENTIAL = "cividis"

_STYLE: dict[Any, Any] = {  # Any: matplotlib's stubs list every name
    "font.family": "DejaVu Sans", "font.size": 9.5,
    "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.labelsize": 9.5,
    "axes.edgecolor": GREY, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": False, "axes.axisbelow": True, "grid.color": GRID, "grid.linewidth": 0.8,
    "xtick.labelsize": 8.5, "xtick.color": GREY, "xtick.labelcolor": BLACK,
    "ytick.labelsize": 8.5, "ytick.color": GREY, "ytick.labelcolor": BLACK,
    "legend.fontsize": 8.5, "legend.frameon": False, "lines.linewidth": 1.8, "lines.markersize": 5.5,
    "figure.facecolor": "white", "savefig.facecolor": "white",
    "svg.fonttype": "path", "svg.hashsalt": "dinorankclip",  # the same figure gives the same file
}  # fmt: skip


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """Return an empty figure, sizes in inches. The figure belongs to no window, so nothing needs to be closed.

    The style is set for the whole process, because matplotlib reads it again for every text and when it writes a file.
    """
    matplotlib.rcParams.update(_STYLE)
    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def write_on_bar(axes: Axes, x: float, y: float, text: str, colour: str, fontsize: float = 9.5) -> None:
    """Write in white on the bar's own colour, before its interval, which would otherwise strike the number out."""
    box = {"facecolor": colour, "edgecolor": "none", "pad": 1.5}
    axes.text(x, y, text, ha="center", va="center", color="white", weight="bold", fontsize=fontsize, bbox=box, zorder=5)


CAPTION, DRAWN_FROM = "Description", "Source"  # names of texts in a PNG file, from its standard


class Unavailable(Exception):
    """Raised when a figure cannot be drawn yet. The message says what is missing, as a sentence for the report."""


@dataclass(frozen=True)
class Drawn:
    """Holds a finished figure: `name` is the name of its files, `caption` is plain text.

    `vector`: False for photographs or thousands of points, which have no SVG.
    `shows_items`: images or captions of the data are visible, which not everybody may pass on.
    `drawn_from`: the runs whose models were opened; the PNG file stores it beside the caption.
    PNG and SVG are drawn once, however many files and pages they go to.
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
            texts = PngInfo()
            for name, text in words.items():
                texts.add_text(name, text)
            self.picture.save(data, "PNG", optimize=True, pnginfo=texts)
        else:
            self.picture.savefig(data, format="png", dpi=DPI, metadata=words | {"Software": None})
        return data.getvalue()

    @cached_property
    def svg(self) -> bytes | None:
        """Return the SVG; None where an SVG would be larger than the PNG."""
        if not self.vector or isinstance(self.picture, Image.Image):
            return None
        data = io.BytesIO()
        self.picture.savefig(data, format="svg", metadata={"Date": None, "Creator": None})
        return data.getvalue()

    def save(self, folder: Path) -> list[Path]:
        """Write the PNG and, where there is one, the SVG. Return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        files = {folder / f"{self.name}.png": self.png}
        if self.svg is not None:
            files[folder / f"{self.name}.svg"] = self.svg
        for path, data in files.items():
            write_bytes(path, data)
        return list(files)


Lines = Sequence[dict[str, Any]]  # records of a run's log


def loss_curves(lines: Lines) -> Drawn:
    """Draw the loss and its weighted terms. Small terms, if there are any, have a panel of their own."""
    steps = [line for line in lines if "loss" in line]
    if not steps:
        raise Unavailable("the run has logged no step yet")
    names = [name for name in dict.fromkeys(name for line in steps for name in line) if name.startswith("loss/")]
    figure = new_figure(3.0)
    large = [name for name in names if max(line.get(name, 0.0) for line in steps) >= 0.1]
    small = [name for name in names if name not in large and any(line.get(name) for line in steps)]
    panels = figure.subplots(1, 2 if small else 1, squeeze=False)[0]
    _terms(panels[0], steps, ["loss", *(large if len(large) + len(small) > 1 else [])])  # one term is the loss itself
    panels[0].set(title="loss and its larger terms" if len(names) > 1 else "loss", xlabel="step")
    if small:
        _terms(panels[1], steps, small)
        panels[1].set(title="smaller terms", xlabel="step", yscale="log")
    caption = "Terms of the loss as they are weighted at each step. A term that is not drawn has been zero."
    return Drawn("loss", "Loss", caption, figure)


def score_curves(lines: Lines) -> Drawn:
    """Draw validation retrieval over the steps."""
    scored = [line for line in lines if CHOOSES_BEST in line]
    if not scored:
        raise Unavailable("no validation score was taken")
    figure = new_figure(2.8)
    axes = figure.subplots()
    steps = [line["step"] for line in scored]
    names = {"val/i2t R@1": "image → text", "val/t2i R@1": "text → image", CHOOSES_BEST: "mean"}
    for (name, label), colour, marker in zip(names.items(), COLOURS, MARKERS):
        axes.plot(steps, [100 * line[name] for line in scored], color=colour, marker=marker, label=label)
    axes.axhline(100 * scored[-1][ITS_CHANCE], color=GREY, linestyle=":", label="chance")
    axes.set(xlabel="step", ylabel="R@1, percent", title="held-out retrieval")
    axes.grid(axis="y")
    axes.legend()
    caption = "Validation R@1 at the end of each epoch; the test part is not looked at."
    return Drawn("retrieval", "Validation", caption, figure)


def order_telemetry(lines: Lines) -> Drawn:
    """Draw λ_r and the relative spread of each order and modality, which tell whether the order acts (D13)."""
    acting = logged_orders(name for line in lines for name in line)
    if not acting:
        raise Unavailable("the run has no order above 1")
    figure = new_figure(2.9)
    left, right = figure.subplots(1, 2)
    for order, colour in zip(acting, COLOURS):
        for modality, style in zip(MODALITIES, ("-", "--")):
            for axes, name in ((left, gate_name(order, modality)), (right, spread_name(order, modality))):
                points = [(line["step"], line[name]) for line in lines if line.get(name)]
                if points:
                    axes.plot(*zip(*points), color=colour, linestyle=style, label=f"order {order}, {modality}")
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
        points = [(line["step"], line[name]) for line in steps if line.get(name)]
        if points:
            label = "total" if name == "loss" else name.removeprefix("loss/").replace("_", " ")
            style = ("-", "--", ":")[at // len(COLOURS) % 3]
            axes.plot(*zip(*points), label=label, color=COLOURS[at % len(COLOURS)], linestyle=style, linewidth=1.4)
    axes.grid(axis="y")
    axes.legend(fontsize=7.5)
