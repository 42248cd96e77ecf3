"""All claims on a study's results."""

from __future__ import annotations

from dataclasses import dataclass

from ..bench_figures import Bench
from ..experiments import FLICKR_CELLS
from ..measures import CC3M, FLICKR8K, Measures, measures_of
from ..results import Results
from . import ablations, comparisons, components, costs, failures, geometry, orders
from .quantities import Context
from .shapes import Claim, Evidence

CLAIMS: tuple[Claim, ...] = (
    comparisons.CLAIMS
    + orders.CLAIMS
    + components.CLAIMS
    + ablations.CLAIMS
    + geometry.CLAIMS
    + failures.CLAIMS
    + costs.CLAIMS
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
