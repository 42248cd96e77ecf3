"""Methods against each other: main comparison, natural shift, Fine-grained Probe, linear probing, data scaling."""

from __future__ import annotations

from ..cell_list import LONGER_CLIP
from ..measures import Measures
from ..paper_values import projected
from ..table_shapes import Column, Experiment, Row
from . import columns

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
        tuple(Row(label, cell, projected("tab:main", cell, columns.AS_MAIN)) for label, cell in METHODS),
        (
            *columns.zero_shot(measures),
            *columns.recalls(measures),
            columns.mean_r1(measures),
            *columns.ranking(measures),
        ),
        reference="rankclip",
        note=f"{_ALIP} {columns.about_ranking(measures)}",
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
        (*columns.headline(measures), *columns.ranking(measures), columns.cone(measures)),
        reference=LONGER_CLIP,
        note="The short runs of the other tables end where learning is steep. Here every row has the epochs that fill "
        "the time of the full method's short run, when CLIP takes it.",
    )


def shift(measures: Measures, name: str = "shift") -> Experiment:
    renditions = (Column(f"{one}/T@1", one.removeprefix(f"{measures.zero_shot}-")) for one in measures.renditions)
    return Experiment(
        name,
        "Natural shift: zero-shot on other renditions of the same kinds",
        tuple(Row(label, cell, columns.mean_shift(cell)) for label, cell in _with_plain()),
        (
            Column(measures.base_top1, "unshifted T@1"),
            *renditions,
            columns.shift(measures),
            Column(measures.relative_drop, "drop, % of unshifted", better="lower", over=measures.base_top1),
        ),
        reference="rank-3",
        note="Paired against the method without its teacher: what the teacher adds. The paper's value beside the mean "
        "is the mean of its V2-M, V2-T, V2-Top and ImageNet-R columns.",
    )


def fine_grained(measures: Measures, name: str = "fine-grained") -> Experiment:
    wanted = {columns.FINE: "FG-avg"}
    return Experiment(
        name,
        "Fine-grained Probe",
        tuple(Row(label, cell, projected("tab:ood-fg", cell, wanted)) for label, cell in _with_plain()),
        (
            columns.fine(measures),
            columns.fine_features(measures),
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
        rows.append(Row(f"{label}, all {measures.items}", cell, projected("fig:scaling", cell, {columns.TOP1: "2.7"})))
    return Experiment(
        name,
        "Data scaling",
        tuple(rows),
        columns.headline(measures),
        reference="rankclip",
        note=f"Same number of steps and pairs seen in every row: fewer different {measures.items} are seen more often. "
        f"Cells on fewer {measures.items} differ from the reference in nothing but that.",
        unmatched={row.cell: _FEWER_ITEMS for row in rows if "-n" in row.cell},
    )
