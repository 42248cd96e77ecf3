"""Measures what fusion does to embeddings: gate values, and the angle between fused and contrastive embedding.

The proposition bounds the angle by arcsin(ratio), ratio = max|α|·‖u‖/‖v‖, and says nothing where the ratio reaches 1.

Shapes: N items, D embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from dinorankclip.data.decode import MAX_PIXELS
from dinorankclip.data.samples import iterate_pairs
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.models.fusion import Fused, alignment_bound, alignment_ratio, fused_angle
from dinorankclip.models.joint import JointModel
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

    @classmethod
    def of(cls, fused: Fused, contrastive: Tensor) -> Inspected:
        trunk, gate = contrastive.float(), fused.gate.float()
        angle, ratio = fused_angle(fused.embedding.float(), trunk), alignment_ratio(gate, fused.residual.float(), trunk)
        return cls(gate.cpu(), angle.cpu(), ratio.cpu())

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


@torch.inference_mode()
def inspect(
    model: JointModel, source: Source, tokenizer: Tokenizer, items: int = ITEMS, max_pixels: int = MAX_PIXELS
) -> dict[str, Inspected]:
    """Inspect each branch on the first usable `items` images of `source` and on their first captions."""
    batches = iterate_pairs(source, model.trunk.image_spec, min(BATCH, items), max_pixels=max_pixels)
    parts: dict[str, list[Inspected]] = {}
    for _keys, pixels, captions in islice(batches, -(-items // BATCH)):
        sides = {"image": model.see(model.normalised(pixels.to(model.device)))}
        if model.text_fusion is not None:
            sides["text"] = model.read(tokenizer([group[0] for group in captions]).to(model.device))
        for branch, side in sides.items():
            if side.fused is not None:
                parts.setdefault(branch, []).append(Inspected.of(side.fused, side.contrastive))
    return {
        branch: Inspected(*(torch.cat([getattr(part, name) for part in some]) for name in ("gate", "angle", "ratio")))
        for branch, some in parts.items()
    }


def inspection_table(numbers: dict[str, Any]) -> str:
    """Format angle, bound and gate of `{"start": …, "end": …}`, each a dict of `Inspected.numbers` by branch."""
    columns = ("mean", "5 %", "median", "95 %", "max")
    lines = [f"{'fusion on held-out pairs':<36}" + "".join(f"{name:>9}" for name in columns)]
    for branch in numbers["end"]:
        for what, words in (("angle", "angle, degrees"), ("bound", "its bound"), ("gate", "gate α")):
            for when in ("start", "end") if "start" in numbers else ("end",):
                cells = numbers[when][branch][what]
                lines.append(f"{branch:<7}{words:<21}{when:<8}" + "".join(f"{cells[name]:>9.3f}" for name in columns))
        beyond = numbers["end"][branch]["share at ratio >= 1"]
        lines.append(f"{branch:<7}{100 * beyond:.1f} % of items at ratio ≥ 1, where the bound says nothing")
    return "\n".join(lines)
