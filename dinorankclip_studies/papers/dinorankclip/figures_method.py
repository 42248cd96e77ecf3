"""Draws the method as a diagram, and how alike students and teacher are: patch Grams and cosines."""

from __future__ import annotations

import io
from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from PIL import Image

from dinorankclip.evaluate.fidelity import Fidelity, FidelityEvaluator, collect
from dinorankclip.methods import LABEL
from dinorankclip.models.joint import JointModel
from dinorankclip.models.loaded import LoadedModel
from dinorankclip.report import figures
from dinorankclip.report.figures import BLACK, BLUE, COLOURS, FAINT, GREEN, GREY, ORANGE, PURPLE, SEQUENTIAL
from dinorankclip.types import UserError
from dinorankclip_studies.material import StudyModels
from dinorankclip_studies.papers.dinorankclip import PAPER

OVERVIEW_CAPTION = (
    "The method. Solid: what a trained model needs. Dashed: training only; the teachers are frozen, their features "
    "are computed once and cached, and they are in no checkpoint. Order 0 of the ranking is CLIP, order 1 RankCLIP; "
    "without students and fusion an embedding is the tower's own output v."
)
_WIDE, _HIGH = 169, 100  # units of the drawing
Point = tuple[float, float]
_FILL = {BLUE: "#e3eff7", GREEN: "#e1f3ee", ORANGE: "#fcf1dc", PURPLE: "#f8ecf3", GREY: "#f1f1f1"}


def overview() -> figures.Drawn:
    """Draw towers, students, teachers, fusion, and the terms of the loss."""
    figure = figures.new_figure(4.9, 7.8)
    figure.set_layout_engine("none")  # the search of a layout rounds, which would change the file
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-0.5, _WIDE + 0.5), ylim=(-0.5, _HIGH + 0.5))
    axes.set_axis_off()
    for branch, middle, up in (("image", 72, 1), ("text", 28, -1)):
        _branch(axes, branch, middle, up)
    _objective(axes)
    return figures.Drawn("overview", "The method", OVERVIEW_CAPTION, figure)


def _branch(axes: Axes, branch: str, middle: float, up: int) -> None:
    """Draw one modality from left to right; `up` is the side of its teacher, away from the other branch."""
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
    axes.plot([99, _WIDE, _WIDE], [5, 5, 89], color=FAINT, linestyle="--", lw=1.1)  # path of the text branch
    _arrow(axes, (_WIDE, 89), (165, 89), dashed=True)
    for high, label, dashed in ((16, "training and use", False), (11, "training only", True)):
        axes.plot([123, 131], [high, high], color=FAINT if dashed else GREY, linestyle="--" if dashed else "-", lw=1.1)
        axes.text(133, high, label, fontsize=6.8, color=GREY, va="center")


def _box(
    axes: Axes, left: float, middle: float, width: float, height: float, name: str, about: str, colour: str,
    dashed: bool = False,
) -> None:  # fmt: skip
    corner, round_corners = (left, middle - height / 2), "round,pad=0,rounding_size=1.4"
    look: dict[str, Any] = {"facecolor": _FILL[colour], "edgecolor": colour, "linestyle": "--" if dashed else "-"}
    axes.add_patch(FancyBboxPatch(corner, width, height, round_corners, linewidth=1.2, **look))
    high, centre = middle + 1.35 * (about.count("\n") + bool(about)), left + width / 2
    axes.text(centre, high, name, ha="center", va="center", fontsize=8.2, weight="bold", color=BLACK)
    if about:
        axes.text(centre, middle - 2.0, about, ha="center", va="center", fontsize=6.6, color=GREY, linespacing=1.25)


def _arrow(axes: Axes, start: Point, end: Point, label: str = "", at: Point = (0, 0), dashed: bool = False) -> None:
    look: dict[str, Any] = {"color": FAINT, "linestyle": "--"} if dashed else {"color": GREY, "linestyle": "-"}
    look |= {"arrowstyle": "-|>", "mutation_scale": 9, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0}
    axes.add_patch(FancyArrowPatch(start, end, **look))
    if label:
        axes.text(*at, label, ha="center", va="center", fontsize=7, color=BLACK)


