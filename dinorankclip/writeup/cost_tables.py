"""What was spent: a line a cell, a line an order, a line a student.

Times of a study's runs are wall-clock of runs that shared a machine. What a step costs comes from the benches.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from dinorankclip.encoders.students import CLASSES, count, image_student
from dinorankclip.encoders.trunk import trunk_config
from dinorankclip.study.bench_figures import load_bench
from dinorankclip.study.effects import summary
from dinorankclip.study.paper_values import LABEL, PAPER, PaperValue, in_black, paper_value
from dinorankclip.study.tables.orders import PLAIN
from dinorankclip.writeup.numbers import MISSING
from dinorankclip.writeup.paper_words import digits_for, paper_words
from dinorankclip.writeup.plain_table import PlainTable
from dinorankclip.writeup.study_material import StudyMaterial

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
