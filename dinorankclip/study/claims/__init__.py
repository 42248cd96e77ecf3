"""The paper's claims, each with the cells and scores that decide it and the rule by which they do."""

from __future__ import annotations

from .judging import CLAIMS, Judged, judged
from .quantities import Context
from .shapes import Claim, Evidence, Shown, in_unit
from .teachers import caveat

__all__ = ["CLAIMS", "Claim", "Context", "Evidence", "Judged", "Shown", "caveat", "in_unit", "judged"]