STUDENTS = {"full": "student,\nGram + relational", "full-mse": "student,\nMSE"}
SHOWN = 3  # number of images

GRAMS_CAPTION = (
    "Cosine Gram of the patch tokens on the teacher's grid ({grid}×{grid} patches, read row by row), first {shown} "
    "test images, seed 0; one colour scale for all. Below each student: its distance to the teacher's, ‖G_S − "
    "G_T‖/‖G_T‖, on that image; the tables have it over all test images, on the coarser grid of the loss. "
    "{paper}{teacher}"
)


def gram_heatmaps(models: StudyModels, teacher: str) -> figures.Drawn:
    """Draw cosine Grams of patch tokens, the teacher's beside its students', on the same images. Students whose model
    is missing are left out; the first must be there."""
    sides = {}
    for cell, label in STUDENTS.items():
        try:
            cache, source = models.teacher(cell, "test"), models.pairs(cell, "test")
            sides[label] = collect(_joint(models.model(cell)), cache, source, "image", SHOWN)
        except (figures.Unavailable, UserError) as error:
            if not sides:
                raise figures.Unavailable(f"Gram heatmaps: {error}") from error
            continue
    first = next(iter(sides.values()))
    theirs = first.teacher_grams
    if first.student_grams is None or theirs is None:
        raise figures.Unavailable("Gram heatmaps: the teacher's cache keeps no tokens")
    source = models.pairs(next(iter(STUDENTS)), "test")
    pictures = _pictures(source, first.keys)
    grams = {label: side.student_grams for label, side in sides.items() if side.student_grams is not None}
    wide, high = 2 + len(grams), len(first.keys)
    figure = figures.new_figure(0.5 + 1.75 * high)
    grid = figure.subplots(high, wide, squeeze=False, width_ratios=[0.75] + [1.0] * (wide - 1))
    lowest = min(float(gram.min()) for gram in (theirs, *grams.values()))
    look = {"cmap": SEQUENTIAL, "vmin": lowest, "vmax": 1.0}
    for row in range(high):
        grid[row, 0].imshow(pictures[row])
        drawn = grid[row, 1].imshow(theirs[row].numpy(), **look)
        for column, (label, gram) in enumerate(grams.items(), start=2):
            grid[row, column].imshow(gram[row].numpy(), **look)
            grid[row, column].set_xlabel(f"distance {float(sides[label].gram_distance[row]):.3f}", fontsize=8)
        for axes in grid[row]:
            axes.set_xticks([])
            axes.set_yticks([])
    for axes, title in zip(grid[0], ("image", "teacher", *grams)):
        axes.set_title(title, fontsize=9, loc="center")
    figure.colorbar(drawn, ax=grid[:, 1:], shrink=0.7, pad=0.02, label="cosine of two patches")
    ours, mse = (PAPER.values["fig:case-gram"][cell]["Gram distance"] for cell in STUDENTS)
    paper = f"The paper's distances are {ours} for Gram + relational and {mse} for MSE ({LABEL}). "
    side_length = round(theirs.shape[-1] ** 0.5)
    caption = GRAMS_CAPTION.format(grid=side_length, shown=high, paper=paper, teacher=teacher).strip()
    return figures.Drawn("grams", "Patch Grams", caption, figure, vector=False, shows_items=True)


def _pictures(source, keys: list[str]) -> list[np.ndarray]:
    """Return the images with these keys, which are the first usable images."""
    places = islice((place for place in range(len(source)) if source.key(place) in keys), len(keys))
    images = {source.key(place): Image.open(io.BytesIO(source.image(place))).convert("RGB") for place in places}
    return [np.asarray(images[key]) for key in keys]


CRITERIA = {
    "full": "Gram + relational", "full-mse": "MSE", "full-cosine": "cosine", "full-rkd": "RKD", "full-crd": "CRD",
}  # fmt: skip
BINS = 40
NEAR = 0.9  # the paper states the share of cosines above this value

TEACHER_STUDENT_CAPTION = (
    "Cosine between teacher and student on {items} held-out images, after one ridge map from student to teacher "
    "that is fitted on training images and the same for every criterion; seed 0. Grey line: mean cosine of the "
    "teacher's training mean alone, which knows nothing of the image. Dashed line: {near}, above which the paper says "
    "that Gram + relational has the most. Crosses are the paper's means, projections by its own statement. {teacher}"
)


