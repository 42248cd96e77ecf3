"""All claims on a study's results."""

from __future__ import annotations

from dataclasses import dataclass

from ..bench_figures import Bench
from ..experiments import FLICKR_CELLS
from ..measures import CC3M, FLICKR8K, measures_of
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
    if measures is FLICKR8K:
        chosen = filter(_on_photos, CLAIMS)
    elif measures is CC3M:
        chosen = filter(_at_papers_scale, CLAIMS)
    else:
        chosen = CLAIMS
    return tuple(Judged(claim, results.name, claim.evidence(context)) for claim in chosen)


def _on_photos(claim: Claim) -> bool:
    """Whether the photo study has what a claim needs."""
    return _at_papers_scale(claim) and set(claim.cells) <= set(FLICKR_CELLS)


def _at_papers_scale(claim: Claim) -> bool:
    """Claims about cost are judged once, beside the scenes."""
    return bool(claim.cells) and not claim.scenes_only
