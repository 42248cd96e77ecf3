"""Claims of the paper (claims.toml), and the contrasts that need more than scores of two cells."""

from __future__ import annotations

import math

from dinorankclip.methods import LABEL
from dinorankclip.run_files import INERT_SPREAD, MODALITIES, spread_name
from dinorankclip_studies.claim import Claim, Contrast
from dinorankclip_studies.papers.claims_file import load_claims
from dinorankclip_studies.papers.dinorankclip import PAPER
from dinorankclip_studies.papers.dinorankclip.plans import cells_with
from dinorankclip_studies.papers.measures import Measures
from dinorankclip_studies.quantities import SCORES, Context, Quantity, gain, spreads
from dinorankclip_studies.run_times import PAPER_TRUNK, Bench


def spread_of_order_3(cell: str) -> Contrast:
    """The spread of order 3 over the inert one, as a power of ten: spreads are positive, and seeds differ by
    factors."""

    def powers(context: Context) -> dict[int, float]:
        return {seed: math.log10(value / INERT_SPREAD) for seed, value in spreads(context.results, cell, 3).items()}

    quantity = Quantity(powers, (cell,), tuple(spread_name(3, side) for side in MODALITIES))
    return Contrast(f"{cell}: log10 of the spread of order 3 over {INERT_SPREAD:g}", quantity, unit="number")


def step_beyond_paper(order: int, to: int, full: bool = False, paper_trunk: bool = False) -> Contrast:
    """The cost of a step beside one of order `to` in the bench's rounds, minus the paper's (projected) ratio."""
    printed = PAPER.values["tab:cost-accuracy"]
    projected = printed[str(order)]["step ms"] / printed[str(to)]["step ms"]
    side, other = Bench.full(order) if full else Bench.order(order), Bench.order(to)
    trunk = PAPER_TRUNK if paper_trunk else None

    def values(context: Context) -> dict[int, float]:
        return {at: ratio - projected for at, ratio in context.bench.ratio(side, other, trunk).items()}

    label = f"{side} / {other}{f' on {trunk}' if trunk else ''}, minus {projected:.2f} of the {LABEL}"
    return Contrast(label, Quantity(values), unit="times")


def bend_of_cost() -> Contrast:
    """How much more orders 3 to 5 cost than orders 1 to 3, as a share of the whole; 0 on a straight line."""

    def values(context: Context) -> dict[int, float]:
        third, fifth = (context.bench.ratio(Bench.order(order), Bench.order(1)) for order in (3, 5))
        return {at: (fifth[at] - 2 * third[at] + 1) / (fifth[at] - 1) for at in third.keys() & fifth.keys()}

    return Contrast("[(t₅ - t₃) - (t₃ - t₁)] / (t₅ - t₁)", Quantity(values), unit="number")


def gain_for_cost(over: str, order: int) -> Contrast:
    """The gain over RankCLIP for each step of order 0 that a step costs more than RankCLIP's: of order 3, minus that
    of the cell `over`."""

    def per_cost(cell: str, order: int) -> Quantity:
        def median_extra(context: Context) -> float | None:
            own, first = (context.bench.ratio(Bench.order(number), Bench.order(0)) for number in (order, 1))
            extra = sorted(own[at] - first[at] for at in own.keys() & first.keys())
            return extra[len(extra) // 2] if extra else None

        return gain(cell, "rankclip", SCORES["accuracy"].score) / median_extra

    return Contrast(f"rank-3 minus {over}", per_cost("rank-3", 3) - per_cost(over, order), unit="points a step")


CLAIMS: tuple[Claim, ...] = load_claims(
    PAPER.folder / "claims.toml",
    PAPER.values,
    {
        function.__name__: function
        for function in (spread_of_order_3, step_beyond_paper, bend_of_cost, gain_for_cost)
    },
)  # fmt: skip


def claims_of(measures: Measures) -> tuple[Claim, ...]:
    """Return the claims that a kind of study has the cells for. Claims about cost are judged beside the scenes only."""
    if measures.kind == "flickr8k":
        cells = set(cells_with("photos"))
        return tuple(claim for claim in CLAIMS if not claim.only and claim.cells and cells.issuperset(claim.cells))
    if measures.kind == "cc3m":
        return tuple(claim for claim in CLAIMS if claim.only != "scenes" and claim.cells)
    return tuple(claim for claim in CLAIMS if claim.only != "cc3m")
