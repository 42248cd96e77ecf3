"""Claims about the Plackett–Luce order."""

from __future__ import annotations

import math
from collections.abc import Mapping

from dinorankclip.methods import LABEL
from dinorankclip.run_files import INERT_SPREAD, MODALITIES, spread_name
from dinorankclip_studies.claim import (
    AllBelow,
    AllEquivalent,
    AllHold,
    Claim,
    Contrast,
    better,
    named,
    points,
    rising,
    worse,
)
from dinorankclip_studies.papers.dinorankclip.paper_values import PAPER
from dinorankclip_studies.quantities import (
    ACCURACY,
    COARSE_PROBE,
    DECIDES,
    FINE,
    MEAN_R1,
    QUALITY,
    SHIFT,
    TOP1,
    Context,
    Quantity,
    Score,
    gain,
    recall,
    shifted,
    spreads,
    step_ratio,
)
from dinorankclip_studies.run_times import PAPER_TRUNK, Bench
from dinorankclip_studies.verdicts import SMALLEST

_TABLE = "tab:cost-accuracy"
_STEPS = tuple(points(_TABLE, "T@1", str(order), str(order - 1)) for order in (1, 2, 3))
_PRINTED = {"T@1": "T@1", "shift": "InR"}
_SUITES: tuple[tuple[str, Score], ...] = (
    ("T@1", TOP1),
    ("shift", SHIFT),
    ("i→t R@1", recall("i2t", 1)),
    ("t→i R@1", recall("t2i", 1)),
    ("coarse probe", COARSE_PROBE),
    ("fine probe", FINE),
)


def _best_of(best: str, others: Mapping[str, int]) -> tuple[Contrast, ...]:
    """Against every other order, on every suite. The paper prints the rivals' scores for two suites alone."""
    return tuple(
        better(
            best,
            other,
            score,
            points(_TABLE, column, "3", str(order)),
            what,
            borrowed="" if what in _PRINTED else "the order's T@1",
        )
        for what, score in _SUITES
        for column in (_PRINTED.get(what, _PRINTED["T@1"]),)
        for other, order in others.items()
    )


def _acts(cell: str) -> Contrast:
    """In tenfolds: a spread is positive, and seeds differ by factors."""

    def tenfolds(context: Context) -> dict[int, float]:
        return {seed: math.log10(value / INERT_SPREAD) for seed, value in spreads(context.results, cell, 3).items()}

    quantity = Quantity(tenfolds, (cell,), tuple(spread_name(3, side) for side in MODALITIES))
    return named(f"{cell}: log10 of the spread of order 3 over {INERT_SPREAD:g}", quantity, unit="number")


SLOW_HEADS = "at the trunk's rate a run this short cannot teach the heads (docs/bench/planted); see order-quick"

