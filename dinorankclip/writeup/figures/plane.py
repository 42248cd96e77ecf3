"""Image and text embeddings in two dimensions, one model beside another."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from dinorankclip.equations import cone_separation
from dinorankclip.scoring.projection import project
from dinorankclip.scoring.seen import SeenSet
from dinorankclip.writeup.figures.drawn import Drawn
from dinorankclip.writeup.figures.style import BLUE, FAINT, RED, new_figure
from dinorankclip.writeup.kept_models import KeptModels

SHOWN, JOINED = 400, 40  # pairs drawn; pairs of which a line joins image and caption

CAPTION = (
    "{shown} test pairs of {name}, image and first caption, seed 0. Each panel is the plane of largest variance "
    "(PCA) of that model's own image and text embeddings together; planes of two models have nothing in common but "
    "the scale. Lines join {joined} pairs. The angles are over all test pairs."
)


def embedding_planes(models: KeptModels, name: str, cells: dict[str, str]) -> Drawn:
    """`cells`: cell → title of its panel; `name` is a retrieval set."""
    seen = {title: models.seen(cell, name) for cell, title in cells.items()}
    figure = new_figure(4.15)
    panels = np.atleast_1d(figure.subplots(1, len(seen)))
    shown = 0
    for axes, (title, one) in zip(panels, seen.items()):
        shown = _panel(axes, title, one)
    reach = max(abs(limit) for axes in panels for limit in (*axes.get_xlim(), *axes.get_ylim()))
    for axes in panels:
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach), box_aspect=1)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, markerscale=2)
    told = CAPTION.format(shown=shown, name=name, joined=min(JOINED, shown))
    return Drawn("embedding-plane", "Embeddings in two dimensions", told, figure, vector=False)


def _panel(axes: Axes, title: str, seen: SeenSet) -> int:
    images, (texts, owner) = seen.images(), seen.caption_rows()
    angle = float(cone_separation(images, texts))
    first = np.searchsorted(owner, np.arange(len(images)))  # captions stand image by image
    drawn = np.random.default_rng(0).permutation(len(images))[:SHOWN]
    plane = project({"image": images[drawn], "text": texts[first[drawn]]})
    image, text = plane.points["image"], plane.points["text"]
    for one, other in zip(image[:JOINED], text[:JOINED]):
        axes.plot(*zip(one, other), color=FAINT, linewidth=0.5, alpha=0.7, zorder=1)
    look: dict[str, Any] = {"alpha": 0.6, "linewidths": 0, "zorder": 2}
    axes.scatter(image[:, 0], image[:, 1], s=9, marker="o", color=BLUE, label="images", **look)
    axes.scatter(text[:, 0], text[:, 1], s=11, marker="^", color=RED, label="captions", **look)
    assert plane.explained is not None, "as PCA tells"
    across, up = (f"{100 * share:.0f} %" for share in plane.explained)
    axes.set(title=f"{title}: {angle:.1f}°", xlabel=f"{across} of the variance", ylabel=f"{up} of the variance")
    axes.locator_params(nbins=6)
    axes.grid()
    return len(drawn)
