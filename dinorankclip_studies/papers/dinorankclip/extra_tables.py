"""Which order is best on each suite, of both sweeps, and whether it can be told from order 3."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dinorankclip.formatting import MISSING, Form, form_of
from dinorankclip.methods import LABEL
from dinorankclip.models.students import CLASSES, count, image_student
from dinorankclip.models.trunk import trunk_config
from dinorankclip_studies.material import StudyMaterial
from dinorankclip_studies.papers.dinorankclip.paper_values import (
    PAPER,
    TITLES,
    PaperValue,
    about_paper,
    digits_for,
    in_black,
    paper_value,
    paper_words,
)
from dinorankclip_studies.papers.dinorankclip.tables_ablations import PLAIN, WITH_TEACHER
from dinorankclip_studies.papers.dinorankclip.tables_methods import about_ranking, cone, fine, mean_r1, ranking
from dinorankclip_studies.results import Results, at_chance, chance_of
from dinorankclip_studies.run_times import load_bench
from dinorankclip_studies.study import Column
from dinorankclip_studies.study_tables import PlainTable
from dinorankclip_studies.verdicts import ALPHA, Effect, p_value, paired, summary

SWEEPS = {"plain": PLAIN, "with teacher": WITH_TEACHER}
CLAIMED = 3
# What of the paper's stands beside our suites, by the column's place in the table `best-order`.
_PAPER_SUITES = ("ImageNet1K", "ImageNet-R", "COCO i2t R@1", "COCO t2i R@1", "CIFAR-100", "CUB-200")
_PAPER_COLUMNS = ("best order", "score")


def best_orders(material: StudyMaterial) -> list[PlainTable]:
    """None in a study that has no such table."""
    table = material.table("best-order")
    if table is None:
        return []
    beside = {
        suite: [paper_value("tab:per-dataset-order", suite, what) for what in _PAPER_COLUMNS] for suite in _PAPER_SUITES
    }
    rows = [
        row
        for column, paper in zip(table.columns, beside.values(), strict=True)
        for sweep, cells in SWEEPS.items()
        if (row := _row(material.results, column, sweep, cells, paper)) is not None
    ]
    return [
        PlainTable(
            "best-order-named",
            "Best order of each suite, by name",
            (
                "suite", "orders", "n", "best", "score there", "chance", f"minus order {CLAIMED}",
                f"told from {CLAIMED}", f"best, {LABEL}", f"score there, {LABEL}",
            ),
            tuple(rows),
            "Of the seeds that all orders of a sweep have; the smallest of equal orders. The difference is of all "
            f"seeds that the best order and order {CLAIMED} share. “No”: p > 5 %, corrected for being the best of "
            f"{len(PLAIN) - 1} rivals, or n < 3: any order may then come out best. “Near chance”: no order is shown to "
            "be a point above it. The best of six noisy means is also a little too good. The paper's suites are "
            f"{', '.join(_PAPER_SUITES[:-1])} and {_PAPER_SUITES[-1]}.",
            tuple(value for values in beside.values() for value in values),
        )
    ]  # fmt: skip


def _row(
    results: Results, column: Column, sweep: str, cells: tuple[str, ...], paper: list[PaperValue]
) -> tuple[str, ...] | None:
    common = results.on_common_seeds(cells)
    values = {order: found for order, cell in enumerate(cells) if (found := common.values(cell, column.score))}
    if len(values) < len(cells):
        return None  # the best of some orders is not the best of all
    means = {order: summary(found).mean for order, found in values.items()}
    best = max(means, key=lambda order: (means[order], -order))
    form, chance = form_of(means.values(), column.percent), chance_of(results, column.score)
    difference, told = MISSING, MISSING
    if best != CLAIMED:
        effect = paired(*(results.values(cells[order], column.score) for order in (CLAIMED, best)))
        difference = form.with_half(effect.mean, effect.low, effect.high, sign=True)
        told = "yes" if p_value(effect) * (len(cells) - 1) <= ALPHA else "no"
        if column.percent and at_chance(results, cells, column.score):
            told = "near chance"
    return (
        column.heading, sweep, str(len(values[best])), str(best), form.plain(means[best]),
        MISSING if chance is None else form.plain(chance), difference, told, *map(paper_words, paper),
    )  # fmt: skip


# -------- paired_differences
# The differences that matter most, paired by seed: what each step of the method adds, and what its controls leave.

# Row → (cell that is taken off, cell it is taken off from).
DIFFERENCES: Mapping[str, tuple[str, str]] = {
    "CyCLIP − CLIP": ("clip", "cyclip"),
    "ALIP-style − CLIP": ("clip", "alip"),
    "RankCLIP − CLIP": ("clip", "rankclip"),
    "order 2 − RankCLIP": ("rankclip", "rank-2"),
    "order 3 − RankCLIP": ("rankclip", "rank-3"),
    "order 3 with fast heads − RankCLIP": ("rankclip", "rank-3-quick"),
    "full − CLIP": ("clip", "full"),
    "full − RankCLIP": ("rankclip", "full"),
    "full − order 3 without a teacher": ("rank-3", "full"),
    "full without a teacher − CLIP": ("clip", "control-no-teacher"),
    "full − full without a teacher": ("control-no-teacher", "full"),
    "full − full with a random teacher": ("control-random-teacher", "full"),
    "full − order 3 with a trunk of its size": ("control-large-trunk", "full"),
    "full − order 3, teacher distilled into the trunk": ("control-trunk-distil", "full"),
    "full − CLIP at equal time": ("control-clip-longer", "full"),
    "full with fast heads − full": ("full", "full-quick"),
    "trained longer: RankCLIP − CLIP": ("control-clip-longer", "rankclip-longer"),
    "trained longer: order 3 − RankCLIP": ("rankclip-longer", "rank-3-longer"),
    "trained longer: full − CLIP": ("control-clip-longer", "full-longer"),
    "trained longer: full − RankCLIP": ("rankclip-longer", "full-longer"),
}


def paired_differences(material: StudyMaterial) -> list[PlainTable]:
    """None where no two of these cells share a seed."""
    measures, results = material.measures, material.results
    columns = (mean_r1(measures), fine(measures), *ranking(measures), cone(measures))
    rows = {}
    for label, (less, more) in DIFFERENCES.items():
        effects = [paired(results.values(less, column.score), results.values(more, column.score)) for column in columns]
        if any(effect.n for effect in effects):
            rows[label] = effects
    if not rows:
        return []
    forms = [_form(column, [effects[place] for effects in rows.values()]) for place, column in enumerate(columns)]
    return [
        PlainTable(
            "differences",
            "Paired differences",
            ("", "n", *(column.heading for column in columns)),
            tuple(
                (label, str(max(effect.n for effect in effects)), *map(_told, effects, forms))
                for label, effects in rows.items()
            ),
            "Mean over the n seeds that both cells have of the difference at each seed, with its 95 % interval where "
            f"n ≥ 3; shares in percentage points. {about_ranking(measures)} A smaller cone separation is a smaller gap "
            f"between the modalities. Intervals are not corrected for their number. {material.teacher_sentence}",
        )
    ]


def _form(column: Column, effects: list[Effect]) -> Form:
    return form_of([effect.mean for effect in effects if effect.n], column.percent)


def _told(effect: Effect, form: Form) -> str:
    if not effect.n:
        return MISSING
    if effect.low is None or effect.high is None:
        return form.signed(effect.mean)
    return f"{form.signed(effect.mean)} [{form.end(effect.low)}, {form.end(effect.high)}]"


# -------- cost_tables
# What was spent: a line a cell, a line an order, a line a student.
#
# Times of a study's runs are wall-clock of runs that shared a machine. What a step costs comes from the benches.

ORDER_COST = "order-cost"  # name of the table
OWN = "the paper's own"
PAPER_STUDENTS = {"resnet50": "full-resnet", "mobilenetv3-large": "full-mobilenet", "vit-tiny": "full"}
PAPER_TRUNK = {"trunk": "ViT-B-32", "image_size": None}  # settings of its trunk, as runs keep them
_STUDENT_COLUMNS = ("params M", "latency ms")


def cost_tables(material: StudyMaterial) -> list[PlainTable]:
    found = [orders(material), compute_profile(material)]
    if material.results.of("full-resnet") or material.results.of("full-mobilenet"):
        found.append(students(material))
    return found


def compute_profile(material: StudyMaterial) -> PlainTable:
    rows = []
    total = 0.0
    once: set[str] = set()
    for cell in material.results.cells():
        runs = material.results.of(cell)
        first = next(iter(runs.values()))
        seconds = summary({seed: run.seconds for seed, run in runs.items()}).mean
        total += sum(run.seconds for run in runs.values() if run.key not in once)
        once |= {run.key for run in runs.values()}
        sizes = [first.parameters.get(part) for part in ("model", "heads")]
        rows.append(
            (cell, str(len(runs)), *map(_count, sizes), f"{first.steps:,}", f"{first.pairs_seen:,}", f"{seconds:,.0f}")
        )
    rows.append(("all runs", str(len(once)), "", "", "", "", f"{total / 3600:,.1f} h"))
    hours = paper_value("tab:compute", "total printed", "hours")
    return PlainTable(
        "compute",
        "Compute profile",
        ("cell", "n", "parameters trained", "of the loss alone", "steps", "pairs seen", "seconds a run"),
        tuple(rows),
        "Wall-clock of a run with its scoring; runs shared the machine, one thread each, so these are no step times. "
        f"For its study at its own scale the paper plans {hours.value:g} hours of eight H100 ({LABEL}).",
        (hours,),
    )


def orders(material: StudyMaterial) -> PlainTable:
    """Cost of each order beside plain order 1, ours and the paper's."""
    bench = load_bench(material.bench)
    paper = [_paper_costs(order) for order in range(len(PLAIN))]
    digits = [digits_for(column) for column in zip(*paper)]
    rows = []
    for order, cell in enumerate(PLAIN):
        plain, full = (bench.ratio(side, bench.order(1)) for side in (bench.order(order), bench.full(order)))
        runs = material.results.of(cell)
        heads = next(iter(runs.values())).parameters.get("heads") if runs else None
        theirs = map(paper_words, paper[order], digits)
        rows.append((str(order), _times(plain), _times(full), _count(heads), *theirs))
    where = f"{bench.title}, {bench.machine} ({bench.source})" if bench.seconds else "not measured yet (make bench)"
    return PlainTable(
        ORDER_COST,
        "Cost of an order",
        (
            "order", "step, times plain order 1", "with teacher and fusion", "parameters of the heads",
            f"step, {LABEL}", f"heads in M, {LABEL}", f"hours, {LABEL}", f"T@1 an hour over order 1, {LABEL}",
        ),
        tuple(rows),
        f"Step: median and range over alternating rounds; {where}. Parameters of the heads are those of this study's "
        "small trunk; the paper's belong to ViT-B/32. The paper's column of steps is one for plain orders and the "
        "full recipe alike. What an order gains for its cost is the claim `gain-per-cost`.",
        tuple(value for values in paper for value in values if value is not None),
    )  # fmt: skip


