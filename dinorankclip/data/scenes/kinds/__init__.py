"""Registers all kinds of things. Each file draws a few groups, and importing this package registers all in this order.

Class numbers and random choices follow the order of KINDS: a file imported elsewhere, or a kind moved, changes bytes.
"""

from __future__ import annotations

from dinorankclip.data.scenes.kinds import (  # noqa: F401 - imported for the kinds they register
    animals,
    buildings_and_clothes,
    food_and_furniture,
    household_and_instruments,
    plants_tools_toys,
    vehicles,
)
from dinorankclip.data.scenes.subjects import FAMILIES, GROUPS, KINDS, Kind

__all__ = ["FAMILIES", "GROUPS", "KINDS", "Kind", "members"]


def members(family: str) -> tuple[str, ...]:
    """Return the kinds of a fine-grained family."""
    return tuple(name for name, kind in KINDS.items() if kind.family == family)
