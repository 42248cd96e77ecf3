"""Builds tables of a report that are no grid of cells and scores: paired differences, best orders, costs, and the
paper's values without a counterpart in the study.

Times of a study's runs are wall-clock times of runs that shared a machine. Costs of a step come from the benches.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from dinorankclip.formatting import MISSING, Form, form_of, parameter_count
from dinorankclip.methods import LABEL
from dinorankclip.models.students import CLASSES, count, image_student
from dinorankclip.models.trunk import trunk_config
from dinorankclip_studies.material import StudyMaterial
from dinorankclip_studies.papers.dinorankclip import PAPER
from dinorankclip_studies.papers.dinorankclip.paper_tables import (
    PLAIN,
    WITH_TEACHER,
    about_ranking,
    columns,
    sweep_of,
    sweep_results,
)
from dinorankclip_studies.papers.dinorankclip.plans import time_of_full
from dinorankclip_studies.papers.dinorankclip.scales import ABLATION, MAIN, SWEEP, cell_at
from dinorankclip_studies.papers.paper_data import PaperValue, about_paper, digits_for, paper_words
from dinorankclip_studies.quantities import Context
from dinorankclip_studies.results import Results, at_chance, chance_of
from dinorankclip_studies.run_times import load_bench
from dinorankclip_studies.study import Column
from dinorankclip_studies.study_tables import PlainTable
from dinorankclip_studies.upper_bound import upper_bounds
from dinorankclip_studies.verdicts import ALPHA, Effect, p_value, paired, summary

SWEEPS = {"plain": PLAIN, "with teacher": WITH_TEACHER}
CLAIMED = 3  # the order that the paper calls best

# Row of the table of paired differences → (subtracted cell, cell that it is subtracted from).
DIFFERENCES: Mapping[str, tuple[str, str]] = {
    "CyCLIP − CLIP": ("clip", "cyclip"),
    "ALIP-style (two captions a step) − CLIP": ("clip", "alip"),
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

_SCALE_WORDS = {MAIN: "", SWEEP: " (sweep)", ABLATION: " (ablation)"}  # the first scale that has both cells is shown

ORDER_COST = "order-cost"  # name of the table
OWN = "the paper's own"
PAPER_STUDENTS = {"resnet50": "full-resnet", "mobilenetv3-large": "full-mobilenet", "vit-tiny": "full"}
PAPER_TRUNK = {"trunk": "ViT-B-32", "image_size": None}  # settings of the paper's trunk, as runs store them


def named_tables(material: StudyMaterial) -> list[PlainTable]:
    """Return the best orders by name, and the upper bound that the teachers' own probes set."""
    if not material.table("controls"):
        return best_orders(material)
    return [*best_orders(material), *upper_bounds(material.folder, material.study.name, _best_probes(material))]


def _best_probes(material: StudyMaterial) -> dict[str, float]:
    """Return set → the highest mean probe accuracy of a cell, over the sets that teachers are probed on."""
    measures, results = material.measures, material.results
    best: dict[str, float] = {}
    for name in dict.fromkeys((measures.fine, *measures.family_sets, measures.coarse)):
        score = f"{name}/embedding probe accuracy"
        means = [summary(values).mean for cell in results.cells() if (values := results.values(cell, score))]
        best |= {name: max(means)} if means else {}
    return best


def best_orders(material: StudyMaterial) -> list[PlainTable]:
    """Name the best order of each suite in both sweeps, and tell whether it differs from order 3. A study without the
    table `best-order` has none."""
    table = material.table("best-order")
    if table is None:
        return []
    suites = material.measures.paper_suites
    beside = [
        [PAPER.values.value("tab:per-dataset-order", suite, column) for column in ("best order", "score")]
        for suite in suites
    ]
    rows = [
        row
        for column, paper in zip(table.columns, beside, strict=True)
        for sweep, cells in SWEEPS.items()
        if (row := _best_order_row(material, column, sweep, sweep_of(cells, material.measures), paper)) is not None
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
            f"{', '.join(suites[:-1])} and {suites[-1]}.",
            tuple(value for values in beside for value in values),
        )
    ]  # fmt: skip


def _best_order_row(
    material: StudyMaterial, column: Column, sweep: str, cells: tuple[str, ...], paper: list[PaperValue]
) -> tuple[str, ...] | None:
    results = material.results
    common = results.on_common_seeds(cells)
    by_order = {order: values for order, cell in enumerate(cells) if (values := common.values(cell, column.score))}
    if len(by_order) < len(cells):
        return None  # the best of some orders is not the best of all
    means = {order: summary(values).mean for order, values in by_order.items()}
    best = max(means, key=lambda order: (means[order], -order))
    form, chance = form_of(means.values(), column.percent), chance_of(results, column.score)
    difference = differs = MISSING
    if best != CLAIMED:
        effect = paired(*(results.values(cells[order], column.score) for order in (CLAIMED, best)))
        difference = form.with_half(effect.mean, effect.low, effect.high, sign=True)
        differs = "yes" if p_value(effect) * (len(cells) - 1) <= ALPHA else "no"
        if column.percent and at_chance(results, cells, column.score):
            differs = "near chance"
    return (
        column.heading, sweep, str(len(by_order[best])), str(best), form.plain(means[best]),
        MISSING if chance is None else form.plain(chance), difference, differs, *map(paper_words, paper),
    )  # fmt: skip


