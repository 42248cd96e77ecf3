"""The paper's claims, each with the cells and scores that decide it and the rule by which they do."""

from __future__ import annotations

from .judging import CLAIMS, Judged, judged
from .quantities import Context
from .shapes import AT_CHANCE, TEACHER_CAVEAT, Claim, Evidence, Shown, in_unit

__all__ = [
    "AT_CHANCE", "CLAIMS", "TEACHER_CAVEAT", "Claim", "Context", "Evidence", "Judged", "Shown", "in_unit", "judged",
]  # fmt: skip
