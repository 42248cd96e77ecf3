"""Claims about the modality gap and about what fusion does to an embedding."""

from __future__ import annotations

from itertools import pairwise

from dinorankclip_studies.claim import AllBelow, AllEquivalent, AllHold, Claim, Contrast, named, smaller
from dinorankclip_studies.papers.dinorankclip.paper_values import gain as projected_gain
from dinorankclip_studies.quantities import CONE, Quantity, gain, telemetry
from dinorankclip_studies.verdicts import SMALLEST

_NODES = ("clip", "rankclip", "rank-3", "full")
SMALL_ANGLE = 10.0  # degrees; the paper gives no number, so this is ours


def _narrowing(before: str, cell: str) -> Contrast:
    return smaller(cell, before, CONE, -projected_gain("fig:cone", "cone separation", cell, before))


def _over_its_bound(branch: str) -> Quantity:
    return telemetry("full", f"fusion/end/{branch}/angle/max") - telemetry("full", f"fusion/end/{branch}/bound/max")


_TEACHERS_SHARE = -projected_gain("fig:cone", "cone separation", "full", "rank-3")


GEOMETRY_CLAIMS = (
    Claim(
        "gap-closes",
        "The modality gap closes at each of four nodes: CLIP → RankCLIP → order 3 → full.",
        "Sec. 6 (modality gap), fig. cone",
        ("modality-gap",),
        AllHold(
            tuple(_narrowing(before, cell) for before, cell in pairwise(_NODES)), acting=(("rank-3", 3), ("full", 3))
        ),
    ),
    Claim(
        "gap-equal-shares",
        "The high-order head and the teacher close the gap by comparable amounts.",
        "Sec. 6, Sec. 7",
        ("modality-gap",),
        AllEquivalent(
            (
                named(
                    "(rank-3 - rankclip) - (full - rank-3)",
                    gain("rank-3", "rankclip", CONE) - gain("full", "rank-3", CONE),
                    unit="degrees",
                ),
            ),
            SMALLEST["degrees"],
            given=(_narrowing("rankclip", "rank-3"), _narrowing("rank-3", "full")),
            acting=(("rank-3", 3),),
        ),
    ),
    Claim(
        "gap-monotone",
        "The gap shrinks monotonically with the order, at the same compute.",
        "Sec. 7 (extended analysis)",
        ("orders-plain",),
        AllHold(
            tuple(smaller(cell, before, CONE) for before, cell in pairwise(("clip", "rankclip", "rank-2", "rank-3"))),
            acting=(("rank-2", 2), ("rank-3", 3)),
            also=(smaller("rank-4", "rank-3", CONE), smaller("rank-5", "rank-4", CONE)),
        ),
    ),
    Claim(
        "gap-additive",
        "The two contributions to closing the gap are additive.",
        "Sec. 7 (extended analysis)",
        ("orders-teacher", "modality-gap"),
        AllEquivalent(
            (
                named(
                    "(full - full-0) - (rank-3 - clip), cone separation",
                    gain("full", "full-0", CONE) - gain("rank-3", "clip", CONE),
                    unit="degrees",
                ),
            ),
            SMALLEST["degrees"],
            given=(_narrowing("clip", "rank-3"), smaller("full-0", "clip", CONE, _TEACHERS_SHARE)),
        ),
    ),
    Claim(
        "angle-bound",
        "The angle between fused and contrastive embedding is at most arcsin(ε·|u|/|v|), ε the largest gate.",
        "Prop. 1",
        ("components",),
        AllBelow(
            tuple(
                named(f"{branch}: largest angle minus largest bound", _over_its_bound(branch), None, "degrees")
                for branch in ("image", "text")
            ),
            0.0,
        ),
        remark="a theorem, so that this checks the code; runs keep the largest angle and the largest bound over items, "
        "that each item keeps its own bound is a test; where ε·|u|/|v| ≥ 1 the proposition says nothing",
    ),
    Claim(
        "angle-small",
        "Fusion preserves the contrastive direction: the angle between fused and contrastive embedding stays small.",
        "abstract (“up to first order”), Prop. 1",
        ("components",),
        AllBelow(
            tuple(
                named(
                    f"{branch}: mean angle at the end",
                    telemetry("full", f"fusion/end/{branch}/angle/mean"),
                    None,
                    "degrees",
                )
                for branch in ("image", "text")
            ),
            SMALL_ANGLE,
        ),
        remark="how small is small is ours: the paper gives no number, and assumes that the gate is small",
    ),
)
