"""The report of a study as one HTML page: what was compared, tables, figures, claims, cost, how to repeat it.

A figure that cannot be drawn becomes a sentence that says why (`MissingFigure`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tqdm import tqdm

from dinorankclip.config import as_dict, difference
from dinorankclip.data.damage import Damage
from dinorankclip.formatting import MISSING, described
from dinorankclip.report.figures import Drawn, Unavailable
from dinorankclip.report.html import Page, add_markdown
from dinorankclip.types import UserError
from dinorankclip_studies.material import StudyMaterial
from dinorankclip_studies.run_times import duration
from dinorankclip_studies.study_tables import PlainTable, Table
from dinorankclip_studies.table_files import READING, grids, notes, reading_notes

PAPER_ONLY = "The paper's values that this study has no cell for"


@dataclass(frozen=True)
class MissingFigure:
    """A figure that was not drawn; `why` completes "Left out: …"."""

    name: str
    title: str
    why: str


def draw_figures(material: StudyMaterial) -> Iterator[Drawn | MissingFigure]:
    """Draw the paper's figures one after another, so that each can be written and forgotten."""
    makers = material.paper.figures(material)
    for (name, title), make in tqdm(makers.items(), desc="figures", unit="figure", leave=False):
        try:
            yield replace(make(), drawn_from=material.pictured)
        except (Unavailable, UserError, Damage, OSError) as error:
            yield MissingFigure(name, title, str(error))


def study_page(material: StudyMaterial, figures: Iterable[Drawn | MissingFigure], claims: str) -> Page:
    """Build the page; `claims` is Markdown."""
    study, results, paper = material.study, material.results, material.paper
    runs = len({run.key for run in results.runs})
    lead = f"{study.title}. {runs} runs of {len(results.cells())} cells. It stands for: {study.paper}."
    page = Page(f"DinoRankCLIP, study {study.name}", lead)
    _unfinished(page, material)
    _method(page, material)
    page.section("Tables")
    _plain_tables(page, paper.difference_tables(material))
    page.section(READING, 3)
    for note in reading_notes(material.tables):
        page.text(note, "note")
    for table in material.tables:
        _table(page, table, material)
    _plain_tables(page, paper.named_tables(material))
    page.section("Cost")
    _plain_tables(page, paper.cost_tables(material))
    page.section("Figures")
    for figure in figures:
        if isinstance(figure, Drawn):
            page.figure(figure, level=3)
        else:
            page.section(figure.title, 3)
            page.text(f"Left out: {figure.why}.", "warn")
    page.section(PAPER_ONLY)
    about, tables = paper.paper_only(material)
    page.text(about, "note")
    _plain_tables(page, tables)
    page.section("Claims of the paper")
    title, _, rest = claims.partition("\n")
    add_markdown(page, rest if title.startswith("# ") else claims, level=3, prefix="claim-")
    _tuning(page, material)
    _environment(page, material)
    _runs(page, material)
    _repeat(page, material)
    return page


def _plain_tables(page: Page, tables: Iterable[PlainTable]) -> None:
    for plain in tables:
        page.section(plain.title, 3)
        page.table(plain.headings, plain.rows)
        if plain.notes:
            page.text(plain.notes, "note")


def _unfinished(page: Page, material: StudyMaterial) -> None:
    if material.unfinished:
        page.section("Unfinished runs")
        page.text(
            f"{material.state}; rows without a run show {MISSING}, and every n counts finished runs. To go on: "
            f"dinorankclip study run {material.study.name}",
            "warn",
        )
        rows = [(cell, ", ".join(map(str, seeds))) for cell, seeds in material.unfinished.items()]
        page.details("Cells and seeds that are not finished", ("cell", "seeds"), rows)


def _method(page: Page, material: StudyMaterial) -> None:
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
    """Add a table with a trace of each row: cell, seeds, run folders, revisions, and changes to the base settings."""
    page.section(table.experiment.title, 3)
    for grid in grids(table):
        page.grid(grid)
    if lines := notes(table, alone=False):
        page.text(" ".join(lines), "note")
    base = as_dict(material.study.base)
    rows = []
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
    page.details("Where each row comes from", ("row", "cell", "seeds", "runs", "revision", "settings"), rows)


def _tuning(page: Page, material: StudyMaterial) -> None:
    page.section("Tuning")
    tuned = material.results.tuned
    if not tuned:
        page.text(f"Nothing was tuned: every method has the base's learning rate, {material.study.base.optim.lr:g}.")
        return
    rates = sorted({rate for entry in tuned.values() for rate in entry["tried"]}, key=float)
    page.text(
        "Validation mean R@1 in percent by learning rate, one seed that is not reported; every method had the same "
        "grid. The rate that is best on the average of the methods is used for all. Other settings are shared and were "
        "not tuned for any method."
    )
    rows = []
    for method, entry in tuned.items():
        scores = [entry["tried"].get(rate) for rate in rates]
        percents = (MISSING if score is None else f"{100 * score:.2f}" for score in scores)
        rows.append((method, *percents, f"{entry['chosen']:g}"))
    page.table(("method", *rates, "chosen"), rows)


def _environment(page: Page, material: StudyMaterial) -> None:
    page.section("Environment")
    revisions = Counter(run.revision or "unknown" for run in material.results.runs)
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


def _repeat(page: Page, material: StudyMaterial) -> None:
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