def paired_differences(material: StudyMaterial) -> list[PlainTable]:
    """Show the gain of each step of the method, and its gain over controls, paired by seed. Rows whose cells share no
    seed, and rows that would compare the same runs, or compare them again, are left out; without any row there is no
    table."""
    measures, results = material.measures, material.results
    shown = columns(measures, "mean R@1", "fine probe", "ranking τ-b", "cone separation °")
    rows = {}
    compared: list[tuple[str, str]] = []
    for label, pair in DIFFERENCES.items():
        for scale, words in _SCALE_WORDS.items():
            less, more = (cell_at(scale, cell) for cell in pair)
            if results.are_same_runs(less, more) or any(
                _compares_again(results, (less, more), one) for one in compared
            ):
                break
            effects = [
                paired(results.values(less, column.score), results.values(more, column.score)) for column in shown
            ]
            if any(effect.n for effect in effects):
                rows[label + words] = effects
                compared.append((less, more))
                break
    if not rows:
        return []
    forms = [
        form_of([effects[place].mean for effects in rows.values() if effects[place].n], column.percent)
        for place, column in enumerate(shown)
    ]
    return [
        PlainTable(
            "differences",
            "Paired differences",
            ("", "n", *(column.heading for column in shown)),
            tuple(
                (label, str(max(effect.n for effect in effects)), *map(_with_interval, effects, forms))
                for label, effects in rows.items()
            ),
            "Mean over the n seeds that both cells have of the difference at each seed, with its 95 % interval where "
            f"n ≥ 3; shares in percentage points. {about_ranking(measures)} A smaller cone separation is a smaller gap "
            f"between the modalities. Intervals are not corrected for their number.{_about_time(material)} "
            f"{material.teacher_sentence}",
        )
    ]


def _compares_again(results: Results, pair: tuple[str, str], earlier: tuple[str, str]) -> bool:
    """Return whether two pairs of cells are the same runs under other names."""
    return all(a == b or results.are_same_runs(a, b) for a, b in zip(pair, earlier))


def _about_time(material: StudyMaterial) -> str:
    """Return the sentence that belongs to the row at equal time, where the study has it."""
    if not material.results.of("control-clip-longer"):
        return ""
    said = time_of_full(Context(material.results, material.measures, load_bench(material.bench)))
    return f" Equal time: {said}." if said else ""


def _with_interval(effect: Effect, form: Form) -> str:
    if not effect.n:
        return MISSING
    if effect.low is None or effect.high is None:
        return form.signed(effect.mean)
    return f"{form.signed(effect.mean)} [{form.end(effect.low)}, {form.end(effect.high)}]"


def cost_tables(material: StudyMaterial) -> list[PlainTable]:
    tables = [order_costs(material), compute_profile(material)]
    if any(material.results.of(_student_cell(material, cell)) for cell in ("full-resnet", "full-mobilenet")):
        tables.append(student_costs(material))
    return tables


def compute_profile(material: StudyMaterial) -> PlainTable:
    rows, total = [], 0.0
    counted: set[str] = set()  # cells may share runs
    for cell in material.results.cells():
        runs = material.results.of(cell)
        first = next(iter(runs.values()))
        seconds = summary({seed: run.seconds for seed, run in runs.items()}).mean
        total += sum(run.seconds for run in runs.values() if run.key not in counted)
        counted |= {run.key for run in runs.values()}
        sizes = (parameter_count(first.parameters.get(part)) for part in ("model", "heads"))
        rows.append((cell, str(len(runs)), *sizes, f"{first.steps:,}", f"{first.pairs_seen:,}", f"{seconds:,.0f}"))
    rows.append(("all runs", str(len(counted)), "", "", "", "", f"{total / 3600:,.1f} h"))
    hours = PAPER.values.value("tab:compute", "total printed", "hours")
    return PlainTable(
        "compute",
        "Compute profile",
        ("cell", "n", "parameters trained", "of the loss alone", "steps", "pairs seen", "seconds a run"),
        tuple(rows),
        "Wall-clock of a run with its scoring; runs shared the machine, one thread each, so these are no step times. "
        f"For its study at its own scale the paper plans {hours.value:g} hours of eight H100 ({LABEL}).",
        (hours,),
    )


