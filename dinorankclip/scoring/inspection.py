"""What fusion does to embeddings: gate values, and the angle between fused and contrastive embedding against its bound.

The proposition bounds the angle by arcsin(ratio), ratio = max|α|·‖u‖/‖v‖, and says nothing where the ratio reaches 1.

Shapes: N items, D embedding width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from dinorankclip.data.evaluation import iterate_pairs
from dinorankclip.data.images import MAX_PIXELS
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.equations import alignment_bound, alignment_ratio, fused_angle
from dinorankclip.fusion import Fused
from dinorankclip.joint.model import JointModel
from dinorankclip.types import Source

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
