"""What the full method is made of: components and controls, criterion, student, fusion, teacher; the modality gap."""

from __future__ import annotations

from collections.abc import Mapping

from dinorankclip_studies.papers.dinorankclip import tables_methods
from dinorankclip_studies.papers.dinorankclip.cells import QUICK
from dinorankclip_studies.papers.dinorankclip.measures import CC3M, FLICKR8K, SCENES, Measures
from dinorankclip_studies.papers.dinorankclip.paper_values import PaperValue, projected
from dinorankclip_studies.study import Column, Experiment, Row

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
            *(Row(label, cell, projected("tab:lp-component (b)", cell, tables_methods.AS_T1)) for label, cell in rows),
            Row("full without the text branch", "full-no-text"),
            Row("full without ranking (order 0)", "full-0"),
            Row("CLIP, students distilled beside it, no fusion", "distil-only"),
        ),
        (*tables_methods.headline(measures), tables_methods.cone(measures)),
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
        (*tables_methods.headline(measures), tables_methods.fine_features(measures), tables_methods.cone(measures)),
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
                projected("tab:abl-3panel (a)", cell, tables_methods.AS_T1_AND_FINE)
                | projected("fig:distill-fidelity", cell, seen)
                | projected("fig:case-gram", cell, {"Gram distance": "Gram distance"}),
            )
            for label, cell in rows
        ),
        (
            tables_methods.top1(measures),
            tables_methods.fine(measures),
            tables_methods.mean_r1(measures),
            *tables_methods.FIDELITY_COLUMNS,
            tables_methods.ABOVE,
            tables_methods.OWN_PROJECTOR,
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
        tuple(Row(label, cell, projected("tab:abl-3panel (b)", cell, tables_methods.AS_T1)) for label, cell in rows),
        (
            tables_methods.top1(measures),
            tables_methods.mean_r1(measures),
            tables_methods.fine(measures),
            *tables_methods.FIDELITY_COLUMNS,
        ),
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
        tuple(Row(label, cell, projected("tab:abl-3panel (c)", cell, tables_methods.AS_T1)) for label, cell in rows),
        (*tables_methods.headline(measures), tables_methods.cone(measures)),
        reference="full",
        note="Concatenation and addition have no gate.",
    )


def teacher(measures: Measures, name: str = "teacher") -> Experiment:
    def beside(name: str) -> Mapping[str, PaperValue]:
        return projected("tab:teacher", name, tables_methods.AS_T1_AND_FINE)

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
        (*tables_methods.headline(measures), *tables_methods.FIDELITY_COLUMNS),
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
            tables_methods.cone(measures),
            Column(f"{measures.retrieval}/image half-angle", "image half-angle °", percent=False, better=None),
            Column(f"{measures.retrieval}/text half-angle", "text half-angle °", percent=False, better=None),
            Column(f"{measures.retrieval}/centroid distance", "centroid distance", percent=False, better="lower"),
            tables_methods.mean_r1(measures),
        ),
        reference="clip",
        note="A smaller gap is what the paper claims; that it is better is not shown by it.",
    )


# -------- orders
# The Plackett–Luce order: without a teacher, with one, and the paper's curve, which mixes the two; heads and stages.
#
# What a step of each order costs stands in docs/bench (`study.bench_figures`), never in these tables.

PLAIN = ("clip", "rankclip", "rank-2", "rank-3", "rank-4", "rank-5")
WITH_TEACHER = ("full-0", "full-1", "full-2", "full", "full-4", "full-5")
MIXED = ("clip", "rankclip", "full-2", "full", "full-4", "full-5")  # as the paper's curve is made
_NAMES = {0: "0 (CLIP)", 1: "1 (RankCLIP)"}


def _columns(measures: Measures) -> tuple[Column, ...]:
    return (
        *tables_methods.headline(measures),
        Column(measures.recall("i2t", 1), "i→t R@1"),
        Column(measures.recall("t2i", 1), "t→i R@1"),
        *tables_methods.ranking(measures),
        tables_methods.cone(measures),
    )


def plain(measures: Measures, highest: int = 5, name: str = "orders-plain") -> Experiment:
    rows = tuple(Row(_NAMES.get(order, str(order)), cell) for order, cell in enumerate(PLAIN[: highest + 1]))
    return Experiment(
        name,
        "Order sweep without the teacher",
        rows,
        _columns(measures),
        reference="rankclip",
        note="Nothing differs between these rows but the order. One whose relative spread ends below 1e-3 is inert, "
        "whatever its row says.",
    )


def with_teacher(measures: Measures, name: str = "orders-teacher") -> Experiment:
    return Experiment(
        name,
        "Order sweep with teacher and fusion",
        tuple(Row(str(order), cell) for order, cell in enumerate(WITH_TEACHER)),
        _columns(measures),
        reference="full-1",
        note="Order 0 here is CLIP with students, fusion and teacher; order 1 is RankCLIP with them.",
    )


