"""Measures how embeddings lie: the gap between images and texts, and the turn that fusion gives to an embedding.

The gap (D26): separation of two cones, their half-angles, distance of the centroids. Intervals draw images together
with their captions. For paired comparison every image also gets a contribution: the value plus N times the derivative
of the value by that image's weight. The mean of the contributions is the value, and they spread as the value itself
would over samples.

Fusion is measured by its gate and the angle of fused to contrastive embedding. The proposition bounds the angle by
arcsin(ratio), ratio = max|α|·‖u‖/‖v‖, and says nothing where the ratio reaches 1.

Shapes: N images or items, M texts, D embedding width, b draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dinorankclip.data.damage import Damage
from dinorankclip.data.samples import iterate_pairs
from dinorankclip.evaluate.intervals import interval_of
from dinorankclip.evaluate.scores import EmbeddedSet, Score
from dinorankclip.formatting import Unit
from dinorankclip.losses.contrastive import unit_rows
from dinorankclip.models.folder import AnyModel
from dinorankclip.models.fusion import alignment_bound, alignment_ratio, fused_angle
from dinorankclip.types import ImageRows, Source

INSPECTED, BATCH = 1000, 250  # number of items in an inspection of fusion, and in a batch
SHARES = {"min": 0.0, "5 %": 0.05, "median": 0.5, "95 %": 0.95, "max": 1.0}
MEASURES: dict[str, Unit] = {
    "cone separation": "degrees",
    "image half-angle": "degrees",
    "text half-angle": "degrees",
    "centroid distance": "number",
}


@dataclass(frozen=True)
class Estimate:
    value: float
    low: float
    high: float


def modality_gap(
    image: Tensor, text: Tensor, image_of_text: Sequence[int] | np.ndarray | None = None, draws: int = 1000
) -> dict[str, Estimate]:
    """Measure the gap between `image` [N, D] and `text` [M, D], with intervals.

    `image_of_text` [M] is the image a text belongs to; by default text i belongs to image i.
    """
    function = gap_function(image, text, image_of_text)

    @torch.no_grad()
    def measures(counts: np.ndarray) -> np.ndarray:
        return function(torch.from_numpy(counts)).numpy()

    values = measures(np.ones((1, len(image)), np.float32))[0]
    low, high = interval_of(measures, len(image), draws=draws)
    return {name: Estimate(*map(float, numbers)) for name, *numbers in zip(MEASURES, values, low, high)}


def gap_function(
    image: Tensor, text: Tensor, image_of_text: Sequence[int] | np.ndarray | None = None
) -> Callable[[Tensor], Tensor]:
    """Return a differentiable function of counts [b, N], how often each image was drawn, to measures [b, 4].

    Measures are the angle between two means, and the mean angle between rows and their own mean, of normalised rows:

        separation = angle(m, m'),   half-angle = mean_i angle(row_i, m),   distance = |m - m'|
    """
    if len(image) != len(text) and image_of_text is None:
        raise ValueError(f"{len(image)} images and {len(text)} texts: say which image each text belongs to")
    owner = torch.arange(len(text)) if image_of_text is None else torch.as_tensor(np.asarray(image_of_text))
    image, text = unit_rows(image.float().cpu()), unit_rows(text.float().cpu())

    def measures(counts: Tensor) -> Tensor:
        sides = [(image.to(counts), counts), (text.to(counts), counts[:, owner])]
        means = [weights @ rows / weights.sum(1, keepdim=True) for rows, weights in sides]
        separation = _angle(unit_rows(means[0]), unit_rows(means[1]))
        halves = []
        for (rows, weights), mean in zip(sides, means):
            # Rounding takes a cosine to 1, where the angle has no derivative.
            cosine = (unit_rows(mean) @ rows.T).clamp(-1 + 1e-7, 1 - 1e-7)
            halves.append((weights * cosine.acos().rad2deg()).sum(1) / weights.sum(1))
        return torch.stack([separation, *halves, (means[0] - means[1]).norm(dim=1)], 1)

    return measures


def _angle(a: Tensor, b: Tensor) -> Tensor:
    """Return degrees between unit rows, as in `losses.cone_separation`."""
    return torch.rad2deg(2 * torch.atan2((a - b).norm(dim=1), (a + b).norm(dim=1)))


def contributions(measures: Callable[[Tensor], Tensor], count: int) -> np.ndarray:
    """Return the contribution of each image to each measure, float64 [N, 4]; their mean is the measure."""
    weights = torch.ones(1, count, dtype=torch.double, requires_grad=True)
    values = measures(weights)[0]
    slopes = [torch.autograd.grad(value, weights, retain_graph=True)[0][0] for value in values]
    return (values[:, None] + count * torch.stack(slopes)).detach().T.numpy()


class ModalityGapScorer:
    """Measures the gap on caption sets, over all captions."""

    name = "modality gap"
    version = 1

    def applies(self, embedded: EmbeddedSet) -> bool:
        return embedded.kind == "retrieval"

    def __call__(self, embedded: EmbeddedSet) -> Iterator[Score]:
        image, (text, owner) = embedded.images(), embedded.caption_rows()
        items = contributions(gap_function(image, text, owner), len(image))
        for (name, gap), column in zip(modality_gap(image, text, owner).items(), items.T):
            yield Score(name, gap.value, len(image), MEASURES[name], items=column, low=gap.low, high=gap.high)


@torch.inference_mode()
def inspect_fusion(
    model: AnyModel, source: Source, tokenizer: Callable[..., Tensor], max_pixels: int, rows: ImageRows | None = None
) -> dict[str, dict[str, Any]]:
    """Describe each branch on the first usable images of `source` and on their first captions. `rows` are stored rows
    of frozen towers, which spare a look at the images."""
    if rows is None:
        batches = iterate_pairs(source, model.image_spec, BATCH, max_pixels=max_pixels)
    else:
        batches = _stored_pairs(source, rows)
    parts: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {}  # gate [n, D], angle in degrees [n], ratio [n]
    for _keys, pixels, captions in islice(batches, INSPECTED // BATCH):
        sides = {"image": model.image_side(pixels.to(model.device))}
        if model.text_fusion is not None:
            sides["text"] = model.text_side(tokenizer([group[0] for group in captions]).to(model.device))
        for branch, side in sides.items():
            if side.fused is not None:
                trunk, gate = side.contrastive.float(), side.fused.gate.float()
                angle = fused_angle(side.fused.embedding.float(), trunk)
                ratio = alignment_ratio(gate, side.fused.residual.float(), trunk)
                parts.setdefault(branch, []).append((gate.cpu(), angle.cpu(), ratio.cpu()))
    return {branch: _fusion_numbers(*map(torch.cat, zip(*some))) for branch, some in parts.items()}


def _stored_pairs(source: Source, rows: ImageRows) -> Iterator[tuple[list[str], Tensor, list[tuple[str, ...]]]]:
    """Yield keys, rows and captions of usable pairs, as `iterate_pairs` yields pixels."""
    usable: list[tuple[str, Tensor, tuple[str, ...]]] = []
    for index in range(len(source)):
        with suppress(Damage):
            usable.append((source.key(index), rows(index), source.captions(index)))
        if len(usable) == BATCH:
            keys, stored, captions = zip(*usable)
            yield list(keys), torch.stack(stored), list(captions)
            usable = []
    if usable:
        keys, stored, captions = zip(*usable)
        yield list(keys), torch.stack(stored), list(captions)


def _fusion_numbers(gate: Tensor, angle: Tensor, ratio: Tensor) -> dict[str, Any]:
    return {
        "items": len(angle),
        "angle": _spread(angle),
        "bound": _spread(alignment_bound(ratio)),
        "gate": _spread(gate.flatten()),
        "gate of a dimension, mean over items": _spread(gate.mean(0)),
        "gate of an item, mean over dimensions": _spread(gate.mean(1)),
        "share at ratio >= 1": (ratio >= 1).double().mean().item(),
    }


def _spread(values: Tensor) -> dict[str, float]:
    values = values.double()
    ordered = values.sort().values
    places = {name: round(share * (len(ordered) - 1)) for name, share in SHARES.items()}
    return {"mean": values.mean().item()} | {name: ordered[place].item() for name, place in places.items()}


def inspection_table(numbers: dict[str, Any]) -> str:
    """Format angle, bound and gate of `{"start": …, "end": …}`, each the result of `inspect_fusion`."""
    columns = ("mean", "5 %", "median", "95 %", "max")
    lines = [f"{'fusion on held-out pairs':<36}" + "".join(f"{name:>9}" for name in columns)]
    for branch in numbers["end"]:
        for what, words in (("angle", "angle, degrees"), ("bound", "its bound"), ("gate", "gate α")):
            for when in (when for when in ("start", "end") if branch in numbers.get(when, {})):
                cells = numbers[when][branch][what]
                lines.append(f"{branch:<7}{words:<21}{when:<8}" + "".join(f"{cells[name]:>9.3f}" for name in columns))
        beyond = numbers["end"][branch]["share at ratio >= 1"]
        lines.append(f"{branch:<7}{100 * beyond:.1f} % of items at ratio ≥ 1, where the bound says nothing")
    return "\n".join(lines)
