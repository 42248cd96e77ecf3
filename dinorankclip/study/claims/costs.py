"""Claims about what an order, and the full method, costs. Times are the bench's, never those of study runs."""

from __future__ import annotations

from ..bench_figures import PAPER_TRUNK, Bench
from ..paper_values import LABEL, PAPER
from .building import named
from .quantities import ACCURACY, Context, Quantity, gain, shifted, step_ratio
from .shapes import AllEquivalent, AllHold, Claim, Contrast

_STEP = {int(order): told["step ms"] for order, told in PAPER["tab:cost-accuracy"].items()}
RATIO_MARGIN = 0.1  # a tenth of the cheaper step
BEND_MARGIN = 0.2  # of the cost between orders 1 and 5
_ONE_ROW = "the paper prints one time for order 3, whether plain or full; "
_HARDWARE = "two CPU cores and a small trunk, where the ranking loss weighs more than on the paper's GPUs"


def _beyond(side: str, to: str, projected: float, trunk: str | None = None) -> Contrast:
    where = f" on {trunk}" if trunk else ""
    label = f"{side} / {to}{where}, minus {projected:.2f} of the {LABEL}"
    return named(label, shifted(step_ratio(side, to, trunk), projected), unit="times")


def _bend() -> Contrast:
    """How much more orders 3 to 5 cost than orders 1 to 3, as a share of the whole; 0 on a straight line."""

    def values(context: Context) -> dict[int, float]:
        third, fifth = (context.bench.ratio(Bench.order(order), Bench.order(1)) for order in (3, 5))
        return {at: (fifth[at] - 2 * third[at] + 1) / (fifth[at] - 1) for at in third.keys() & fifth.keys()}

    return named("[(t₅ - t₃) - (t₃ - t₁)] / (t₅ - t₁)", Quantity(values), unit="number")


def _per_cost(cell: str, order: int) -> Quantity:
    """Gain over RankCLIP for each step of order 0 that a step costs more than RankCLIP's."""

    def extra(context: Context) -> float | None:
        own, first = (context.bench.ratio(Bench.order(number), Bench.order(0)) for number in (order, 1))
        spent = [own[at] - first[at] for at in own.keys() & first.keys()]
        return sorted(spent)[len(spent) // 2] if spent else None

    return gain(cell, "rankclip", ACCURACY) / extra


CLAIMS = (
    Claim(
        "cost-order-3",
        "A step of order 3 costs about a fifth more than one of order 1.",
        "tab. cost-accuracy",
        ("orders-plain",),
        AllEquivalent(
            (_beyond(Bench.order(3), Bench.order(1), _STEP[3] / _STEP[1]),),
            RATIO_MARGIN,
            also=tuple(_beyond(Bench.order(order), Bench.order(1), _STEP[order] / _STEP[1]) for order in (2, 4, 5)),
        ),
        remark=_ONE_ROW + _HARDWARE,
    ),
    Claim(
        "cost-full",
        "A step of the full method costs about a quarter more than CLIP's.",
        "Sec. 4.1 (“essentially equal … plus the small student forward pass”), tab. cost-accuracy",
        ("main",),
        AllEquivalent(
            (_beyond(Bench.full(), Bench.order(0), _STEP[3] / _STEP[0], PAPER_TRUNK),),
            RATIO_MARGIN,
            also=(_beyond(Bench.full(), Bench.order(0), _STEP[3] / _STEP[0]),),
        ),
        remark=_ONE_ROW + "the paper's trunk on two CPU cores with a batch of 32, and beside it a small trunk",
    ),
    Claim(
        "cost-linear",
        "Cost grows linearly with the order.",
        "Sec. 7 (extended analysis)",
        ("orders-plain",),
        AllEquivalent((_bend(),), BEND_MARGIN),
        remark="orders 2 and 3 have linear maps, 4 and 5 a transformer layer each; " + _HARDWARE,
    ),
    Claim(
        "gain-per-cost",
        "Gain in accuracy for each further hour peaks at order 3.",
        "Sec. 7 (extended analysis)",
        ("orders-plain",),
        AllHold(
            tuple(
                named(f"rank-3 minus {cell}", _per_cost("rank-3", 3) - _per_cost(cell, order), unit="points a step")
                for order, cell in ((2, "rank-2"), (4, "rank-4"), (5, "rank-5"))
            ),
            acting=(("rank-3", 3),),
        ),
        remark="points for each step of order 0 that a step costs more than order 1's; gains are of the study's trunk "
        "and batch, costs of the bench's; the paper's own table has its peak at order 2",
        only="scenes",
    ),
)
