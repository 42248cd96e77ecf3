"""How much of Adam's step its epsilon leaves to each order's heads: a number that is only watched.

Adam moves a number by rate · m̂/(√v̂ + ε). Where gradients are large that is about the rate, whatever their size; where
√v̂ comes down to ε, as behind a gate that is nearly closed, steps shrink and an order learns more slowly than it seems.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from torch import Tensor, nn

_HEAD = re.compile(r"transitions\.(?P<modality>\w+)\.heads\.(?P<order>\d+)\.")


@torch.no_grad()
def undamped_shares(optimizer: torch.optim.AdamW, named: Iterable[tuple[str, nn.Parameter]]) -> dict[str, float]:
    """`undamped3_image`: mean of √v̂/(√v̂ + ε) over the numbers of order 3's image heads. 1: ε does nothing.

    Orders that have not begun have no moments and are left out.
    """
    parameters = {p: found for name, p in named if (found := _HEAD.search(name))}
    shares: dict[str, list[Tensor]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter in parameters and parameter in optimizer.state:
                moments, head = optimizer.state[parameter], parameters[parameter]
                share = undamped(moments["exp_avg_sq"], moments["step"], group["betas"][1], group["eps"])
                shares.setdefault(f"undamped{head['order']}_{head['modality']}", []).append(share.flatten())
    return {name: torch.cat(parts).mean().item() for name, parts in shares.items()}


def undamped(second_moment: Tensor, step: Tensor, beta: float, epsilon: float) -> Tensor:
    """√v̂/(√v̂ + ε) of each number, v̂ = v/(1 - βᵗ) the mean square of its gradients after t steps."""
    root = (second_moment / (1 - beta**step)).sqrt()
    return root / (root + epsilon)
