"""The study's tables, as data. Each file holds the tables of one part of the paper."""

from __future__ import annotations

from collections.abc import Mapping

from dinorankclip_studies.papers.dinorankclip.cells import LONGER_CLIP
from dinorankclip_studies.papers.dinorankclip.measures import (
    ABOVE_09,
    CENTRED_COSINE,
    COSINE,
    GRAM_DISTANCE,
    OWN_COSINE,
    Measures,
)
from dinorankclip_studies.papers.dinorankclip.paper_values import PaperValue, projected
from dinorankclip_studies.study import Column, Experiment, Row

# -------- columns
# Columns that several tables share, and which of the paper's columns they stand beside.

# Headings that stand for a column of the paper under the same name.
TOP1, FINE = "T@1", "fine probe"
AS_T1 = {TOP1: "T@1"}
AS_T1_AND_FINE = AS_T1 | {FINE: "FG-avg"}
AS_MAIN = {
    "T@1": "T@1", "T@3": "T@3", "T@5": "T@5",
    "i→t R@1": "i2t R@1", "i→t R@5": "i2t R@5", "i→t R@10": "i2t R@10",
    "t→i R@1": "t2i R@1", "t→i R@5": "t2i R@5", "t→i R@10": "t2i R@10",
}  # fmt: skip
SHIFT = "shift mean T@1"
_SHIFT_COLUMNS = ("V2-M", "V2-T", "V2-Top", "InR")


def zero_shot(measures: Measures) -> tuple[Column, ...]:
    return tuple(Column(measures.top(k), f"T@{k}") for k in (1, 3, 5))


def top1(measures: Measures) -> Column:
    return Column(measures.top1, TOP1)


def recalls(measures: Measures) -> tuple[Column, ...]:
    ways = (("i2t", "i→t"), ("t2i", "t→i"))
    return tuple(Column(measures.recall(way, k), f"{arrow} R@{k}") for way, arrow in ways for k in (1, 5, 10))


def mean_r1(measures: Measures) -> Column:
    return Column(measures.mean_r1, "mean R@1")


def shift(measures: Measures) -> Column:
    return Column(measures.shift, SHIFT)


def fine(measures: Measures) -> Column:
    return Column(measures.fine_probe, FINE)


def fine_features(measures: Measures) -> Column:
    return Column(measures.fine_probe_of_features, "fine probe, features")


def cone(measures: Measures) -> Column:
    return Column(measures.cone, "cone separation °", percent=False, better="lower")


def ranking_quality(measures: Measures) -> Column:
    return Column(measures.ranking_quality, "τ-b t→i" if measures.graded else "ranking τ-b", percent=False)


def ranking(measures: Measures) -> tuple[Column, ...]:
    """Both directions, where relevance is known: a loss may gain in one what it loses in the other."""
    if not measures.graded:
        return (ranking_quality(measures),)
    ways = (("t2i", "t→i"), ("i2t", "i→t"))
    return tuple(Column(f"{measures.retrieval}/{way} tau-b", f"τ-b {arrow}", percent=False) for way, arrow in ways)


def about_ranking(measures: Measures) -> str:
    if measures.graded:
        return "τ-b: Kendall's, between a query's order of all items and their true relevance, mean over queries."
    return "Ranking τ-b: Kendall's, between the orders that an image and its caption give all others, mean over pairs."


def headline(measures: Measures) -> tuple[Column, ...]:
    """What an ablation shows at least."""
    return (top1(measures), mean_r1(measures), shift(measures), fine(measures))


FIDELITY_COLUMNS = (
    Column(COSINE, "teacher–student cosine", percent=False),
    Column(CENTRED_COSINE, "… without the mean", percent=False),
    Column(GRAM_DISTANCE, "Gram distance", percent=False, better="lower"),
)

ABOVE = Column(ABOVE_09, "items above 0.9")
OWN_PROJECTOR = Column(OWN_COSINE, "cosine, own projector", percent=False)


def mean_shift(row: str) -> Mapping[str, PaperValue]:
    """The mean of the paper's four shift columns under our heading for the mean over renditions."""
    told = projected("tab:ood-fg", row, {name: name for name in _SHIFT_COLUMNS}).values()
    if not told:
        return {}
    mean = round(sum(one.value for one in told) / len(told), 2)
    return {SHIFT: PaperValue(mean, all(one.black for one in told))}


# -------- comparison
# Methods against each other: main comparison, natural shift, Fine-grained Probe, linear probing, data scaling.

METHODS = (
    ("CLIP", "clip"),
    ("CyCLIP", "cyclip"),
    ("ALIP-style", "alip"),
    ("RankCLIP", "rankclip"),
    ("DinoRankCLIP (order 3)", "full"),
)
_WITHOUT_TEACHER = ("without teacher (order 3)", "rank-3")
_FEWER_ITEMS = ("reading.train_items", "training data")  # what cells on less data differ in
_ALIP = "ALIP's second caption is another human (or generated) caption of the image, not a synthetic recaption."


