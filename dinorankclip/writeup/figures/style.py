"""How all figures look: a palette that colour-blind readers can tell apart, sizes that fit a page of text, no screen.

A line never differs from another by colour alone: `MARKERS` go along with the colours.
"""

from __future__ import annotations

from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

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
    axes.text(
        x, y, text, ha="center", va="center", color="white", weight="bold", fontsize=fontsize, bbox=box, zorder=5
    )
