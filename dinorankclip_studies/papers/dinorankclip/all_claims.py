"""The paper's claims, each with the cells and scores that decide it and the rule by which they do.

comparisons.py, orders.py, components.py, ablations.py, geometry.py, costs.py, failures.py     the claims, by subject
shapes.py       what a claim is             building.py   short forms for writing one down
quantities.py   the numbers it is about     judging.py    all claims on results
teachers.py     who taught its cells
"""

from __future__ import annotations

from dataclasses import dataclass

from dinorankclip_studies.claim import Claim, Evidence, Shown, caveat, in_unit
from dinorankclip_studies.papers.dinorankclip import claims_geometry, claims_methods, claims_orders, claims_parts
from dinorankclip_studies.papers.dinorankclip.measures import CC3M, FLICKR8K, Measures, measures_of
from dinorankclip_studies.papers.dinorankclip.tables_ablations import FLICKR_CELLS
from dinorankclip_studies.quantities import Context
from dinorankclip_studies.results import Results
from dinorankclip_studies.run_times import Bench

__all__ = ["CLAIMS", "Claim", "Context", "Evidence", "Judged", "Shown", "caveat", "in_unit", "judged"]


# -------- judging
# All claims on a study's results.

CLAIMS: tuple[Claim, ...] = (
    claims_methods.COMPARISON_CLAIMS
    + claims_orders.ORDER_CLAIMS
    + claims_parts.COMPONENT_CLAIMS
    + claims_parts.ABLATION_CLAIMS
    + claims_geometry.GEOMETRY_CLAIMS
    + claims_methods.FAILURE_CLAIMS
    + claims_orders.COST_CLAIMS
)


@dataclass(frozen=True)
class Judged:
    claim: Claim
    study: str
    evidence: Evidence


def judged(results: Results, bench: Bench | None = None) -> tuple[Judged, ...]:
    """Every claim that such a study can speak about; what has not run yet says so."""
    measures = measures_of(results.name)
    context = Context(results, measures, bench or Bench())
    return tuple(Judged(claim, results.name, claim.evidence(context)) for claim in claims_of(measures))


def claims_of(measures: Measures) -> tuple[Claim, ...]:
    """Those that a kind of study has what it needs for. Claims about cost are judged once, beside the scenes."""
    if measures is FLICKR8K:
        there = set(FLICKR_CELLS)
        return tuple(claim for claim in CLAIMS if not claim.only and claim.cells and there.issuperset(claim.cells))
    if measures is CC3M:
        return tuple(claim for claim in CLAIMS if claim.only != "scenes" and claim.cells)
    return tuple(claim for claim in CLAIMS if claim.only != "cc3m")
