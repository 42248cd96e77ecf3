"""Knows which names are models of other libraries or of a hub, and opens them."""

from __future__ import annotations

from dinorankclip.models import hub_model, open_clip_weights, transformers_weights
from dinorankclip.models.joint import JointModel

PREFIXES = (open_clip_weights.PREFIX, transformers_weights.PREFIX, hub_model.PREFIX)


def is_foreign(where: str) -> bool:
    return where.startswith(PREFIXES)


def foreign_model(where: str) -> tuple[JointModel, str]:
    """Return the trunk, and a remark about its weights ("" if there is nothing to say)."""
    if where.startswith(hub_model.PREFIX):
        return hub_model.hub_model(where)
    if where.startswith(transformers_weights.PREFIX):
        return transformers_weights.transformers_model(where), ""
    return open_clip_weights.open_clip_model(where)
