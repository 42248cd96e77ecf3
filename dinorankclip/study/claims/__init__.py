"""The paper's claims, each with the cells and scores that decide it and the rule by which they do.

comparisons.py, orders.py, components.py, ablations.py, geometry.py, costs.py, failures.py     the claims, by subject
shapes.py       what a claim is             building.py   short forms for writing one down
quantities.py   the numbers it is about     judging.py    all claims on results
teachers.py     who taught its cells
"""

from __future__ import annotations

from .judging import CLAIMS, Judged, judged
from .quantities import Context
from .shapes import Claim, Evidence, Shown, in_unit
from .teachers import caveat

__all__ = ["CLAIMS", "Claim", "Context", "Evidence", "Judged", "Shown", "caveat", "in_unit", "judged"]
