"""Computes numbers for the log that show whether an order has an effect and whether gradients of terms agree.

Shapes: N lists, M items, K positions, H width of queries and keys, h of one order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from dinorankclip import distributed

SPREAD_ROWS, SPREAD_POSITIONS = 8, 32  # this sample costs less than a thousandth of the loss


@torch.no_grad()
def relative_spread(
    theta: Tensor, order: Tensor, queries: Tensor, keys: Tensor, active: Sequence[int]
) -> dict[int, float]:
    """Return, for each active order, the spread of λ_r·correction relative to the spread of theta (D13).

    Spread is the standard deviation over the candidates that remain at a position, averaged over a sample of
    positions (those with a history and at least two candidates) of the first few lists.
    """
    rows = slice(0, SPREAD_ROWS)
    theta, order, queries = theta[rows], order[rows], queries[rows]
    length, n_items = order.shape[1], theta.shape[1]
    first, last = max(active) - 1, min(length, n_items - 1) - 1
    if last < first:
        return dict.fromkeys(active, 0.0)
    positions = torch.linspace(first, last, min(SPREAD_POSITIONS, last - first + 1), device=order.device).long()
    rank = torch.full_like(theta, length, dtype=torch.long)
    rank.scatter_(1, order, torch.arange(length, device=order.device).expand_as(order))
    remaining = (rank[:, None, :] >= positions[None, :, None]) & torch.isfinite(theta)[:, None, :]
    width = keys.shape[1] // len(active)
    base = _spread(theta[:, None, :].expand_as(remaining), remaining)
    spreads = {}
    for index, r in enumerate(active):
        block = slice(index * width, (index + 1) * width)
        correction = queries[:, positions, block] @ keys[:, block].T
        spreads[r] = (_spread(correction, remaining) / base.clamp_min(1e-12)).item()
    return spreads


def _spread(values: Tensor, among: Tensor) -> Tensor:
    values = values.masked_fill(~among, 0.0)
    count = among.sum(-1).clamp_min(1)
    mean = values.sum(-1, keepdim=True) / count[..., None]
    variance = (values - mean).square().masked_fill(~among, 0.0).sum(-1) / count
    return variance.sqrt().mean()


def gradient_report(terms: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> dict[str, float]:
    """Return the norm of each term's gradient at `inputs` (the embeddings) and the cosines between terms' gradients.

    The numbers cover all processes, so every process must call this. The graph is retained for the backward pass.
    A term that does not depend on the inputs has norm 0 and no cosine.
    """
    size = distributed.world().size
    gradients = {}
    for name, term in terms.items():
        if term.requires_grad:
            parts = torch.autograd.grad(term, inputs, retain_graph=True, allow_unused=True)
            flat = [torch.zeros_like(i) if p is None else p for p, i in zip(parts, inputs)]
            gradients[name] = torch.cat([p.flatten().float() for p in flat]) / size  # the step's loss is a mean
    names = sorted(gradients)
    local = {f"{a}|{b}": (gradients[a] @ gradients[b]).item() for i, a in enumerate(names) for b in names[i:]}
    dots = {pair: size * value for pair, value in distributed.mean_over_processes(local).items()}
    norm = {name: math.sqrt(max(dots[f"{name}|{name}"], 0.0)) for name in names}
    report = {f"gradient_norm/{name}": norm.get(name, 0.0) for name in terms}
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            if norm[a] > 0 and norm[b] > 0:
                report[f"gradient_cosine/{a}|{b}"] = dots[f"{a}|{b}"] / (norm[a] * norm[b])
    return report


_HEAD = re.compile(r"transitions\.(?P<modality>\w+)\.heads\.(?P<order>\d+)\.")


@torch.no_grad()
def undamped_shares(
    optimizers: Iterable[torch.optim.Optimizer], named: Iterable[tuple[str, nn.Parameter]]
) -> dict[str, float]:
    """Return the share of Adam's step that its epsilon leaves to each order's heads; 1 means that ε has no effect.

    `undamped3_image` is the mean of √v̂/(√v̂ + ε) over the numbers of order 3's image heads. Adam moves a number by
    rate · m̂/(√v̂ + ε): about the rate, unless √v̂ comes down to ε, as behind a gate that is nearly closed. Then an order
    learns more slowly than its rate suggests. Orders that have not started have no moments and are left out.
    """
    parameters = {p: match for name, p in named if (match := _HEAD.search(name))}
    shares: dict[str, list[Tensor]] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter in parameters and parameter in optimizer.state:
                    moments, head = optimizer.state[parameter], parameters[parameter]
                    share = undamped(moments["exp_avg_sq"], moments["step"], group["betas"][1], group["eps"])
                    shares.setdefault(f"undamped{head['order']}_{head['modality']}", []).append(share.flatten())
    return {name: torch.cat(parts).mean().item() for name, parts in shares.items()}


def undamped(second_moment: Tensor, step: Tensor, beta: float, epsilon: float) -> Tensor:
    """Return √v̂/(√v̂ + ε) of each number; v̂ = v/(1 - βᵗ) is the mean square of its gradients after t steps."""
    root = (second_moment / (1 - beta**step)).sqrt()
    return root / (root + epsilon)
