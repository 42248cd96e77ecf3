"""Which parameters are decayed, which have a rate of their own, and which are not trained at all. Every parameter must
be covered by a rule."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from dinorankclip.types import UserError

# Scales, shifts and scalars (norms, biases, gates, logit_scale, class tokens) have at most one dimension and are
# never decayed. What is left is matched by name, first match wins; an unmatched parameter is an error, so that a
# renamed layer fails loudly instead of silently landing in the wrong group.
RULES: tuple[tuple[str, bool], ...] = (
    ("*.bias", False),
    ("*cls_token", False),
    ("*reg_token", False),
    ("*.gamma", False),
    ("*positional_embedding", True),
    ("*pos_embed*", True),
    ("*_student.positions", True),
    ("*latent*", True),
    ("*probe*", True),
    ("*.proj", True),
    ("*text_projection", True),
    ("*weight", True),
    ("*query", True),
)
HEADS = "*transitions.*"  # the heads and gates of the orders above 1


def decayed(name: str, parameter: nn.Parameter) -> bool:
    if parameter.ndim <= 1:
        return False
    for pattern, decay in RULES:
        if fnmatchcase(name, pattern):
            return decay
    raise UserError(f"no weight-decay rule covers the parameter '{name}' {tuple(parameter.shape)}: add one to RULES")


def freeze(model: nn.Module, patterns: tuple[str, ...]) -> list[str]:
    """Switch off training of every parameter that matches; a pattern that matches nothing is an error."""
    frozen = []
    for pattern in patterns:
        hits = [(n, p) for n, p in model.named_parameters() if fnmatchcase(n, pattern)]
        if not hits:
            names = ", ".join(sorted({".".join(n.split(".")[:3]) for n, _ in model.named_parameters()}))
            raise UserError(f"--optim.freeze '{pattern}' matches no parameter; names begin with: {names}")
        for name, parameter in hits:
            parameter.requires_grad_(False)
            frozen.append(name)
    return frozen


def parameter_groups(named: dict[str, nn.Parameter], weight_decay: float, **of_heads: float) -> list[dict]:
    """AdamW's groups of trainable parameters, decayed or not, heads apart from all others. Each remembers its names in
    order and `rate_factor`, its share of the schedule's rate; `of_heads` are options that the heads alone have."""
    groups: dict[tuple[bool, bool], dict[str, Any]] = {
        (is_head, is_decayed): {"params": [], "names": [], "weight_decay": decay, "rate_factor": 1.0} | own
        for is_head, own in ((False, {}), (True, of_heads))
        for is_decayed, decay in ((True, weight_decay), (False, 0.0))
    }
    for name, parameter in named.items():
        if parameter.requires_grad:
            group = groups[fnmatchcase(name, HEADS), decayed(name, parameter)]
            group["params"].append(parameter)
            group["names"].append(name)
    return [group for group in groups.values() if group["params"]]
