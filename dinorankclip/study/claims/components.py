"""Claims about the parts of the full method, and the controls that the paper lacks."""

from __future__ import annotations

from ..cell_list import LONGER_CLIP
from ..verdicts import SMALLEST
from .building import better, named, points, rising
from .orders import SLOW_HEADS
from .quantities import ACCURACY, CONE, DECIDES, FINE, MEAN_R1, QUALITY, SHIFT, TOP1, Quantity, Score, gain
from .shapes import AllEquivalent, AllHold, Claim

_TABLE = "tab:lp-component (b)"
_FINE_GAIN = points("tab:ood-fg", "FG-avg", "full", "rank-3")
_BESIDE = ((TOP1, "T@1"), (SHIFT, "shift"), (FINE, "fine probe"))


def _adds(
    id: str, what: str, cell: str, over: str, acting: tuple[tuple[str, int], ...] = (), remark: str = ""
) -> Claim:
    return Claim(
        id,
        f"{what} adds to accuracy.",
        "Sec. 5.3, tab. lp-component (b)",
        ("components",),
        AllHold(
            (better(cell, over, ACCURACY, points(_TABLE, "T@1", cell, over), DECIDES),),
            acting=acting,
            also=tuple(better(cell, over, score, what=name) for score, name in _BESIDE),
        ),
        remark=remark,
    )


_TEACHERS = "the gain of the full method is the teacher's: it"


def _control(id: str, what: str, so: str = _TEACHERS, remark: str = "") -> Claim:
    """The claim's name is the cell's."""
    return Claim(
        id,
        f"On the Fine-grained Probe, {so} is above {what}.",
        "Sec. 5.2 (“attributable to DINO injection alone”); the paper has no such control",
        ("controls",),
        AllHold(
            (better("full", id, FINE, _FINE_GAIN, "fine probe", borrowed="full - rank-3"),),
            also=tuple(
                better("full", id, score, what=name)
                for score, name in ((TOP1, "T@1"), (MEAN_R1, "R@1"), (SHIFT, "shift"))
            ),
        ),
        remark=remark,
        control=True,
    )


def _interaction(score: Score) -> Quantity:
    """What the order adds with the teacher, less what it adds without."""
    return gain("full", "full-0", score) - gain("rank-3", "clip", score)


CLAIMS = (
    _adds("adds-high-order", "The high-order head", "rank-3", "rankclip", (("rank-3", 3),), SLOW_HEADS),
    _adds("adds-image-branch", "Image distillation with fusion", "full-image-no-gate", "rank-3"),
    _adds("adds-text-branch", "The text branch", "full-no-gate", "full-image-no-gate"),
    _adds("adds-gate", "The conflict-aware gate", "full", "full-no-gate"),
    Claim(
        "additive",
        "Ranking and teacher contribute independently: their effects add up.",
        "Sec. 5.3, Sec. 7",
        ("components", "orders-teacher"),
        AllEquivalent(
            (named(f"(full - full-0) - (rank-3 - clip), {DECIDES}", _interaction(ACCURACY)),),
            SMALLEST["points"],
            also=(
                named("the same, T@1", _interaction(TOP1)),
                named("the same, cone separation", _interaction(CONE), unit="degrees"),
            ),
            given=(
                better("rank-3", "clip", ACCURACY, points(_TABLE, "T@1", "rank-3", "clip"), DECIDES),
                better("full-0", "clip", ACCURACY, points(_TABLE, "T@1", "full", "rank-3"), DECIDES),
            ),
        ),
        remark="the paper's rows are cumulative, which cannot show independence; this is the 2 × 2 design it lacks",
    ),
    Claim(
        "equal-compute",
        "Under matched compute, that is, given the same time, the full method is above CLIP.",
        "abstract, contribution (iii), tab. main",
        ("controls",),
        AllHold(
            (better("full", LONGER_CLIP, ACCURACY, points("tab:main", "T@1", "full", "clip"), DECIDES),),
            also=tuple(better("full", LONGER_CLIP, score, what=name) for score, name in _BESIDE),
        ),
        remark="elsewhere pairs and steps are matched, as in the paper; here CLIP gets as many epochs as fill the full "
        "method's time",
    ),
    Claim(
        "longer-full",
        "Trained longer, as long as the equal-time CLIP, the full method is above CLIP and RankCLIP.",
        "Sec. 5.1, tab. main, at a second length of training",
        ("longer",),
        AllHold(
            tuple(
                better("full-longer", cell, ACCURACY, points("tab:main", "T@1", "full", like), DECIDES)
                for cell, like in ((LONGER_CLIP, "clip"), ("rankclip-longer", "rankclip"))
            ),
            also=tuple(better("full-longer", LONGER_CLIP, score, what=name) for score, name in _BESIDE),
        ),
        remark="whether what ten epochs show holds in a longer run",
        only="scenes",
        control=True,
    ),
    Claim(
        "longer-order",
        "Trained longer, order 3 is above RankCLIP, and RankCLIP above CLIP.",
        "Sec. 6 (order hierarchy), at a second length of training",
        ("longer",),
        AllHold(
            rising((LONGER_CLIP, "rankclip-longer", "rank-3-longer"), ACCURACY, what=DECIDES),
            acting=(("rank-3-longer", 3),),
            also=rising((LONGER_CLIP, "rankclip-longer", "rank-3-longer"), QUALITY, what="ranking τ-b"),
        ),
        remark="whether what ten epochs show holds in a longer run",
        only="scenes",
        control=True,
    ),
    _control("control-no-teacher", "the same students and fusion without any teacher"),
    _control("control-random-teacher", "the same with a teacher of random weights"),
    _control(
        "control-large-trunk",
        "a plain order-3 trunk of as many parameters",
        remark="at the learning rate that all cells share; none was tuned for the larger trunk",
    ),
    _control("control-trunk-distil", "the teacher distilled into the trunk itself", "the full method"),
)
