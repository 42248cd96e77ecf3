"""The method as a diagram: towers, students, teachers, fusion, and what is minimised."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from dinorankclip.writeup.figures.drawn import Drawn
from dinorankclip.writeup.figures.style import BLACK, BLUE, FAINT, GREEN, GREY, ORANGE, PURPLE, new_figure

CAPTION = (
    "The method. Solid: what a trained model needs. Dashed: training only; the teachers are frozen, their features "
    "are computed once and cached, and they are in no checkpoint. Order 0 of the ranking is CLIP, order 1 RankCLIP; "
    "without students and fusion an embedding is the tower's own output v."
)
_WIDE, _HIGH = 169, 100  # units of the drawing
_FILL = {BLUE: "#e3eff7", GREEN: "#e1f3ee", ORANGE: "#fcf1dc", PURPLE: "#f8ecf3", GREY: "#f1f1f1"}


def overview() -> Drawn:
    figure = new_figure(4.9, 7.8)
    figure.set_layout_engine("none")  # one drawing, one place: rounding in a search for it would change the file
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-0.5, _WIDE + 0.5), ylim=(-0.5, _HIGH + 0.5))
    axes.set_axis_off()
    for branch, middle, up in (("image", 72, 1), ("text", 28, -1)):
        _branch(axes, branch, middle, up)
    _objective(axes)
    return Drawn("overview", "The method", CAPTION, figure)


def _branch(axes: Axes, branch: str, middle: float, up: int) -> None:
    """One modality from left to right; `up` is where its teacher stands, away from the other branch."""
    what, student = ("image", "small ViT") if branch == "image" else ("caption", "small transformer")
    inner, outer, teacher = middle - 8 * up, middle + 8 * up, middle + 23 * up
    _box(axes, 0, middle, 15, 9, what, "", GREY)
    _box(axes, 22, inner, 25, 9, f"{branch} tower", "contrastive trunk", BLUE)
    _box(axes, 22, outer, 25, 9, f"{branch} student", student, GREEN)
    _box(axes, 22, teacher, 25, 9, f"{branch} teacher", "frozen, cached", ORANGE, dashed=True)
    _box(axes, 66, outer, 33, 11, "fusion", "pyramid 2·4·8, channel and\nspatial attention, refiner", GREEN)
    _box(axes, 66, inner, 33, 9, "gate", "v + α ⊙ u,  α = σ(W[v; u] + b)", GREEN)
    _box(axes, 66, teacher, 33, 9, "Gram + relational loss", "student like teacher", ORANGE, dashed=True)
    _arrow(axes, (15, middle), (22, inner))
    _arrow(axes, (15, middle), (22, outer))
    _arrow(axes, (47, inner), (66, inner), "v", at=(56.5, inner + 2.2))
    _arrow(axes, (47, outer), (66, outer), "tokens, class", at=(56.5, outer + 2.2))
    _arrow(axes, (82.5, outer - 5.5 * up), (82.5, inner + 4.5 * up), "u", at=(85.0, middle))
    _arrow(axes, (47, outer + 3 * up), (66, teacher - 2.5 * up), dashed=True)
    _arrow(axes, (47, teacher), (66, teacher), dashed=True)
    _arrow(axes, (99, inner), (109, 50 + 4.5 * up), "embedding", at=(111.5, inner - 2.5 * up))


def _objective(axes: Axes) -> None:
    _box(axes, 102, 50, 14, 9, "cosines", "× scale", GREY)
    _box(axes, 122, 66, 36, 10, "InfoNCE", "each image finds its caption", BLUE, dashed=True)
    _box(axes, 122, 36, 43, 28, "", "", PURPLE, dashed=True)
    axes.text(143.5, 46.2, "ranking of order R", ha="center", va="center", fontsize=8.2, weight="bold", color=BLACK)
    lines = (
        "four lists, in and across modalities",
        "order 1:  θ, the similarity",
        "order 2:  + λ₂ β, the item before",
        "order 3:  + λ₃ γ, the two before",
    )
    for number, line in enumerate(lines):
        axes.text(124.5, 41.3 - 5.0 * number, line, va="center", fontsize=6.8, color=GREY if number == 0 else BLACK)
    _arrow(axes, (116, 52), (122, 64), dashed=True)
    _arrow(axes, (116, 48), (122, 40), dashed=True)
    formula = "InfoNCE + μ (in + cross) + gate L1\n+ μd (image + ρ text distillation)"
    _box(axes, 122, 89, 43, 13, "minimised", formula, GREY, dashed=True)
    _arrow(axes, (140, 71), (140, 82.5), dashed=True)
    _arrow(axes, (162, 50), (162, 82.5), dashed=True)
    _arrow(axes, (99, 95), (122, 91), dashed=True)
    axes.plot([99, _WIDE, _WIDE], [5, 5, 89], color=FAINT, linestyle="--", lw=1.1)  # the text side's, around the rest
    _arrow(axes, (_WIDE, 89), (165, 89), dashed=True)
    for high, label, dashed in ((16, "training and use", False), (11, "training only", True)):
        axes.plot([123, 131], [high, high], color=FAINT if dashed else GREY, linestyle="--" if dashed else "-", lw=1.1)
        axes.text(133, high, label, fontsize=6.8, color=GREY, va="center")


def _box(
    axes: Axes, left: float, middle: float, width: float, height: float, name: str, about: str, colour: str, **look
) -> None:
    style = "--" if look.get("dashed") else "-"
    axes.add_patch(
        FancyBboxPatch(
            (left, middle - height / 2),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=1.4",
            facecolor=_FILL[colour],
            edgecolor=colour,
            linestyle=style,
            linewidth=1.2,
        )
    )
    lines = about.count("\n") + 1 if about else 0
    shift = 1.35 * lines
    centre = left + width / 2
    axes.text(centre, middle + shift, name, ha="center", va="center", fontsize=8.2, weight="bold", color=BLACK)
    if about:
        axes.text(centre, middle - 2.0, about, ha="center", va="center", fontsize=6.6, color=GREY, linespacing=1.25)


def _arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    label: str = "",
    at: tuple[float, float] | None = None,
    dashed: bool = False,
) -> None:
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=9,
            linewidth=1.1,
            color=FAINT if dashed else GREY,
            linestyle="--" if dashed else "-",
            shrinkA=0,
            shrinkB=0,
        )
    )
    if label:
        axes.text(*(at or start), label, ha="center", va="center", fontsize=7, color=BLACK)
