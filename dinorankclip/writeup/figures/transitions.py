"""What the transition heads have learned, on a small batch: β̃ (the item before) and γ̃ (the two items before).

Rows are centred over the items that are not in the history; cells of history items are empty (D10).
"""

from __future__ import annotations

import io
import textwrap

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from matplotlib.patches import Rectangle
from PIL import Image, ImageOps

from dinorankclip.joint.acting_orders import INERT_SPREAD, is_inert
from dinorankclip.types import RawSample
from dinorankclip.writeup.figures.drawn import Drawn, Unavailable
from dinorankclip.writeup.figures.style import AROUND_ZERO, BLACK, FAINT, new_figure
from dinorankclip.writeup.kept_models import KeptModels

ITEMS = 8
SEED = 0

CAPTION = (
    "Transition heads of the text side of {cell}, seed 0, on {items} validation pairs drawn by a fixed seed. Left: "
    "β̃, how the caption ranked just before (row) promotes (blue) or suppresses (red) the next one (column). Right: "
    "γ̃ after the pair (1, row). Rows are centred over items not in the history, whose own cells are hatched. In "
    "the loss these numbers are multiplied by the gates λ and stand beside utilities of spread {theta:.2g}."
)


def transition_heatmaps(models: KeptModels, cell: str, most: int = ITEMS) -> Drawn:
    heads, model = models.heads(cell, "text"), models.model(cell)
    if heads.order < 3:
        raise Unavailable(f"{cell} is of order {heads.order}; γ begins at order 3")
    source = models.pairs(cell, "val")
    drawn = np.random.default_rng(SEED).permutation(len(source))[:most]
    samples = [source.read(int(index)) for index in drawn]
    texts = model.encode_text([sample.captions[0] for sample in samples])
    images = model.encode_image(torch.stack([model.preprocess(sample.image) for sample in samples]))
    scale = float(model.parts.scale())
    theta = float((scale * images @ texts.T).std(1).mean())
    pair, triple = heads.centred_pairs(texts).numpy(), heads.centred_triples(texts, before=0).numpy()
    figure = new_figure(5.4)
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=(3.1, 2.1))[:, 0]
    left, right = upper.subplots(1, 2)
    _heatmap(left, pair, rf"$\tilde\beta$,  $\lambda_2$ = {float(heads.gate(2)):.4f}", "after caption")
    _heatmap(
        right, triple, rf"$\tilde\gamma$ after (1, row),  $\lambda_3$ = {float(heads.gate(3)):.4f}", "after 1, then"
    )
    _legend(lower.subplots(), samples)
    told = CAPTION.format(cell=cell, items=len(samples), theta=theta)
    strongest = {2: float(heads.gate(2)) * np.nanstd(pair), 3: float(heads.gate(3)) * np.nanstd(triple)}
    weak = [order for order, spread in strongest.items() if is_inert(spread / theta)]
    if weak:
        told += f" Here order {' and '.join(map(str, weak))} is inert: its spread is below {INERT_SPREAD:g} of theirs."
    return Drawn("transitions", "Transition heads", told, figure, shows_items=True)


def _heatmap(axes: Axes, table: np.ndarray, title: str, rows: str) -> None:
    """Empty (NaN) cells stay white and are hatched."""
    reach = np.nanmax(np.abs(table))
    shown = np.ma.masked_invalid(table)
    drawn = axes.imshow(shown, cmap=AROUND_ZERO, vmin=-reach, vmax=reach)
    for row, column in np.argwhere(np.isnan(table)):
        axes.add_patch(
            Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, hatch="////", edgecolor=FAINT, linewidth=0)
        )
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
    """Numbered thumbnails with their captions, in two columns."""
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
