"""The report of a study as one HTML file: what was compared, tables, figures, claims, cost, how to redo it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dinorankclip.config import as_dict, difference
from dinorankclip.formatting import MISSING, described
from dinorankclip.report.figures import Drawn
from dinorankclip.report.html import Page, add_markdown
from dinorankclip_studies.material import StudyMaterial
from dinorankclip_studies.papers.dinorankclip.extra_tables import TITLE as PAPER_ONLY
from dinorankclip_studies.papers.dinorankclip.extra_tables import (
    best_orders,
    cost_tables,
    paired_differences,
    paper_only,
)
from dinorankclip_studies.run_times import duration
from dinorankclip_studies.study_figures import Missing
from dinorankclip_studies.study_tables import PlainTable, Table
from dinorankclip_studies.table_files import READING, grids, own_notes, reading_notes


def study_page(material: StudyMaterial, figures: Iterable[Drawn | Missing], claims: str) -> Page:
    """`claims` is Markdown."""
    study, results = material.study, material.results
    runs = len({run.key for run in results.runs})
    lead = f"{study.title}. {runs} runs of {len(results.cells())} cells. It stands for: {study.paper}."
    page = Page(f"DinoRankCLIP, study {study.name}", lead)
    _state(page, material)
    _method(page, material)
    page.section("Tables")
    _plain_tables(page, paired_differences(material))
    page.section(READING, 3)
    for note in reading_notes(material.tables):
        page.text(note, "note")
    for table in material.tables:
        _table(page, table, material)
    _plain_tables(page, best_orders(material))
    page.section("Cost")
    _plain_tables(page, cost_tables(material))
    page.section("Figures")
    for figure in figures:
        if isinstance(figure, Drawn):
            page.figure(figure, level=3)
        else:
            page.section(figure.title, 3)
            page.text(f"Left out: {figure.why}.", "warn")
    page.section(PAPER_ONLY)
    told = paper_only(material)
    page.text(told.about, "note")
    _plain_tables(page, told.tables)
    page.section("Claims of the paper")
    add_markdown(page, _without_title(claims), level=3, prefix="claim-")
    _tuning(page, material)
    _environment(page, material)
    _runs(page, material)
    _again(page, material)
    return page


def _plain_tables(page: Page, tables: Iterable[PlainTable]) -> None:
    for plain in tables:
        page.section(plain.title, 3)
        page.table(plain.headings, plain.rows)
        if plain.notes:
            page.text(plain.notes, "note")


def _without_title(markdown: str) -> str:
    """The section has a heading of its own."""
    first, _, rest = markdown.partition("\n")
    return rest if first.startswith("# ") else markdown


def _state(page: Page, material: StudyMaterial) -> None:
    lacking = material.lacking
    if lacking:
        count = sum(map(len, lacking.values()))
        page.section("What lacks")
        page.text(
            f"{count} of {sum(material.study.seeds.values())} runs are not finished; rows without a run show "
            f"{MISSING}, and every n is what is there. To go on: dinorankclip study run {material.study.name}",
            "warn",
        )
        rows = [(cell, ", ".join(map(str, seeds))) for cell, seeds in lacking.items()]
        page.details("Cells and seeds that are not finished", ("cell", "seeds"), rows)


def _method(page: Page, material: StudyMaterial) -> None:
    """What all runs share, and what was asserted."""
    base = material.study.base
    page.section("What is compared")
    page.text(
        f"All cells of a table see the same pairs in the same order: data {base.data}, batch {base.budget.batch}, "
        f"{base.budget.epochs} epochs, trunk {base.model.trunk}, one ramp of the ranking weights, the same seeds. "
        "This is asserted before the first run from the settings, and after each run from what it has spent "
        "(samples, steps, batch, trunk, ramp); a mismatch is refused. Cells marked † in a table differ on purpose, "
        "and its note says in what."
    )
    page.text(
        "Scores are those of the last checkpoint on test parts; nothing is chosen by them. Learning rates are chosen "
        "on validation parts, with the same budget for every method (see Tuning). Intervals are over seeds; "
        "differences are paired by seed, so that what a seed does to both sides drops out."
    )
    for teacher in material.teachers:
        page.text(f"Teacher: {teacher}.", "note")


def _table(page: Page, table: Table, material: StudyMaterial) -> None:
    page.section(table.experiment.title, 3)
    for grid in grids(table):
        page.grid(grid)
    if told := own_notes(table):
        page.text(" ".join(told), "note")
    page.details(
        "Where each row comes from", ("row", "cell", "seeds", "runs", "revision", "settings"), _trace(table, material)
    )


def _trace(table: Table, material: StudyMaterial) -> list[tuple[str, ...]]:
    """Row → cell, seeds, run folders, revisions, and what its settings change of the study's base."""
    base = as_dict(material.study.base)
    rows: list[tuple[str, ...]] = []
    for row in table.rows:
        runs = row.runs
        changed = [line for line in difference(base, runs[0].settings) if not line.startswith("seed")] if runs else []
        rows.append((
            row.label,
            row.cell,
            ", ".join(str(run.seed) for run in runs) or MISSING,
            ", ".join(run.folder for run in runs) or MISSING,
            ", ".join(dict.fromkeys(run.revision or "unknown" for run in runs)) or MISSING,
            "; ".join(changed) or ("as the base" if runs else MISSING),
        ))  # fmt: skip
    return rows


def _tuning(page: Page, material: StudyMaterial) -> None:
    page.section("Tuning")
    tuned = material.results.tuned
    if not tuned:
        page.text(f"Nothing was tuned: every method has the base's learning rate, {material.study.base.optim.lr:g}.")
        return
    rates = sorted({rate for told in tuned.values() for rate in told["tried"]}, key=float)
    page.text(
        "Validation mean R@1 in percent by learning rate, one seed that is not reported; every method had the same "
        "grid. The rate that is best on the average of the methods is used for all. Other settings are shared and were "
        "not tuned for any method."
    )
    rows = [
        (method, *(_percent(told["tried"].get(rate)) for rate in rates), f"{told['chosen']:g}")
        for method, told in tuned.items()
    ]
    page.table(("method", *rates, "chosen"), rows)


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{100 * value:.2f}"


def _environment(page: Page, material: StudyMaterial) -> None:
    page.section("Environment")
    revisions = material.revisions()
    page.text("Revision of the code: " + "; ".join(f"{name} ({count} runs)" for name, count in revisions.items()) + ".")
    for about, count in material.environments():
        page.text(f"{count} runs: {described(about)}.")


def _runs(page: Page, material: StudyMaterial) -> None:
    page.section("Runs")
    rows = [
        (run.cell, str(run.seed), run.folder, run.revision or "unknown", f"{run.steps:,}", duration(run.seconds))
        for run in material.results.runs
    ]
    page.details(f"All {len(rows)} runs", ("cell", "seed", "folder", "revision", "steps", "took"), rows)


def _again(page: Page, material: StudyMaterial) -> None:
    page.section("How to reproduce it")
    name = material.study.name
    page.command(
        f"dinorankclip study plan {name}        # cells, hours and disk",
        f"dinorankclip study run {name}         # goes on where it stopped",
        f"dinorankclip report runs/study-{name}",
    )
    page.text(
        "Scores depend on seed and settings alone, up to the rounding of another processor or version. A row's runs "
        "are folders below the study's, each with config.json, environment.json, metrics.jsonl and scores.json."
    )


def write_page(page: Page, folder: Path) -> Path:
    path = folder / "report.html"
    page.write(path)
    return path
