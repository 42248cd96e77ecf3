"""Draws the modality gap along the paper's four nodes, embeddings in two dimensions, and transition heads."""

from __future__ import annotations

import io
import textwrap
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from matplotlib.patches import Rectangle
from PIL import Image, ImageOps

from dinorankclip.evaluate.examples import project
from dinorankclip.evaluate.scores import EmbeddedSet
from dinorankclip.losses.contrastive import cone_separation
from dinorankclip.methods import LABEL
from dinorankclip.report import figures
from dinorankclip.report.figures import AROUND_ZERO, BLACK, BLUE, FAINT, GREY, METHOD_COLOURS, RED
from dinorankclip.run_files import INERT_SPREAD, is_inert
from dinorankclip.types import RawSample
from dinorankclip_studies.material import StudyModels
from dinorankclip_studies.papers.dinorankclip import PAPER
from dinorankclip_studies.papers.dinorankclip.figures_orders import counts, summaries
from dinorankclip_studies.results import Results
from dinorankclip_studies.verdicts import paired

NODES = {"clip": "CLIP", "rankclip": "RankCLIP", "rank-3": "order 3,\nno teacher", "full": "full"}
_COLOURS = (METHOD_COLOURS["clip"], METHOD_COLOURS["rankclip"], METHOD_COLOURS["rank"], METHOD_COLOURS["full"])

CONES_CAPTION = (
    "Cone separation: the angle between the mean image and the mean text embedding, 95 % t-intervals over "
    "the seeds that all nodes have ({counts}). "
    "Between bars: the change from one node to the next, paired by seed. Right: the paper's, on other data; it prints "
    "the changes between them as projections. A smaller angle is no better model by itself."
)


def cone_bars(results: Results, score: str) -> figures.Drawn:
    """Draw the gap of each node and the change from node to node. `score` is a `SET/cone separation`."""
    results = results.on_common_seeds(NODES)
    angles = summaries(results, list(NODES), score)
    if sum(angle is not None for angle in angles) < 2:
        raise figures.Unavailable("the cone separation bars need finished runs of at least two of the four nodes")
    figure = figures.new_figure(3.2)
    ours, paper = figure.subplots(1, 2)
    tops = []
    for at, (angle, colour) in enumerate(zip(angles, _COLOURS)):
        if angle is None:
            ours.text(at, 0, "not run", ha="center", va="bottom", color=GREY, fontsize=8)
            tops.append(0.0)
            continue
        half = angle.half or 0.0
        ours.bar(at, angle.mean, 0.62, color=colour, yerr=half or None, error_kw={"capsize": 3, "elinewidth": 1.2})
        figures.write_on_bar(ours, at, angle.mean / 2, f"{angle.mean:.1f}°", colour)
        tops.append(angle.mean + half)
    highest = max(tops)
    for at, (before, after) in enumerate(pairwise(results.values(node, score) for node in NODES)):
        if before.keys() & after.keys():
            change = paired(before, after)
            text = f"{change.mean:+.1f}°" + (f"\n± {change.half:.1f}" if change.half is not None else "")
            ours.text(at + 0.5, highest * 1.04, text, ha="center", va="bottom", fontsize=7.6, color=BLACK)
    ours.set_ylim(0, highest * 1.26)
    ours.set_title(f"measured, {score.split('/')[0]}")
    printed = [PAPER.values["fig:cone"][node]["cone separation"] for node in NODES]
    paper.bar(range(4), printed, 0.62, color="white", edgecolor=_COLOURS, hatch="///", linewidth=1.2)
    for at, value in enumerate(printed):
        paper.text(at, value + 0.4, f"{value:.1f}°", ha="center", va="bottom", fontsize=8.5)
    paper.set_ylim(0, max(printed) * 1.26)
    paper.set_title(LABEL)
    for axes in (ours, paper):
        axes.set_xticks(range(4), NODES.values())
        axes.set_ylabel("cone separation, degrees")
    caption = CONES_CAPTION.format(counts=counts(results, list(NODES)))
    return figures.Drawn("cone-separation", "Modality gap, four nodes", caption, figure)