ORDER_CLAIMS = (
    Claim(
        "order-hierarchy",
        "Accuracy rises with the order alone: CLIP < RankCLIP < order 2 < order 3.",
        "Sec. 6 (order hierarchy), Conclusion, fig. order-curve",
        ("orders-plain",),
        AllHold(
            rising(("clip", "rankclip", "rank-2", "rank-3"), ACCURACY, _STEPS, DECIDES),
            acting=(("rank-2", 2), ("rank-3", 3)),
            also=(
                *rising(("clip", "rankclip", "rank-2", "rank-3"), TOP1, what="T@1"),
                *rising(("clip", "rankclip", "rank-2", "rank-3"), QUALITY, what="ranking τ-b"),
            ),
        ),
        remark=f"claimed sizes are those of the paper's mixed curve; {SLOW_HEADS}",
    ),
    Claim(
        "order-hierarchy-teacher",
        "With teacher and fusion too, accuracy rises from order 0 through order 3.",
        "Sec. 5.2, fig. order-curve (“on the full pretraining recipe”)",
        ("orders-teacher",),
        AllHold(
            rising(("full-0", "full-1", "full-2", "full"), ACCURACY, _STEPS, DECIDES),
            acting=(("full-2", 2), ("full", 3)),
        ),
        remark=f"claimed sizes are those of the paper's mixed curve; {SLOW_HEADS}",
    ),
    Claim(
        "order-hierarchy-mixed",
        "The printed curve: CLIP < RankCLIP < full at order 2 < full at order 3.",
        "fig. order-curve, tab. cost-accuracy",
        ("orders-paper",),
        AllHold(
            rising(("clip", "rankclip", "full-2", "full"), ACCURACY, _STEPS, DECIDES),
            acting=(("full-2", 2), ("full", 3)),
        ),
        remark="the step from order 1 to 2 also brings teacher, students and fusion, so this says nothing of the order",
    ),
    Claim(
        "order-quick",
        "Where their heads are given the rate to learn in a short run, orders 2 and 3 are above RankCLIP, 3 above 2.",
        "Sec. 6 (order hierarchy), at a setting of ours",
        ("quick-heads",),
        AllHold(
            (
                *rising(("rankclip", "rank-2-quick", "rank-3-quick"), ACCURACY, _STEPS[1:], DECIDES),
                better("rank-3-quick", "rankclip", ACCURACY, points(_TABLE, "T@1", "3", "1"), DECIDES),
            ),
            acting=(("rank-2-quick", 2), ("rank-3-quick", 3)),
            also=(
                *rising(("rankclip", "rank-2-quick", "rank-3-quick"), QUALITY, what="ranking τ-b"),
                better("rank-3-quick", "rank-3", ACCURACY, what=DECIDES),
                better("full-quick", "full", ACCURACY, what=DECIDES),
            ),
        ),
        only="scenes",
    ),
    Claim(
        "order-saturation",
        "Beyond order 3 accuracy saturates: orders 4 and 5 are within noise of order 3.",
        "Sec. 5.2, Sec. 7 (sensitivity), tab. cost-accuracy",
        ("orders-teacher", "orders-plain"),
        AllEquivalent(
            (
                named(f"full-4 - full, {DECIDES}", gain("full-4", "full", ACCURACY)),
                named(f"full-5 - full, {DECIDES}", gain("full-5", "full", ACCURACY)),
            ),
            SMALLEST["points"],
            also=(
                named(f"rank-4 - rank-3, {DECIDES}", gain("rank-4", "rank-3", ACCURACY)),
                named(f"rank-5 - rank-3, {DECIDES}", gain("rank-5", "rank-3", ACCURACY)),
            ),
            given=(better("full", "full-1", ACCURACY, points(_TABLE, "T@1", "3", "1"), DECIDES),),
            acting=(("full-4", 4), ("full-5", 5)),
        ),
    ),
    Claim(
        "order-decay",
        "At order 5 accuracy decays slightly, as higher orders begin to overfit.",
        "Sec. 5.2, fig. order-curve",
        ("orders-teacher", "orders-plain"),
        AllHold(
            (worse("full-5", "full", ACCURACY, points(_TABLE, "T@1", "5", "3"), DECIDES),),
            acting=(("full-5", 5),),
            also=(worse("rank-5", "rank-3", ACCURACY, what=DECIDES),),
        ),
    ),
    Claim(
        "best-order",
        "Order 3 is the best of all orders on every benchmark, with teacher and fusion.",
        "Abstract, contribution (ii), tab. per-dataset-order",
        ("best-order", "orders-teacher"),
        AllHold(_best_of("full", {f"full-{order}": order for order in (0, 1, 2, 4, 5)}), acting=(("full", 3),)),
    ),
    Claim(
        "best-order-plain",
        "Order 3 is the best of all orders on every benchmark, the order alone.",
        "Abstract, contribution (ii), tab. per-dataset-order",
        ("best-order", "orders-plain"),
        AllHold(
            _best_of("rank-3", {"clip": 0, "rankclip": 1, "rank-2": 2, "rank-4": 4, "rank-5": 5}),
            acting=(("rank-3", 3),),
        ),
    ),
    Claim(
        "first-to-third",
        "Going from first to third order is worth about as much as going from no ranking to first order.",
        "Sec. 6 (order hierarchy), Sec. 7 (scope)",
        ("orders-plain",),
        AllEquivalent(
            (
                named(
                    f"(rank-3 - rankclip) - (rankclip - clip), {DECIDES}",
                    gain("rank-3", "rankclip", ACCURACY) - gain("rankclip", "clip", ACCURACY),
                ),
            ),
            SMALLEST["points"],
            also=(named(f"full - rankclip, {DECIDES} (as the paper counts)", gain("full", "rankclip", ACCURACY)),),
            given=(
                better("rankclip", "clip", ACCURACY, _STEPS[0], DECIDES),
                better("rank-3", "rankclip", ACCURACY, points(_TABLE, "T@1", "3", "1"), DECIDES),
            ),
            acting=(("rank-3", 3),),
        ),
        remark="the paper counts the teacher's gain as the order's",
    ),
    Claim(
        "order-3-acts",
        "Third-order transitions move the ranking at all.",
        "Sec. 1, App. case study I; a premise",
        ("orders-plain", "main"),
        AllBelow((_acts("rank-3"), _acts("full")), 0.0, above=True),
        remark="the paper says more: a signal “no first-order utility can recover”; acting is less than that, and less "
        "than helping",
        control=True,
    ),
    Claim(
        "order-0-is-clip",
        "At order 0 distillation terms change nothing for the contrastive model: its gradient is CLIP's.",
        "App. B (order 0)",
        ("components",),
        AllEquivalent(
            (
                named("distil-only - clip, T@1", gain("distil-only", "clip", TOP1)),
                named("distil-only - clip, R@1", gain("distil-only", "clip", MEAN_R1)),
            ),
            SMALLEST["points"],
        ),
        remark="students beside the trunk touch it through the limit on the whole gradient's norm alone; with fusion "
        "(full-0) the claim cannot hold",
    ),
)


# -------- costs
# Claims about what an order, and the full method, costs. Times are the bench's, never those of study runs.

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


COST_CLAIMS = (
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