def _paper_costs(order: int) -> list[PaperValue | None]:
    """Its step beside order 1's, millions of parameters of the heads, hours, and what an hour gains."""
    table, last, row = "tab:cost-accuracy", "tab:cost-accuracy, last row", str(order)
    step = round(PAPER[table][row]["step ms"] / PAPER[table]["1"]["step ms"], 2)
    return [
        PaperValue(step, in_black(table, row, "step ms")),
        paper_value(table, row, "head params M"),
        paper_value(table, row, "hours"),
        paper_value(last, row, "T@1 / GPU-h") if row in PAPER[last] else None,
    ]


def _times(ratios: Mapping[int, float]) -> str:
    found = list(ratios.values())
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})" if found else MISSING


def students(material: StudyMaterial) -> PlainTable:
    """Parameters of the three image students, and their latency if it was measured; then the paper's own three.

    Published counts have a classifier, which a student has not: both are told.
    """
    bench = load_bench(material.bench)
    timed = {row["student"]: row for row in bench.latency if "student" in row}
    cells = {}
    for trained in PAPER_STUDENTS.values():
        if runs := material.results.of(trained):
            settings = next(iter(runs.values())).settings
            cells[settings["distil"]["image_student"]] = (trained, settings["model"])
    rows, shown = [], []
    for name in dict.fromkeys((*cells, *PAPER_STUDENTS)):
        cell, trunk = cells.get(name, (OWN, PAPER_TRUNK))
        of_paper = PAPER_STUDENTS.get(name)
        latency = f"{timed[name]['p50 ms']:.2f}" if name in timed else MISSING
        paper = [paper_value("tab:abl-3panel (b)", of_paper, what) if of_paper else None for what in _STUDENT_COLUMNS]
        shown += [value for value in paper if value is not None]
        rows.append((cell, name, *map(_count, _student_sizes(name, trunk)), latency, *map(paper_words, paper)))
    return PlainTable(
        "student-cost",
        "Students: parameters and latency",
        (
            "cell", "student", "parameters", "with a classifier", "latency, ms",
            f"parameters in M, {LABEL}", f"latency ms, {LABEL}",
        ),
        tuple(rows),
        f"Parameters of the image student alone, which has no classifier, and with one of {CLASSES:,} classes, as "
        f"published counts have it. “{OWN}”: built and timed, in no cell of this study. Latency: "
        "median of one image, the paper's on an H100; here: "
        f"{bench.latency_about or 'not measured yet (python -m bench.latency).'}",
        tuple(shown),
    )  # fmt: skip