SHOWN, JOINED = 400, 40  # number of pairs drawn, and of pairs whose image and caption a line joins

PLANE_CAPTION = (
    "{shown} test pairs of {name}, image and first caption, seed 0. Each panel is the plane of largest variance "
    "(PCA) of that model's own image and text embeddings together; planes of two models have nothing in common but "
    "the scale. Lines join {joined} pairs. The angles are over all test pairs."
)


def embedding_planes(models: StudyModels, name: str, cells: dict[str, str]) -> figures.Drawn:
    """Draw image and text embeddings of several models. `cells`: cell → title of its panel; `name`: a retrieval set."""
    sets = {title: models.embedded_set(cell, name) for cell, title in cells.items()}
    figure = figures.new_figure(4.15)
    panels = np.atleast_1d(figure.subplots(1, len(sets)))
    shown = 0
    for axes, (title, embedded) in zip(panels, sets.items()):
        shown = _plane_panel(axes, title, embedded)
    reach = max(abs(limit) for axes in panels for limit in (*axes.get_xlim(), *axes.get_ylim()))
    for axes in panels:
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach), box_aspect=1)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, markerscale=2)
    caption = PLANE_CAPTION.format(shown=shown, name=name, joined=min(JOINED, shown))
    return figures.Drawn("embedding-plane", "Embeddings in two dimensions", caption, figure, vector=False)


def _plane_panel(axes: Axes, title: str, embedded: EmbeddedSet) -> int:
    """Draw one model and return the number of pairs."""
    images, (texts, owner) = embedded.images(), embedded.caption_rows()
    angle = float(cone_separation(images, texts))
    first = np.searchsorted(owner, np.arange(len(images)))  # captions are sorted by image
    drawn = np.random.default_rng(0).permutation(len(images))[:SHOWN]
    plane = project({"image": images[drawn], "text": texts[first[drawn]]})
    image, text = plane.points["image"], plane.points["text"]
    for pair in zip(image[:JOINED], text[:JOINED]):
        axes.plot(*zip(*pair), color=FAINT, linewidth=0.5, alpha=0.7, zorder=1)
    look: dict[str, Any] = {"alpha": 0.6, "linewidths": 0, "zorder": 2}
    axes.scatter(image[:, 0], image[:, 1], s=9, marker="o", color=BLUE, label="images", **look)
    axes.scatter(text[:, 0], text[:, 1], s=11, marker="^", color=RED, label="captions", **look)
    assert plane.explained is not None, "PCA explains a share of the variance"
    across, up = (f"{100 * share:.0f} %" for share in plane.explained)
    axes.set(title=f"{title}: {angle:.1f}°", xlabel=f"{across} of the variance", ylabel=f"{up} of the variance")
    axes.locator_params(nbins=6)
    axes.grid()
    return len(drawn)


ITEMS = 8
SEED = 0

TRANSITIONS_CAPTION = (
    "Transition heads of the text side of {cell}, seed 0, on {items} validation pairs drawn by a fixed seed. Left: "
    "β̃, how the caption ranked just before (row) promotes (blue) or suppresses (red) the next one (column). Right: "
    "γ̃ after the pair (1, row). Rows are centred over items not in the history, whose own cells are hatched. In "
    "the loss these numbers are multiplied by the gates λ and stand beside utilities of spread {theta:.2g}."
)


