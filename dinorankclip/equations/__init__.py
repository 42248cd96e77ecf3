"""Every numbered equation as a pure function: number, formula, shapes, plain loops. Imports nothing of the project."""

from .alip import alip_weights
from .contrastive import info_nce, info_nce_rows, unit_rows
from .cyclip import consistency_rows, cyclip_consistency
from .geometry import cone_separation
from .ranking import plackett_luce_nll, rankclip_nll

__all__ = [
    "alip_weights",
    "cone_separation",
    "consistency_rows",
    "cyclip_consistency",
    "info_nce",
    "info_nce_rows",
    "plackett_luce_nll",
    "rankclip_nll",
    "unit_rows",
]
