"""How alike students and teacher are, image by image, under each criterion."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

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
_LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
BINS = 40

CAPTION = (
    "Cosine between teacher and student on {items} held-out images, after one ridge map from student to teacher "
    "that is fitted on training images and the same for every criterion; seed 0. Thin grey line: mean cosine of the "
    "teacher's training mean alone, which knows nothing of the image. Right: means, and the paper's, which are "
    "projections. {teacher}"
)


def teacher_student_histogram(models: KeptModels, teacher: str) -> Drawn:
    """`teacher` is a sentence on who the teacher is. Criteria whose model is missing are left out."""
    cosines, of_mean = measure(models)
    figure = new_figure(3.3)
    left, right = figure.subplots(1, 2, width_ratios=(1.7, 1))
    lowest = min(float(np.quantile(values, 0.005)) for values in cosines.values())
    edges = np.linspace(min(lowest, of_mean - 0.05), 1.0, BINS + 1)
    for (cell, values), colour, line in zip(cosines.items(), COLOURS, _LINES):
        heights, _ = np.histogram(values, edges, density=True)
        left.stairs(heights, edges, color=colour, linestyle=line, linewidth=1.8, label=CRITERIA[cell])
    left.axvline(of_mean, color=GREY, linewidth=1)
    left.set(xlabel="teacher–student cosine", ylabel="density", title="measured")
    names = list(cosines)
    for at, (cell, colour) in enumerate(zip(names, COLOURS)):
        right.plot([cosines[cell].mean()], [at], marker="o", color=colour, linestyle="none")
        told = PAPER["fig:distill-fidelity"].get(cell)
        if told:
            right.plot([told["cosine"]], [at], marker="x", color=BLACK, linestyle="none", markersize=7)
    right.plot([], [], marker="o", color=GREY, linestyle="none", label="measured")
    right.plot([], [], marker="x", color=BLACK, linestyle="none", label=LABEL)
    right.axvline(of_mean, color=GREY, linewidth=1)
    right.set_yticks(range(len(names)), [CRITERIA[cell] for cell in names])
    right.set_ylim(len(names) - 0.5, -0.5)
    right.set(xlabel="mean cosine", title="means")
    right.grid(axis="x")
    handles = [axes.get_legend_handles_labels() for axes in (left, right)]
    figure.legend(*(one + other for one, other in zip(*handles)), loc="outside lower center", ncols=4)
    items = len(next(iter(cosines.values())))
    told = CAPTION.format(items=f"{items:,}", teacher=teacher).strip()
    return Drawn("teacher-student", "Teacher and student", told, figure)


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