def transition_heatmaps(models: StudyModels, cell: str, most: int = ITEMS) -> figures.Drawn:
    """Draw the scores of the transition heads on a small batch: β̃ (the item before) and γ̃ (the two items before).

    Rows are centred over the items that are not in the history; cells of history items are empty, since an item cannot
    follow itself (D10).
    """
    heads, model = models.heads(cell, "text"), models.model(cell)
    if heads.order < 3:
        raise figures.Unavailable(f"{cell} is of order {heads.order}; γ begins at order 3")
    source = models.pairs(cell, "val")
    drawn = np.random.default_rng(SEED).permutation(len(source))[:most]
    samples = [source.read(int(index)) for index in drawn]
    texts = model.encode_text([sample.captions[0] for sample in samples])
    images = model.encode_image(torch.stack([model.preprocess(sample.image) for sample in samples]))
    theta = float((float(model.parts.scale()) * images @ texts.T).std(1).mean())
    pair, triple = heads.centred_pairs(texts).numpy(), heads.centred_triples(texts, before=0).numpy()
    figure = figures.new_figure(5.4)
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=(3.1, 2.1))[:, 0]
    left, right = upper.subplots(1, 2)
    second, third = float(heads.gate(2)), float(heads.gate(3))
    _heatmap(left, pair, rf"$\tilde\beta$,  $\lambda_2$ = {second:.4f}", "after caption")
    _heatmap(right, triple, rf"$\tilde\gamma$ after (1, row),  $\lambda_3$ = {third:.4f}", "after 1, then")
    _legend(lower.subplots(), samples)
    caption = TRANSITIONS_CAPTION.format(cell=cell, items=len(samples), theta=theta)
    spreads = {"2": second * np.nanstd(pair), "3": third * np.nanstd(triple)}
    if weak := [order for order, spread in spreads.items() if is_inert(spread / theta)]:
        caption += f" Here order {' and '.join(weak)} is inert: its spread is below {INERT_SPREAD:g} of theirs."
    return figures.Drawn("transitions", "Transition heads", caption, figure, shows_items=True)


def _heatmap(axes: Axes, table: np.ndarray, title: str, rows: str) -> None:
    """Draw a heatmap, in which empty (NaN) cells stay white and are hatched."""
    reach = np.nanmax(np.abs(table))
    drawn = axes.imshow(np.ma.masked_invalid(table), cmap=AROUND_ZERO, vmin=-reach, vmax=reach)
    for row, column in np.argwhere(np.isnan(table)):
        corner = (column - 0.5, row - 0.5)
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, hatch="////", edgecolor=FAINT, linewidth=0))
    for (row, column), value in np.ndenumerate(table):
        if not np.isnan(value):
            colour = "white" if abs(value) > 0.62 * reach else BLACK
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", fontsize=6.3, color=colour)
    numbers = [str(number) for number in range(1, len(table) + 1)]
    axes.set_xticks(range(len(table)), numbers)
    axes.set_yticks(range(len(table)), numbers)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(title=title, xlabel="candidate", ylabel=rows)
    axes.figure.colorbar(drawn, ax=axes, shrink=0.8, pad=0.03)


def _legend(axes: Axes, samples: list[RawSample]) -> None:
    """Draw numbered thumbnails with their captions, in two columns."""
    axes.set_axis_off()
    half = -(-len(samples) // 2)
    axes.set(xlim=(0, 2), ylim=(half, 0))
    for number, sample in enumerate(samples):
        column, row = divmod(number, half)
        axes.text(column + 0.03, row + 0.5, str(number + 1), va="center", ha="right", fontsize=8.5, weight="bold")
        picture = ImageOps.fit(Image.open(io.BytesIO(sample.image)).convert("RGB"), (64, 64))
        box = OffsetImage(np.asarray(picture), zoom=0.42)
        axes.add_artist(AnnotationBbox(box, (column + 0.1, row + 0.5), frameon=False, box_alignment=(0.5, 0.5)))
        lines = textwrap.wrap(sample.captions[0], 58, max_lines=2, placeholder=" …")
        axes.text(column + 0.18, row + 0.5, "\n".join(lines), va="center", fontsize=7.2, linespacing=1.2)
