"""Cosine Grams of patch tokens: the teacher's beside its students', on the same image."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from dinorankclip.scoring.fidelity import collect
from dinorankclip.study.paper_values import LABEL, PAPER
from dinorankclip.types import UserError
from dinorankclip.writeup.figures.drawn import Drawn, Unavailable
from dinorankclip.writeup.figures.style import SEQUENTIAL, new_figure
from dinorankclip.writeup.kept_models import KeptModels

STUDENTS = {"full": "student,\nGram + relational", "full-mse": "student,\nMSE"}
SHOWN = 3  # images

CAPTION = (
    "Cosine Gram of the patch tokens on the teacher's grid ({grid}×{grid} patches, read row by row), first {shown} "
    "test images, seed 0; one colour scale for all. Below each student: its distance to the teacher's, ‖G_S − "
    "G_T‖/‖G_T‖, on that image; the tables have it over all test images, on the coarser grid of the loss. "
    "{paper}{teacher}"
)


def gram_heatmaps(models: KeptModels, teacher: str) -> Drawn:
    """Students whose model is missing are left out; the first must be there."""
    sides = {}
    for cell, label in STUDENTS.items():
        try:
            cache, source = models.teacher(cell, "test"), models.pairs(cell, "test")
            sides[label] = collect(models.model(cell).parts, cache, source, "image", SHOWN)
        except (Unavailable, UserError) as error:
            if not sides:
                raise Unavailable(f"Gram heatmaps: {error}") from error
            continue
    first = next(iter(sides.values()))
    theirs = first.teacher_grams
    if first.student_grams is None or theirs is None:
        raise Unavailable("Gram heatmaps: the teacher's cache keeps no tokens")
    source = models.pairs(next(iter(STUDENTS)), "test")
    pictures = _pictures(source, first.keys)
    grams = {label: side.student_grams for label, side in sides.items() if side.student_grams is not None}
    wide, high = 2 + len(grams), len(first.keys)
    figure = new_figure(0.5 + 1.75 * high)
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
    told = PAPER["fig:case-gram"]
    ours, mse = (told[cell]["Gram distance"] for cell in STUDENTS)
    paper = f"The paper's distances are {ours} for Gram + relational and {mse} for MSE ({LABEL}). "
    side_length = round(theirs.shape[-1] ** 0.5)
    caption = CAPTION.format(grid=side_length, shown=high, paper=paper, teacher=teacher).strip()
    return Drawn("grams", "Patch Grams", caption, figure, vector=False, shows_items=True)


def _pictures(source, keys: list[str]) -> list[np.ndarray]:
    """The images with these keys, which are the first usable ones."""
    found: dict[str, np.ndarray] = {}
    for index in range(len(source)):
        if source.key(index) in keys:
            found[source.key(index)] = np.asarray(Image.open(io.BytesIO(source.image(index))).convert("RGB"))
        if len(found) == len(keys):
            break
    return [found[key] for key in keys]
