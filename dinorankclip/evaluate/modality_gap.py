"""How far apart images and texts lie (D26): cone separation, mean half-angles of both cones, distance of centroids.

Intervals draw images together with their captions. For paired comparison every image also gets a contribution: the
value plus N times the derivative of the value by that image's weight, so that contributions have the value as mean and
spread as the value itself would over samples.

Shapes: N images, M texts, D embedding width, b draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dinorankclip.data.decode import MAX_PIXELS
from dinorankclip.data.loader import iterate_pairs
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.evaluate.intervals import interval_of
from dinorankclip.evaluate.scores import Score
from dinorankclip.formatting import Unit
from dinorankclip.losses.contrastive import unit_rows
from dinorankclip.models.fusion import Fused, alignment_bound, alignment_ratio, fused_angle
from dinorankclip.models.joint import JointModel
from dinorankclip.types import Source

if TYPE_CHECKING:
    from dinorankclip.evaluate.scores import SeenSet

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


@dataclass(frozen=True)
class Node:
    """One model: its measures by name, and how much each changed from the node before (the same images drawn)."""

    name: str
    measures: dict[str, Estimate]
    change: dict[str, Estimate] | None


def gap_along(
    nodes: Mapping[str, tuple[Tensor, Tensor]],
    image_of_text: Sequence[int] | np.ndarray | None = None,
    *,
    level: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
) -> list[Node]:
    """The gap of several models on the same items, (image [N, D], text [M, D]) each, and every step between them.

    `image_of_text` [M] is the image a text belongs to; by default text i belongs to image i.
    """
    functions = [gap_function(image, text, image_of_text) for image, text in nodes.values()]
    count = len(next(iter(nodes.values()))[0])

    def all_of(counts: np.ndarray) -> np.ndarray:
        """Measures [b, nodes, 4], then changes [b, nodes - 1, 4]."""
        with torch.no_grad():
            found = torch.stack([function(torch.from_numpy(counts)) for function in functions], 1)
        return torch.cat([found, found[:, 1:] - found[:, :-1]], 1).numpy()

    values = all_of(np.ones((1, count), np.float32))[0]
    low, high = interval_of(all_of, count, level=level, draws=draws, seed=seed)
    rows = [
        {name: Estimate(*map(float, numbers)) for name, *numbers in zip(MEASURES, values[at], low[at], high[at])}
        for at in range(len(values))
    ]
    changes = [None, *rows[len(nodes) :]]
    return [Node(name, measures, change) for name, measures, change in zip(nodes, rows, changes)]


def gap_function(
    image: Tensor, text: Tensor, image_of_text: Sequence[int] | np.ndarray | None = None
) -> Callable[[Tensor], Tensor]:
    """counts [b, N], how often each image was drawn → measures [b, 4], differentiable.

    The angle between two means, and the mean angle between rows and their own mean, rows normalised first:

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


def contributions(measures: Callable[[Tensor], Tensor], count: int) -> np.ndarray:
    """What each image adds to each measure, with the measure as mean: float64 [N, 4]."""
    weights = torch.ones(1, count, dtype=torch.double, requires_grad=True)
    values = measures(weights)[0]
    slopes = [torch.autograd.grad(value, weights, retain_graph=True)[0][0] for value in values]
    return (values[:, None] + count * torch.stack(slopes)).detach().T.numpy()


class ModalityGapScorer:
    """The gap on caption sets, over all captions."""

    name = "modality gap"
    version = 1

    def applies(self, seen: SeenSet) -> bool:
        return seen.kind == "retrieval"

    def __call__(self, seen: SeenSet) -> Iterator[Score]:
        image, (text, owner) = seen.images(), seen.caption_rows()
        node = gap_along({seen.name: (image, text)}, owner)[0]
        items = contributions(gap_function(image, text, owner), len(image))
        for (name, found), column in zip(node.measures.items(), items.T):
            yield Score(name, found.value, len(image), MEASURES[name], items=column, low=found.low, high=found.high)


def _angle(a: Tensor, b: Tensor) -> Tensor:
    """Degrees between unit rows, as `equations.cone_separation` takes them."""
    return torch.rad2deg(2 * torch.atan2((a - b).norm(dim=1), (a + b).norm(dim=1)))


# -------- inspection
# What fusion does to embeddings: gate values, and the angle between fused and contrastive embedding against its bound.
#
# The proposition bounds the angle by arcsin(ratio), ratio = max|α|·‖u‖/‖v‖, and says nothing where the ratio reaches 1.
#
# Shapes: N items, D embedding width.

ITEMS = 1000
BATCH = 250
SHARES = {"min": 0.0, "5 %": 0.05, "median": 0.5, "95 %": 0.95, "max": 1.0}


@dataclass
class Inspected:
    """One branch on N items."""

    gate: Tensor  # α, [N, D]
    angle: Tensor  # degrees [N]
    ratio: Tensor  # [N]

    @property
    def bound(self) -> Tensor:
        """Degrees [N]; 180 where the proposition says nothing."""
        return alignment_bound(self.ratio)

    def numbers(self) -> dict[str, Any]:
        return {
            "items": len(self.angle),
            "angle": _spread(self.angle),
            "bound": _spread(self.bound),
            "gate": _spread(self.gate.flatten()),
            "gate of a dimension, mean over items": _spread(self.gate.mean(0)),
            "gate of an item, mean over dimensions": _spread(self.gate.mean(1)),
            "share at ratio >= 1": (self.ratio >= 1).double().mean().item(),
        }


def _spread(values: Tensor) -> dict[str, float]:
    values = values.double()
    ordered = values.sort().values
    places = {name: round(share * (len(ordered) - 1)) for name, share in SHARES.items()}
    return {"mean": values.mean().item()} | {name: ordered[place].item() for name, place in places.items()}


def inspect_side(fused: Fused, contrastive: Tensor) -> Inspected:
    trunk = contrastive.float()
    gate, residual = fused.gate.float(), fused.residual.float()
    return Inspected(
        gate.cpu(),
        fused_angle(fused.embedding.float(), trunk).cpu(),
        alignment_ratio(gate, residual, trunk).cpu(),
    )


@torch.inference_mode()
def inspect(
    model: JointModel, source: Source, tokenizer: Tokenizer, items: int = ITEMS, max_pixels: int = MAX_PIXELS
) -> dict[str, Inspected]:
    """Branch → what fusion does on the first usable `items` images of `source` and on their first captions."""
    found: dict[str, list[Inspected]] = {}
    for pixels, captions in _some(source, model, items, max_pixels):
        sides = {"image": model.see(model.normalised(pixels.to(model.device)))}
        if model.text_fusion is not None:
            sides["text"] = model.read(tokenizer(captions).to(model.device))
        for branch, side in sides.items():
            if side.fused is not None:
                found.setdefault(branch, []).append(inspect_side(side.fused, side.contrastive))
    return {
        branch: Inspected(*(torch.cat([getattr(part, name) for part in parts]) for name in ("gate", "angle", "ratio")))
        for branch, parts in found.items()
    }


def _some(source: Source, model: JointModel, items: int, max_pixels: int) -> Iterator[tuple[Tensor, list[str]]]:
    batches = iterate_pairs(source, model.trunk.image_spec, min(BATCH, items), max_pixels=max_pixels)
    for _keys, pixels, groups in islice(batches, -(-items // BATCH)):
        yield pixels, [group[0] for group in groups]