def teacher_student_histogram(models: StudyModels, teacher: str) -> figures.Drawn:
    """Draw the cosines of students and teacher, image by image, under each criterion. `teacher` is a sentence
    about the teacher. Criteria whose model is missing are left out."""
    cosines, of_mean = cosines_of(models)
    figure = figures.new_figure(1.1 + 0.72 * len(cosines))
    rows = figure.subplots(len(cosines), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    lowest = min(float(np.quantile(values, 0.005)) for values in cosines.values())
    edges = np.linspace(min(lowest, of_mean - 0.05), 1.0, BINS + 1)
    for axes, (cell, values), colour in zip(rows, cosines.items(), COLOURS):
        _cosine_panel(axes, values, edges, colour, of_mean)
        axes.set_ylabel(CRITERIA[cell], rotation=0, ha="right", va="center")
        if printed := PAPER.values["fig:distill-fidelity"].get(cell):
            axes.plot([printed["cosine"]], [0], marker="x", color=BLACK, clip_on=False, zorder=5, linestyle="none")
    rows[-1].set_xlabel("teacher–student cosine")
    marks = [  # criteria have a row each
        Line2D([], [], color=GREY, marker="o", markeredgecolor="white", linestyle="none", label="mean"),
        Line2D([], [], color=BLACK, marker="x", linestyle="none", label=f"mean, {LABEL}"),
        Line2D([], [], color=GREY, linewidth=1, label="teacher's mean alone"),
        Line2D([], [], color=BLACK, linewidth=1, linestyle="--", label=f"{NEAR}"),
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=4)
    items = len(next(iter(cosines.values())))
    caption = TEACHER_STUDENT_CAPTION.format(items=f"{items:,}", near=NEAR, teacher=teacher).strip()
    return figures.Drawn("teacher-student", "Teacher and student", caption, figure)


def _cosine_panel(axes: Axes, values: np.ndarray, edges: np.ndarray, colour: str, of_mean: float) -> None:
    heights, _ = np.histogram(values, edges, density=True)
    axes.stairs(heights, edges, color=colour, alpha=0.35, fill=True)
    axes.stairs(heights, edges, color=colour, linewidth=1.4)
    axes.axvline(of_mean, color=GREY, linewidth=1)
    axes.axvline(NEAR, color=BLACK, linewidth=1, linestyle="--")
    axes.plot([values.mean()], [0], marker="o", color=colour, markeredgecolor="white", clip_on=False, zorder=5)
    words = f"mean {values.mean():.3f}\n{100 * (values > NEAR).mean():.1f} % above {NEAR}"
    axes.text(1.0, 0.92, words, transform=axes.transAxes, ha="right", va="top", fontsize=8)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def cosines_of(models: StudyModels) -> tuple[Mapping[str, np.ndarray], float]:
    """Return cosines by cell, and the mean cosine of the teacher's own mean."""
    cosines, of_mean, why = {}, float("nan"), ""
    for cell in CRITERIA:
        try:
            fidelity = _fidelity(models, cell)
        except (figures.Unavailable, UserError) as error:
            why = why or str(error)
            continue
        cosines[cell] = fidelity.cosine.numpy()
        of_mean = fidelity.cosine_of_mean.mean().item()
    if not cosines:
        raise figures.Unavailable(f"teacher–student cosines: {why or 'no run has a teacher'}")
    return cosines, of_mean


def _joint(model: LoadedModel) -> JointModel:
    """Return the parts of a model with a trunk; cells with students have no other."""
    assert isinstance(model.parts, JointModel), "frozen towers have no students"
    return model.parts


def _fidelity(models: StudyModels, cell: str) -> Fidelity:
    """Measure the image student as training does at the end of a run."""
    model, distil = models.model(cell), models.settings(cell)["distil"]
    models.teacher(cell, "train")  # raises if the cache is gone
    sources = {part: models.pairs(cell, part) for part in ("train", "val", "test")}
    joint = _joint(model)
    evaluator = FidelityEvaluator(distil["cache"], distil["compare_grid"], sources, joint.tokenizer())
    return evaluator.measure(joint, "image")
