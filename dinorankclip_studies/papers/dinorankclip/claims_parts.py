"""Claims about criterion, student, fusion and teacher."""

from __future__ import annotations

from itertools import pairwise

from dinorankclip_studies.claim import (
    AllEquivalent,
    AllHold,
    Claim,
    Contrast,
    better,
    named,
    points,
    relative,
    rising,
    smaller,
)
from dinorankclip_studies.papers.dinorankclip.cells import LONGER_CLIP
from dinorankclip_studies.papers.dinorankclip.claims_orders import SLOW_HEADS
from dinorankclip_studies.papers.dinorankclip.measures import ABOVE_09, CENTRED_COSINE, COSINE, GRAM_DISTANCE
from dinorankclip_studies.papers.dinorankclip.paper_values import PAPER
from dinorankclip_studies.papers.dinorankclip.paper_values import gain as projected_gain
from dinorankclip_studies.quantities import (
    ACCURACY,
    CONE,
    DECIDES,
    FINE,
    MEAN_R1,
    QUALITY,
    SHIFT,
    TOP1,
    Quantity,
    Score,
    gain,
    relative_gain,
)
from dinorankclip_studies.verdicts import SMALLEST

_CRITERIA = ("full-mse", "full-cosine", "full-rkd", "full-crd")
_FUSIONS = ("full-concat", "full-additive", "full-single-scale", "full-spp", "full-spp-cbam")
_GENERATIONS = (("rank-3", "none"), ("full-dinov1", "DINOv1"), ("full-dinov2", "DINOv2"), ("full", "DINOv3"))
_CONVOLUTIONAL = ("full-resnet", "full-mobilenet")


def _closer(cell: str) -> Contrast:
    printed = cell in PAPER["fig:distill-fidelity"]
    size = projected_gain("fig:distill-fidelity", "cosine", "full", cell) if printed else None
    return named(f"full - {cell}, cosine", gain("full", cell, COSINE), size, "number")


ABLATION_CLAIMS = (
    Claim(
        "criterion-best",
        "Gram + relational is the best of five criteria, in accuracy and on the Fine-grained Probe.",
        "Sec. 5.3, tab. abl-3panel (a)",
        ("criterion",),
        AllHold(
            (
                *(
                    better("full", cell, ACCURACY, points("tab:abl-3panel (a)", "T@1", "full", cell), DECIDES)
                    for cell in _CRITERIA
                ),
                *(
                    better("full", cell, FINE, points("tab:abl-3panel (a)", "FG-avg", "full", cell), "fine probe")
                    for cell in _CRITERIA
                ),
            )
        ),
    ),
    Claim(
        "criterion-cosine",
        "Gram + relational brings the student closest to the teacher: a higher cosine, and more items above 0.9, than "
        "any alternative.",
        "Sec. 6 (distillation fidelity), fig. distill-fidelity",
        ("criterion",),
        AllHold(
            (
                *(_closer(cell) for cell in _CRITERIA),
                *(named(f"full - {cell}, share above 0.9", gain("full", cell, ABOVE_09)) for cell in _CRITERIA),
            ),
            also=tuple(
                named(
                    f"full - {cell}, cosine without the teacher's mean",
                    gain("full", cell, CENTRED_COSINE),
                    None,
                    "number",
                )
                for cell in _CRITERIA
            ),
        ),
        remark="after one ridge map for all criteria, since Gram and relational targets know no coordinates",
    ),
    Claim(
        "mse-collapses-gram",
        "MSE loses the teacher's Gram structure: its Gram distance is above that of Gram + relational.",
        "App. case study IV",
        ("criterion",),
        AllHold(
            (
                smaller(
                    "full",
                    "full-mse",
                    GRAM_DISTANCE,
                    -projected_gain("fig:case-gram", "Gram distance", "full", "full-mse"),
                    "number",
                ),
            ),
            also=(
                named(
                    "full-mse / full - 1, Gram distance",
                    relative_gain("full-mse", "full", GRAM_DISTANCE),
                    relative("fig:case-gram", "Gram distance", "full-mse", "full"),
                    "number",
                ),
                *(smaller("full", cell, GRAM_DISTANCE, None, "number") for cell in _CRITERIA[1:]),
            ),
        ),
        remark="only Gram + relational is trained on this very distance",
    ),
    Claim(
        "student-best",
        "The ViT is the best student: above ResNet and MobileNetV3.",
        "Sec. 5.3, tab. abl-3panel (b)",
        ("students",),
        AllHold(
            tuple(
                better("full", cell, ACCURACY, points("tab:abl-3panel (b)", "T@1", "full", cell), DECIDES)
                for cell in _CONVOLUTIONAL
            ),
            also=tuple(better("full", cell, TOP1, what="T@1") for cell in _CONVOLUTIONAL),
        ),
    ),
    Claim(
        "student-gram",
        "Convolutional students end at a higher Gram distance.",
        "Sec. 5.3",
        ("students",),
        AllHold(tuple(smaller("full", cell, GRAM_DISTANCE, None, "number") for cell in _CONVOLUTIONAL)),
    ),
    Claim(
        "fusion-best",
        "The full fusion module dominates the five reduced variants.",
        "Sec. 5.3, tab. abl-3panel (c)",
        ("fusion",),
        AllHold(
            tuple(
                better("full", cell, ACCURACY, points("tab:abl-3panel (c)", "T@1", "full", cell), DECIDES)
                for cell in _FUSIONS
            ),
            also=tuple(better("full", cell, TOP1, what="T@1") for cell in _FUSIONS),
        ),
    ),
    Claim(
        "teacher-stronger",
        "A stronger teacher gives a better model: none < weaker < stronger.",
        "App. D, tab. teacher",
        ("teacher",),
        AllHold(
            (
                better("full-teacher-128", "rank-3", ACCURACY, points("tab:teacher", "T@1", "DINOv1", "none"), DECIDES),
                better("full", "full-teacher-128", ACCURACY, points("tab:teacher", "T@1", "DINOv3", "DINOv1"), DECIDES),
            ),
            also=(
                better("full-teacher-128", "rank-3", FINE, what="fine probe"),
                better("full", "full-teacher-128", FINE, what="fine probe"),
            ),
        ),
        remark="weaker and stronger are one network at 128 and 224 px; the paper's are DINOv1 and DINOv3",
        only="scenes",
    ),
    Claim(
        "teacher-generations",
        "A stronger teacher gives a better model: none < DINOv1 < DINOv2 < DINOv3.",
        "App. D, tab. teacher",
        ("teacher",),
        AllHold(
            tuple(
                better(cell, before, ACCURACY, points("tab:teacher", "T@1", told, told_before), DECIDES)
                for (before, told_before), (cell, told) in pairwise(_GENERATIONS)
            )
        ),
        only="cc3m",
    ),
)


# -------- components
# Claims about the parts of the full method, and the controls that the paper lacks.

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


COMPONENT_CLAIMS = (
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