def order_costs(material: StudyMaterial) -> PlainTable:
    """Show the cost of each order beside plain order 1, ours and the paper's."""
    bench = load_bench(material.bench)
    paper = [_paper_costs(str(order)) for order in range(len(PLAIN))]
    digits = [digits_for(column) for column in zip(*paper)]
    rows = []
    for order, cell in enumerate(PLAIN):
        plain, full = (bench.ratio(side, bench.order(1)) for side in (bench.order(order), bench.full(order)))
        runs = sweep_results(material.results, material.measures).of(cell)
        heads = next(iter(runs.values())).parameters.get("heads") if runs else None
        rows.append(
            (str(order), _range(plain), _range(full), parameter_count(heads), *map(paper_words, paper[order], digits))
        )
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


def _paper_costs(row: str) -> list[PaperValue | None]:
    """Return the paper's step beside order 1's, millions of parameters of the heads, hours, and gain for an hour."""
    values, table, last = PAPER.values, "tab:cost-accuracy", "tab:cost-accuracy, last row"
    step = round(values[table][row]["step ms"] / values[table]["1"]["step ms"], 2)
    return [
        PaperValue(step, values.in_black(table, row, "step ms")),
        values.value(table, row, "head params M"),
        values.value(table, row, "hours"),
        values.value(last, row, "T@1 / GPU-h") if row in values[last] else None,
    ]


def _range(ratios: Mapping[int, float]) -> str:
    times = list(ratios.values())
    return f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})" if times else MISSING


def student_costs(material: StudyMaterial) -> PlainTable:
    """Show parameters and latency of the study's image students, then of the paper's own three. Published counts have
    a classifier, which a student lacks: both counts are shown."""
    bench = load_bench(material.bench)
    timed = {row["student"]: row for row in bench.latency if "student" in row}
    cells = {}
    for trained in (_student_cell(material, cell) for cell in PAPER_STUDENTS.values()):
        if runs := material.results.of(trained):
            settings = next(iter(runs.values())).settings
            cells[settings["distil"]["image_student"]] = (trained, settings["model"])
    rows, shown = [], []
    for name in dict.fromkeys((*cells, *PAPER_STUDENTS)):
        cell, trunk = cells.get(name, (OWN, PAPER_TRUNK))
        latency = f"{timed[name]['p50 ms']:.2f}" if name in timed else MISSING
        paper = [MISSING, MISSING]
        if row := PAPER_STUDENTS.get(name):
            values = [PAPER.values.value("tab:abl-3panel (b)", row, column) for column in ("params M", "latency ms")]
            shown += values
            paper = [*map(paper_words, values)]
        rows.append((cell, name, *map(parameter_count, _student_sizes(name, trunk)), latency, *paper))
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


def _student_cell(material: StudyMaterial, cell: str) -> str:
    """Return the name of a cell where students are compared: at the paper's scale this is an ablation."""
    return cell_at(ABLATION, cell) if material.measures.scales else cell


def _student_sizes(name: str, trunk: Mapping[str, Any]) -> tuple[int, int]:
    """Return the parameters without and with a classifier, at the image size of a trunk's settings."""
    image_size = trunk_config(trunk["trunk"], trunk["image_size"])["vision_cfg"]["image_size"]
    student = image_student(name, image_size)
    return count(student), count(student) + student.classifier_parameters


def paper_only(material: StudyMaterial) -> tuple[str, list[PlainTable]]:
    """Return a note and a grid for each table of the paper with values that no table of the study shows, so that every
    printed value can be read somewhere."""
    beside = [value for table in material.tables for row in table.rows for value in row.paper if value is not None]
    beside += [value for plain in (*named_tables(material), *cost_tables(material)) for value in plain.paper]
    shown = {value.place for value in beside}
    left = {
        label: {
            (row, column): PAPER.values.value(label, row, column)
            for row, numbers in rows.items()
            for column in numbers
            if (label, row, column) not in shown
        }
        for label, rows in PAPER.values.items()
    }
    note = (
        f"{about_paper([value for values in left.values() for value in values.values()])} Rows bear the names of the "
        f"cells that stand for them in our studies, where there are any. {MISSING}: stands in a table above, or is not "
        "printed by the paper."
    )
    return note, [_grid(label, values) for label, values in left.items() if values]


def _grid(label: str, left: Mapping[tuple[str, str], PaperValue]) -> PlainTable:
    """Build a grid without the rows and columns that are wholly shown elsewhere."""
    rows, headings = (tuple(dict.fromkeys(place[at] for place in left)) for at in (0, 1))
    digits = {column: digits_for(left.get((row, column)) for row in rows) for column in headings}
    return PlainTable(
        label,
        f"{PAPER.values.titles[label]} ({label})",
        ("", *(f"{column}, {LABEL}" for column in headings)),
        tuple((row, *(paper_words(left.get((row, column)), digits[column]) for column in headings)) for row in rows),
        note="",
    )
