"""Claims about criterion, student, fusion and teacher."""

from __future__ import annotations

from itertools import pairwise

from ..measures import ABOVE_09, CENTRED_COSINE, COSINE, GRAM_DISTANCE
from ..paper_values import PAPER
from ..paper_values import gain as projected_gain
from .building import better, named, points, relative, smaller
from .quantities import ACCURACY, DECIDES, FINE, TOP1, gain, relative_gain
from .shapes import AllHold, Claim, Contrast

_CRITERIA = ("full-mse", "full-cosine", "full-rkd", "full-crd")
_FUSIONS = ("full-concat", "full-additive", "full-single-scale", "full-spp", "full-spp-cbam")
_GENERATIONS = (("rank-3", "none"), ("full-dinov1", "DINOv1"), ("full-dinov2", "DINOv2"), ("full", "DINOv3"))
_CONVOLUTIONAL = ("full-resnet", "full-mobilenet")


def _closer(cell: str) -> Contrast:
    printed = cell in PAPER["fig:distill-fidelity"]
    size = projected_gain("fig:distill-fidelity", "cosine", "full", cell) if printed else None
    return named(f"full - {cell}, cosine", gain("full", cell, COSINE), size, "number")


CLAIMS = (
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
