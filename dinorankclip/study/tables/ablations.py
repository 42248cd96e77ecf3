"""What the full method is made of: components and controls, criterion, student, fusion, teacher; the modality gap."""

from __future__ import annotations

from collections.abc import Mapping

from ..measures import Measures
from ..paper_values import PaperValue, projected
from ..table_shapes import Column, Experiment, Row
from . import columns

_LONGER = ("budget.epochs", "pairs seen")  # what the longer CLIP differs in


def components(measures: Measures, name: str = "components") -> Experiment:
    rows = (
        ("CLIP", "clip"),
        ("RankCLIP", "rankclip"),
        ("+ high order (R3)", "rank-3"),
        ("+ image distillation and fusion, no gate", "full-image-no-gate"),
        ("+ text distillation and fusion, no gate", "full-no-gate"),
        ("full: + gate", "full"),
    )
    return Experiment(
        name,
        "Component ablation",
        (
            *(Row(label, cell, projected("tab:lp-component (b)", cell, columns.AS_T1)) for label, cell in rows),
            Row("full without the text branch", "full-no-text"),
            Row("full without ranking (order 0)", "full-0"),
            Row("CLIP, students distilled beside it, no fusion", "distil-only"),
        ),
        (*columns.headline(measures), columns.cone(measures)),
        reference="rank-3",
        note="The paper's six rows are cumulative; its fusion column says SPP before the last row and SPP+gate there. "
        "The last three rows are ours.",
    )


def controls(measures: Measures, name: str = "controls") -> Experiment:
    return Experiment(
        name,
        "Controls that the paper lacks",
        (
            Row("order 3, no teacher, no students", "rank-3"),
            Row("full", "full"),
            Row("students and fusion without a teacher", "control-no-teacher"),
            Row("a teacher with random weights", "control-random-teacher"),
            Row("order 3 with a trunk as large as the full model", "control-large-trunk"),
            Row("order 3, teacher distilled into the trunk itself", "control-trunk-distil"),
            Row("CLIP, trained for as long as the full method takes", "control-clip-longer"),
        ),
        (*columns.headline(measures), columns.fine_features(measures), columns.cone(measures)),
        reference="full",
        note="Is the gain of the full method the teacher's, or that of more parameters, or of more compute? The large "
        "trunk differs in its parameters on purpose, the longer CLIP in its epochs; all other rows see the same pairs "
        "in the same number of steps.",
        unmatched={"control-large-trunk": ("model.trunk",), "control-clip-longer": _LONGER},
    )


def criterion(measures: Measures, name: str = "criterion") -> Experiment:
    rows = (
        ("MSE", "full-mse"),
        ("cosine", "full-cosine"),
        ("RKD", "full-rkd"),
        ("CRD", "full-crd"),
        ("Gram + relational", "full"),
    )
    seen = {"teacher–student cosine": "cosine"}
    return Experiment(
        name,
        "Distillation criterion",
        tuple(
            Row(
                label,
                cell,
                projected("tab:abl-3panel (a)", cell, columns.AS_T1_AND_FINE)
                | projected("fig:distill-fidelity", cell, seen)
                | projected("fig:case-gram", cell, {"Gram distance": "Gram distance"}),
            )
            for label, cell in rows
        ),
        (
            columns.top1(measures),
            columns.fine(measures),
            columns.mean_r1(measures),
            *columns.FIDELITY_COLUMNS,
            columns.ABOVE,
            columns.OWN_PROJECTOR,
        ),
        reference="full",
        note="Cosine after one ridge map from student to teacher, fitted on training items and the same for every "
        "criterion; Gram distance on one grid. Own projector: as the criterion itself maps student to teacher, of "
        "criteria that do.",
    )


def students(measures: Measures, name: str = "students") -> Experiment:
    rows = (("ResNet", "full-resnet"), ("MobileNetV3", "full-mobilenet"), ("ViT", "full"))
    return Experiment(
        name,
        "Student architecture",
        tuple(Row(label, cell, projected("tab:abl-3panel (b)", cell, columns.AS_T1)) for label, cell in rows),
        (columns.top1(measures), columns.mean_r1(measures), columns.fine(measures), *columns.FIDELITY_COLUMNS),
        reference="full",
        note=("" if measures.dinov3 else "Small versions of all three, made for the scenes; ")
        + "the paper compares ResNet-50, MobileNetV3-Large and ViT-Tiny. Parameters and latency have their own table.",
    )


def fusion(measures: Measures, name: str = "fusion") -> Experiment:
    rows = (
        ("concatenation", "full-concat"),
        ("addition", "full-additive"),
        ("single-scale pool", "full-single-scale"),
        ("SPP without channel and spatial attention", "full-spp"),
        ("SPP + CBAM without refiner", "full-spp-cbam"),
        ("full: SPP + CBAM + self-attention", "full"),
    )
    return Experiment(
        name,
        "Fusion module",
        tuple(Row(label, cell, projected("tab:abl-3panel (c)", cell, columns.AS_T1)) for label, cell in rows),
        (*columns.headline(measures), columns.cone(measures)),
        reference="full",
        note="Concatenation and addition have no gate.",
    )


def teacher(measures: Measures, name: str = "teacher") -> Experiment:
    def beside(name: str) -> Mapping[str, PaperValue]:
        return projected("tab:teacher", name, columns.AS_T1_AND_FINE)

    if measures.dinov3:
        teachers: tuple[Row, ...] = (
            Row("DINOv1, ViT-B", "full-dinov1", beside("DINOv1")),
            Row("DINOv2, ViT-L", "full-dinov2", beside("DINOv2")),
            Row("DINOv3, ViT-L", "full", beside("DINOv3")),
        )
        note = "The paper does not say how large its teachers are."
    else:
        teachers = (
            Row("efficientnet-lite0 at 128 px", "full-teacher-128"),
            Row("efficientnet-lite0 at 224 px", "full", beside("DINOv3")),
        )
        note = (
            "The paper compares none, DINOv1, DINOv2 and DINOv3; its values for none and DINOv3 stand beside the "
            "first and last row. At 128 px the teacher's maps are coarser."
        )

    return Experiment(
        name,
        "Teacher",
        (
            Row("none: order 3 alone", "rank-3", beside("none")),
            Row("none: students and fusion without a teacher", "control-no-teacher"),
            Row("random weights", "control-random-teacher"),
            *teachers,
        ),
        (*columns.headline(measures), *columns.FIDELITY_COLUMNS),
        reference="full",
        note=note,
    )


def modality_gap(measures: Measures, name: str = "modality-gap") -> Experiment:
    rows = (("CLIP", "clip"), ("RankCLIP", "rankclip"), ("order 3 without teacher", "rank-3"), ("full", "full"))
    wanted = {"cone separation °": "cone separation"}
    return Experiment(
        name,
        "Four-node modality gap",
        tuple(Row(label, cell, projected("fig:cone", cell, wanted)) for label, cell in rows),
        (
            columns.cone(measures),
            Column(f"{measures.retrieval}/image half-angle", "image half-angle °", percent=False, better=None),
            Column(f"{measures.retrieval}/text half-angle", "text half-angle °", percent=False, better=None),
            Column(f"{measures.retrieval}/centroid distance", "centroid distance", percent=False, better="lower"),
            columns.mean_r1(measures),
        ),
        reference="clip",
        note="A smaller gap is what the paper claims; that it is better is not shown by it.",
    )
