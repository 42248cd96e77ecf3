"""What was spent: a line a cell, a line an order, a line a student.

Times of a study's runs are wall-clock of runs that shared a machine. What a step costs comes from the benches.
"""

from __future__ import annotations

import statistics

from dinorankclip.study.bench_figures import load_bench
from dinorankclip.study.effects import summary
from dinorankclip.study.paper_values import LABEL, PAPER
from dinorankclip.study.tables.orders import PLAIN
from dinorankclip.writeup.figures.drawn import Unavailable
from dinorankclip.writeup.numbers import MISSING
from dinorankclip.writeup.plain_table import PlainTable
from dinorankclip.writeup.study_material import StudyMaterial


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
    hours = PAPER["tab:compute"]["total printed"]["hours"]
    return PlainTable(
        "compute",
        "Compute profile",
        ("cell", "n", "parameters trained", "of the loss alone", "steps", "pairs seen", "seconds a run"),
        tuple(rows),
        "Wall-clock of a run with its scoring; runs shared the machine, one thread each, so these are no step times. "
        f"For its study at its own scale the paper plans {hours:g} hours of eight H100 ({LABEL}).",
    )


def orders(material: StudyMaterial) -> PlainTable:
    """Cost of each plain order beside order 1, ours and the paper's."""
    bench = load_bench(material.bench)
    told = PAPER["tab:cost-accuracy"]
    rows = []
    for order, cell in enumerate(PLAIN):
        ratios = list(bench.ratio(bench.order(order), bench.order(1)).values())
        step = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else MISSING
        runs = material.results.of(cell)
        heads = next(iter(runs.values())).parameters.get("heads") if runs else None
        paper = told[str(order)]
        rows.append((
            str(order), step, _count(heads), f"{paper['step ms'] / told['1']['step ms']:.2f}",
            f"{paper['head params M']:g} M",
        ))  # fmt: skip
    where = f"{bench.title}, {bench.machine} ({bench.source})" if bench.seconds else "not measured yet (make bench)"
    return PlainTable(
        "order-cost",
        "Cost of an order",
        ("order", "step, times order 1", "parameters of the heads", f"step, {LABEL}", f"heads, {LABEL}"),
        tuple(rows),
        f"Step: median and range over alternating rounds; {where}. Parameters of the heads are those of this study's "
        "small trunk; the paper's belong to ViT-B/32.",
    )


def students(material: StudyMaterial) -> PlainTable:
    """Parameters of the three image students, counted in the kept models, and their latency if it was measured."""
    latency = {row["student"]: row for row in load_bench(material.bench).latency if "student" in row}
    told = PAPER["tab:abl-3panel (b)"]
    rows = []
    for cell in ("full-resnet", "full-mobilenet", "full"):
        runs = material.results.of(cell)
        if runs:
            name = next(iter(runs.values())).settings["distil"]["image_student"]
            measured = f"{latency[name]['p50 ms']:.2f}" if name in latency else MISSING
            paper = f"{told[cell]['params M']:g} M", f"{told[cell]['latency ms']:g}"
            rows.append((cell, name, _count(_student_parameters(material, cell)), measured, *paper))
    return PlainTable(
        "student-cost",
        "Students: parameters and latency",
        ("cell", "student", "parameters", "latency, ms", f"parameters, {LABEL}", f"latency ms, {LABEL}"),
        tuple(rows),
        "Parameters of the image student alone. Latency: median of one image, one thread, from the latency bench; "
        f"{MISSING} where it has not been measured.",
    )


def _student_parameters(material: StudyMaterial, cell: str) -> int | None:
    try:
        return sum(one.numel() for one in material.models.model(cell).parts.image_student.parameters())
    except Unavailable:
        return None


def _count(parameters: int | None) -> str:
    if parameters is None:
        return MISSING
    return f"{parameters / 1e6:.2f} M" if parameters >= 1e5 else f"{parameters:,}"