def _with_plain() -> tuple[tuple[str, str], ...]:
    return (*METHODS[:-1], _WITHOUT_TEACHER, METHODS[-1])


def main(measures: Measures, name: str = "main") -> Experiment:
    return Experiment(
        name,
        "Main comparison: zero-shot classification and retrieval",
        tuple(Row(label, cell, projected("tab:main", cell, AS_MAIN)) for label, cell in METHODS),
        (
            *zero_shot(measures),
            *recalls(measures),
            mean_r1(measures),
            *ranking(measures),
        ),
        reference="rankclip",
        note=f"{_ALIP} {about_ranking(measures)}",
    )


def longer(measures: Measures, name: str = "longer") -> Experiment:
    return Experiment(
        name,
        "The comparison again, trained longer",
        (
            Row("CLIP", LONGER_CLIP),
            Row("RankCLIP", "rankclip-longer"),
            Row("order 3 without teacher", "rank-3-longer"),
            Row("DinoRankCLIP (order 3)", "full-longer"),
        ),
        (*headline(measures), *ranking(measures), cone(measures)),
        reference=LONGER_CLIP,
        note="The short runs of the other tables end where learning is steep. Here every row has the epochs that fill "
        "the time of the full method's short run, when CLIP takes it.",
    )


def natural_shift(measures: Measures, name: str = "shift") -> Experiment:
    renditions = (Column(f"{one}/T@1", one.removeprefix(f"{measures.zero_shot}-")) for one in measures.renditions)
    return Experiment(
        name,
        "Natural shift: zero-shot on other renditions of the same kinds",
        tuple(Row(label, cell, mean_shift(cell)) for label, cell in _with_plain()),
        (
            Column(measures.base_top1, "unshifted T@1"),
            *renditions,
            shift(measures),
            Column(measures.relative_drop, "drop, % of unshifted", better="lower", over=measures.base_top1),
        ),
        reference="rank-3",
        note="Paired against the method without its teacher: what the teacher adds. The paper's value beside the mean "
        "is the mean of its V2-M, V2-T, V2-Top and ImageNet-R columns.",
    )


def fine_grained(measures: Measures, name: str = "fine-grained") -> Experiment:
    wanted = {FINE: "FG-avg"}
    return Experiment(
        name,
        "Fine-grained Probe",
        tuple(Row(label, cell, projected("tab:ood-fg", cell, wanted)) for label, cell in _with_plain()),
        (
            fine(measures),
            fine_features(measures),
            Column(f"{measures.fine}/T@1", f"{measures.fine if measures.several_fine else 'fine'} zero-shot T@1"),
            *(
                (Column(measures.fine_errors_in_family, "errors inside the family", better=None),)
                if measures.graded
                else ()
            ),
        ),
        reference="rank-3",
        note="Linear probes; "
        + ("the mean of" if measures.several_fine else "one fine-grained set stands for the mean of")
        + " the paper's five. Features of a fused model are wider by its student's class token.",
    )


def linear_probing(measures: Measures, name: str = "linear-probing") -> Experiment:
    average = "probe mean"
    return Experiment(
        name,
        "Linear probing",
        tuple(
            Row(label, cell, projected("tab:lp-component (a)", cell, {average: "Avg"})) for label, cell in _with_plain()
        ),
        (
            Column(measures.coarse_probe, f"{measures.coarse} probe"),
            Column(measures.fine_probe, "fine probe" if measures.several_fine else f"{measures.fine} probe"),
            *(Column(f"{name}/embedding probe accuracy", f"{name} probe") for name in measures.other_probes),
            Column(measures.probe_average, average),
            Column("averages/linear probe: features", "probe mean, features"),
        ),
        reference="rankclip",
        note="The mean is over all probed sets: the paper's ten, and those of the Fine-grained Probe besides."
        if measures.several_fine
        else "The sets here stand for the paper's ten.",
    )


def scaling(measures: Measures, name: str = "scaling") -> Experiment:
    rows = []
    for label, cell in (("CLIP", "clip"), ("RankCLIP", "rankclip"), ("DinoRankCLIP", "full")):
        # A quarter and half of the data stand for 0.3M (a ninth) and 1M; only the whole corpus compares directly.
        rows += [
            Row(f"{label}, {items * measures.items_factor:,} {measures.items}", f"{cell}-n{items}")
            for items in (1000, 2000)
        ]
        rows.append(Row(f"{label}, all {measures.items}", cell, projected("fig:scaling", cell, {TOP1: "2.7"})))
    return Experiment(
        name,
        "Data scaling",
        tuple(rows),
        headline(measures),
        reference="rankclip",
        note=f"Same number of steps and pairs seen in every row: fewer different {measures.items} are seen more often. "
        f"Cells on fewer {measures.items} differ from the reference in nothing but that.",
        unmatched={row.cell: _FEWER_ITEMS for row in rows if "-n" in row.cell},
    )