def mixed(measures: Measures, name: str = "orders-paper") -> Experiment:
    wanted = {tables_methods.TOP1: "T@1", tables_methods.SHIFT: "InR"}
    return Experiment(
        name,
        "The paper's order curve: orders 0 and 1 plain, the others with teacher and fusion",
        tuple(
            Row(_NAMES.get(order, f"{order} (full)"), cell, projected("tab:cost-accuracy", str(order), wanted))
            for order, cell in enumerate(MIXED)
        ),
        _columns(measures),
        reference="rankclip",
        note="The paper draws this as one curve over the order. From 1 to 2 the teacher, both students and the fusion "
        "come in with the order, so the curve is no ablation of the order; the two sweeps above are. Its ImageNet-R "
        "column stands beside our mean over renditions.",
    )


def best_order(measures: Measures, name: str = "best-order") -> Experiment:
    """Rows as in the sweep without teacher, a column for each suite: the reader looks for each column's best row."""
    suites = (
        tables_methods.top1(measures),
        tables_methods.shift(measures),
        Column(measures.recall("i2t", 1), "i→t R@1"),
        Column(measures.recall("t2i", 1), "t→i R@1"),
        Column(measures.coarse_probe, f"{measures.coarse} probe" if measures.several_fine else "kinds probe"),
        tables_methods.fine(measures),
    )
    rows = [Row(f"{order} plain", cell) for order, cell in enumerate(PLAIN)]
    rows += [Row(f"{order} with teacher", cell) for order, cell in enumerate(WITH_TEACHER)]
    return Experiment(
        name,
        "Best order of each suite",
        tuple(rows),
        suites,
        reference="rank-3",
        note="The paper names order 3 for all suites but STL10 and gives the scores of the full model.",
    )


def quick_heads(measures: Measures, name: str = "quick-heads") -> Experiment:
    faster = f"heads {QUICK:g} times as fast"
    return Experiment(
        name,
        "Orders whose heads can learn in a short run",
        (
            Row("1 (RankCLIP)", "rankclip"),
            Row("2", "rank-2"),
            Row(f"2, {faster}", "rank-2-quick"),
            Row("3", "rank-3"),
            Row(f"3, {faster}", "rank-3-quick"),
            Row("full (order 3)", "full"),
            Row(f"full, {faster}", "full-quick"),
        ),
        _columns(measures),
        reference="rankclip",
        note="At the trunk's learning rate, in as many steps as these, heads and gates hardly recover transitions that "
        "were planted; at a higher one they do (docs/bench/planted). The factor was chosen on those made-up lists; the "
        "quick rows differ in it on purpose.",
        unmatched=dict.fromkeys(("rank-2-quick", "rank-3-quick", "full-quick"), ("optim.heads_rate",)),
    )


def head_width(measures: Measures, name: str = "head-width") -> Experiment:
    return Experiment(
        name,
        "Width of the transition heads",
        (Row("h = 16", "full-h16"), Row("h = 32", "full"), Row("h = 64", "full-h64")),
        (*tables_methods.headline(measures), *tables_methods.ranking(measures)),
        reference="full",
        note="The paper announces this sweep for a supplement and prints no values.",
    )


def warm_start(measures: Measures, name: str = "warm-start") -> Experiment:
    return Experiment(
        name,
        "Staged warm-start of the orders",
        (Row("staged", "full"), Row("all orders from the start", "full-unstaged")),
        (*tables_methods.headline(measures), *tables_methods.ranking(measures)),
        reference="full",
        note="The paper's warm-start: order r is frozen before epoch 3(r-1). Here the epochs are scaled down to the "
        "run's length. The paper calls the heads sensitive to it and prints no values.",
    )


# -------- experiments
# The tables of the studies: which cells are rows, which scores are columns, what each is paired against.

__all__ = ["CC3M_EXPERIMENTS", "EXPERIMENTS", "FLICKR_CELLS", "FLICKR_EXPERIMENTS", "Column", "Experiment", "Row"]


def _all(measures: Measures) -> tuple[Experiment, ...]:
    return (
        tables_methods.main(measures),
        plain(measures),
        with_teacher(measures),
        mixed(measures),
        best_order(measures),
        quick_heads(measures),
        head_width(measures),
        warm_start(measures),
        tables_methods.longer(measures),
        tables_methods.scaling(measures),
        tables_methods.natural_shift(measures),
        tables_methods.fine_grained(measures),
        tables_methods.linear_probing(measures),
        components(measures),
        controls(measures),
        criterion(measures),
        students(measures),
        fusion(measures),
        teacher(measures),
        modality_gap(measures),
    )


EXPERIMENTS = _all(SCENES)
_OF_SHORT_RUNS = ("quick-heads", "longer")
CC3M_EXPERIMENTS = tuple(experiment for experiment in _all(CC3M) if experiment.name not in _OF_SHORT_RUNS)

FLICKR_CELLS = ("clip", "cyclip", "alip", "rankclip", "rank-2", "rank-3", "full")

FLICKR_EXPERIMENTS: tuple[Experiment, ...] = (
    tables_methods.main(FLICKR8K),
    plain(FLICKR8K, highest=3),
    tables_methods.natural_shift(FLICKR8K),
    tables_methods.fine_grained(FLICKR8K),
    tables_methods.linear_probing(FLICKR8K),
    modality_gap(FLICKR8K),
)
