"""How alike students and teacher are, image by image, under each criterion."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dinorankclip.scoring.evaluators import FidelityEvaluator
from dinorankclip.scoring.fidelity import Fidelity
from dinorankclip.study.paper_values import LABEL, PAPER
from dinorankclip.types import UserError
from dinorankclip.writeup.figures.drawn import Drawn, Unavailable
from dinorankclip.writeup.figures.style import BLACK, COLOURS, GREY, new_figure
from dinorankclip.writeup.kept_models import KeptModels

CRITERIA = {
    "full": "Gram + relational",
    "full-mse": "MSE",
    "full-cosine": "cosine",
    "full-rkd": "RKD",
    "full-crd": "CRD",
}
BINS = 40
NEAR = 0.9  # the paper speaks of the mass above it

CAPTION = (
    "Cosine between teacher and student on {items} held-out images, after one ridge map from student to teacher "
    "that is fitted on training images and the same for every criterion; seed 0. Grey line: mean cosine of the "
    "teacher's training mean alone, which knows nothing of the image. Dashed line: {near}, above which the paper says "
    "that Gram + relational has the most. Crosses are the paper's means, projections by its own statement. {teacher}"
)


def teacher_student_histogram(models: KeptModels, teacher: str) -> Drawn:
    """`teacher` is a sentence on who the teacher is. Criteria whose model is missing are left out."""
    cosines, of_mean = measure(models)
    figure = new_figure(1.1 + 0.72 * len(cosines))
    rows = figure.subplots(len(cosines), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    lowest = min(float(np.quantile(values, 0.005)) for values in cosines.values())
    edges = np.linspace(min(lowest, of_mean - 0.05), 1.0, BINS + 1)
    for axes, (cell, values), colour in zip(rows, cosines.items(), COLOURS):
        _panel(axes, values, edges, colour, of_mean)
        axes.set_ylabel(CRITERIA[cell], rotation=0, ha="right", va="center")
        told = PAPER["fig:distill-fidelity"].get(cell)
        if told:
            axes.plot([told["cosine"]], [0], marker="x", color=BLACK, clip_on=False, zorder=5, linestyle="none")
    rows[-1].set_xlabel("teacher–student cosine")
    figure.legend(handles=_handles(), loc="outside lower center", ncols=4)
    items = len(next(iter(cosines.values())))
    caption = CAPTION.format(items=f"{items:,}", near=NEAR, teacher=teacher).strip()
    return Drawn("teacher-student", "Teacher and student", caption, figure)


def _panel(axes: Axes, values: np.ndarray, edges: np.ndarray, colour: str, of_mean: float) -> None:
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


def _handles() -> list[Line2D]:
    """One entry for each kind of mark; criteria have a row each."""
    return [
        Line2D([], [], color=GREY, marker="o", markeredgecolor="white", linestyle="none", label="mean"),
        Line2D([], [], color=BLACK, marker="x", linestyle="none", label=f"mean, {LABEL}"),
        Line2D([], [], color=GREY, linewidth=1, label="teacher's mean alone"),
        Line2D([], [], color=BLACK, linewidth=1, linestyle="--", label=f"{NEAR}"),
    ]


def measure(models: KeptModels) -> tuple[Mapping[str, np.ndarray], float]:
    """Cosines by cell, and the mean cosine of the teacher's own mean."""
    cosines, of_mean, why = {}, float("nan"), ""
    for cell in CRITERIA:
        try:
            found = _fidelity(models, cell)
        except (Unavailable, UserError) as error:
            why = why or str(error)
            continue
        cosines[cell] = found.cosine.numpy()
        of_mean = found.cosine_of_mean.mean().item()
    if not cosines:
        raise Unavailable(f"teacher–student cosines: {why or 'no run has a teacher'}")
    return cosines, of_mean


def _fidelity(models: KeptModels, cell: str) -> Fidelity:
    """Of the image student, as training itself measures it at a run's end."""
    model, distil = models.model(cell), models.settings(cell)["distil"]
    models.teacher(cell, "train")  # says so if the cache is gone
    sources = {part: models.pairs(cell, part) for part in ("train", "val", "test")}
    evaluator = FidelityEvaluator(distil["cache"], distil["compare_grid"], sources, model.tokenizer)
    return evaluator.measure(model.parts, "image")