def _student_sizes(name: str, trunk: Mapping[str, Any]) -> tuple[int, int]:
    """Parameters without and with a classifier, at the image size of a trunk's settings."""
    image_size = trunk_config(trunk["trunk"], trunk["image_size"])["vision_cfg"]["image_size"]
    student = image_student(name, image_size)
    return count(student), count(student) + student.classifier_parameters


def _count(parameters: int | None) -> str:
    if parameters is None:
        return MISSING
    return f"{parameters / 1e6:.2f} M" if parameters >= 1e5 else f"{parameters:,}"


# -------- paper_only
# The paper's values that stand beside nothing in a study's tables, so that all of them can be read somewhere.

TITLE = "The paper's values that this study has no cell for"

Left = dict[tuple[str, str], PaperValue]  # (row, column) → value, of one table


@dataclass(frozen=True)
class PaperOnly:
    about: str
    tables: list[PlainTable]


def paper_only(material: StudyMaterial) -> PaperOnly:
    """A grid for each table of the paper that has values which no table of the study shows."""
    beside = [value for table in material.tables for row in table.rows for value in row.paper if value is not None]
    beside += [value for plain in (*best_orders(material), *cost_tables(material)) for value in plain.paper]
    shown = {value.place for value in beside}
    left = {label: found for label in PAPER if (found := _left(label, shown))}
    about = (
        f"{about_paper([value for values in left.values() for value in values.values()])} Rows bear the names of the "
        f"cells that stand for them in our studies, where there are any. {MISSING}: stands in a table above, or is not "
        "printed by the paper."
    )
    return PaperOnly(about, [_grid(label, values) for label, values in left.items()])


def _left(label: str, shown: set[tuple[str, str, str] | None]) -> Left:
    return {
        (row, column): paper_value(label, row, column)
        for row, told in PAPER[label].items()
        for column in told
        if (label, row, column) not in shown
    }


def _grid(label: str, left: Left) -> PlainTable:
    """Rows and columns that are wholly shown elsewhere are left out."""
    rows, columns = (tuple(dict.fromkeys(place[at] for place in left)) for at in (0, 1))
    digits = {column: digits_for(left.get((row, column)) for row in rows) for column in columns}
    return PlainTable(
        label,
        f"{TITLES[label]} ({label})",
        ("", *(f"{column}, {LABEL}" for column in columns)),
        tuple((row, *(paper_words(left.get((row, column)), digits[column]) for column in columns)) for row in rows),
        note="",
    )
