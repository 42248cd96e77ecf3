"""Writes the report of a study: one HTML page, and tables, figures and claims as files of their own.

A figure that cannot be drawn becomes a sentence that says why (`MissingFigure`). `write_docs` writes the small copies
that are committed. Models do not travel with results.json, so a committed picture says in its own file which runs it
was drawn from; while the study's runs are the same, the picture stays on the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image, UnidentifiedImageError
from tqdm import tqdm

from dinorankclip.config import as_dict
from dinorankclip.data.damage import Damage
from dinorankclip.formatting import MISSING, described
from dinorankclip.io import write_text
from dinorankclip.report.figures import CAPTION, DRAWN_FROM, Drawn, Unavailable
from dinorankclip.report.html import Page, add_markdown, wrapped
from dinorankclip.stored_settings import difference
from dinorankclip.types import UserError
from dinorankclip_studies.claims_page import all_claims, machine_of, own_claims
from dinorankclip_studies.material import StudyMaterial, open_material
from dinorankclip_studies.papers import all_studies
from dinorankclip_studies.results import RESULTS
from dinorankclip_studies.run_times import duration
from dinorankclip_studies.study_tables import PlainTable, Table
from dinorankclip_studies.table_files import READING, as_markdown, grids, notes, reading_notes, write_table
from dinorankclip_studies.upper_bound import TEACHERS

TABLES, FIGURES, CLAIMS, INDEX = "tables", "figures", "claims.md", "README.md"
PAPER_ONLY = "The paper's values that this study has no cell for"


@dataclass(frozen=True)
class MissingFigure:
    """Stands for a figure that was not drawn; `why` completes "Left out: …"."""

    name: str
    title: str
    why: str


@dataclass(frozen=True)
class EarlierPicture:
    """Holds a committed picture that was drawn earlier, when the models were at hand."""

    name: str
    title: str
    caption: str


def report_study(where: str, folder: Path, out: Path, docs: Path | None, bench: Path) -> None:
    """Write the report of the study in `folder`; `where` is the folder or study name that the user typed."""
    if not (folder / RESULTS).is_file():
        if where.endswith(".toml") or (where in all_studies() and not Path(where).exists()):
            raise UserError(_no_results(where))
        raise UserError(
            f"{where} is neither a run (no config.json of training) nor a study (no {RESULTS}); a run is made by "
            "dinorankclip train, a study by dinorankclip study run NAME"
        )
    material = open_material(folder, bench)
    if not material.results.runs:
        raise UserError(_no_results(material.study.argument))
    figures = write_study(material, out, own_claims(material))
    missing = [figure for figure in figures if isinstance(figure, MissingFigure)]
    for figure in missing:
        print(f"left out: {figure.title}: {figure.why}")
    if material.state:
        print(f"{material.state}; the report says which")
    drawn = f"{len(figures) - len(missing)} of {len(figures)} figures"
    print(f"report: {out / 'report.html'} ({len(material.tables)} tables, {drawn})")
    if docs is not None:
        print(f"to commit: {write_docs(material, figures, docs)}")


def _no_results(study: str) -> str:
    return f"study {study} has no results yet: dinorankclip study run {study}"


def write_study(material: StudyMaterial, out: Path, claims: str) -> list[Drawn | MissingFigure]:
    """Write report.html, tables/, figures/ and claims.md below `out`; return the figures."""
    for table in material.tables:
        write_table(table, out / TABLES)
    _write_plain_tables(material, out / TABLES)
    figures = []
    for figure in draw_figures(material):
        if isinstance(figure, Drawn):
            figure.save(out / FIGURES)
        figures.append(figure)
    write_text(out / CLAIMS, claims)
    study_page(material, figures, claims).write(out / "report.html")
    return figures


def draw_figures(material: StudyMaterial) -> Iterator[Drawn | MissingFigure]:
    """Draw the paper's figures one after another, so that each can be written and freed."""
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
    lead = f"{study.title}. {runs} runs of {len(results.cells())} cells."
    lead += f" It stands for: {study.paper}." if study.paper else ""
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
    if not paper.own:
        page.section("Cost")
        _plain_tables(page, paper.cost_tables(material))
        page.section("Figures")
    for figure in figures:
        if isinstance(figure, Drawn):
            page.figure(figure, level=3)
        else:
            page.section(figure.title, 3)
            page.text(f"Left out: {figure.why}.", "warn")
    if not paper.own:
        page.section(PAPER_ONLY)
        about, tables = paper.paper_only(material)
        page.text(about, "note")
        _plain_tables(page, tables)
    page.section("Claims" if paper.own else "Claims of the paper")
    title, _, rest = claims.partition("\n")
    add_markdown(page, rest if title.startswith("# ") else claims, level=3, prefix="claim-")
    _tuning(page, material)
    _runs(page, material)
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
            f"dinorankclip study run {material.study.argument}",
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
        rate, note = (
            f"every method has the base's learning rate, {material.study.base.optim.lr:g}",
            material.study.rate_note,
        )
        page.text(f"Nothing was tuned in this study: {rate}, {note}." if note else f"Nothing was tuned: {rate}.")
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


def _runs(page: Page, material: StudyMaterial) -> None:
    """Add machines, all runs, and the commands that repeat them."""
    page.section("Environment")
    revisions = Counter(run.revision or "unknown" for run in material.results.runs)
    page.text("Revision of the code: " + "; ".join(f"{name} ({count} runs)" for name, count in revisions.items()) + ".")
    for about, count in material.environments():
        page.text(f"{count} runs: {described(about)}.")
    page.section("Runs")
    rows = [
        (run.cell, str(run.seed), run.folder, run.revision or "unknown", f"{run.steps:,}", duration(run.seconds))
        for run in material.results.runs
    ]
    page.details(f"All {len(rows)} runs", ("cell", "seed", "folder", "revision", "steps", "took"), rows)
    page.section("How to reproduce it")
    name, folder = material.study.argument, f"runs/study-{material.study.name}"
    page.command(
        f"dinorankclip study plan {name}        # cells, hours and disk",
        f"dinorankclip study run {name}         # goes on where it stopped",
        f"dinorankclip report {folder}",
    )
    page.text(
        "Scores depend on seed and settings alone, up to the rounding of another processor or version. A row's runs "
        "are folders below the study's, each with config.json, environment.json, metrics.jsonl and scores.json."
    )


def write_docs(material: StudyMaterial, figures: Sequence[Drawn | MissingFigure], docs: Path) -> Path:
    """Write the committed copies: docs/study/NAME and, if this study judges claims, docs/claims.md."""
    folder = docs / "study" / material.study.name
    folder.mkdir(parents=True, exist_ok=True)
    if (material.folder / RESULTS).resolve() != (folder / RESULTS).resolve():
        material.results.save(folder / RESULTS)
    probes = material.folder / TEACHERS
    if probes.is_file() and probes.resolve() != (folder / TEACHERS).resolve():
        (folder / TEACHERS).write_bytes(probes.read_bytes())
    for table in material.tables:
        write_table(table, folder / TABLES, ("md", "trace.json"))
    _write_plain_tables(material, folder / TABLES)
    committed = [_committed(figure, material, folder / FIGURES) for figure in figures]
    for figure in committed:
        if isinstance(figure, Drawn):
            (folder / FIGURES).mkdir(exist_ok=True)
            (folder / FIGURES / f"{figure.name}.png").write_bytes(figure.png)
    write_text(folder / INDEX, index(material, committed))
    if material.study.name in material.paper.judging:
        claims = all_claims(material.paper, docs, material.bench, machine_of(material))
        write_text(docs / CLAIMS, claims)
    return folder


def _write_plain_tables(material: StudyMaterial, folder: Path) -> None:
    """Write the tables that are no grid of cells and scores; they have no trace."""
    paper = material.paper
    for make in (paper.difference_tables, paper.named_tables, paper.cost_tables):
        for plain in make(material):
            write_text(folder / f"{plain.name}.md", plain.markdown())


def _committed(
    figure: Drawn | MissingFigure, material: StudyMaterial, folder: Path
) -> Drawn | EarlierPicture | MissingFigure:
    """Return the figure for the committed copy.

    A missing figure is replaced by the picture drawn earlier. Built-in scenes may be shown; photos and captions of
    other data stay in the report on this machine.
    """
    if isinstance(figure, MissingFigure):
        return earlier_picture_or(figure, folder, material.pictured)
    if not figure.shows_items or material.study.scenes is not None:
        return figure
    why = "it shows photos and captions of the data set; the report has it, this copy does not"
    return MissingFigure(figure.name, figure.title, why)


def earlier_picture_or(missing: MissingFigure, folder: Path, drawn_from: str) -> MissingFigure | EarlierPicture:
    """Return the picture of this name in `folder` if it was drawn from the same runs, else `missing`."""
    try:
        with Image.open(folder / f"{missing.name}.png") as picture:
            info = dict(picture.info)
    except (OSError, UnidentifiedImageError):
        return missing
    if not info.get(DRAWN_FROM) or info[DRAWN_FROM] != drawn_from:
        return missing
    caption = f"{info[CAPTION]} Drawn earlier, from models of the same runs."
    return EarlierPicture(missing.name, missing.title, caption)


def index(material: StudyMaterial, figures: Sequence[Drawn | EarlierPicture | MissingFigure]) -> str:
    """Return tables and figures of a study as one Markdown page."""
    study, paper = material.study, material.paper
    lines = [f"# Study {study.name}: {study.title}", ""]
    lines += [wrapped(f"Stands for: {study.paper}. Written by `dinorankclip report`; do not edit."), ""]
    if material.state:
        lines += [wrapped(f"{material.state}; every n is what is there."), ""]
    lines += [wrapped(f"Teacher: {teacher}.") for teacher in material.teachers]
    about_traces = (
        "Each table has a file `tables/NAME.trace.json` that names its run folders, seeds, settings and revision."
    )
    lines += ["", about_traces, ""]
    lines += [plain.markdown() for plain in paper.difference_tables(material)]
    lines += [f"## {READING}", "", *(f"{wrapped(note)}\n" for note in reading_notes(material.tables))]
    for table in material.tables:
        lines += [as_markdown(table, alone=False), f"[trace]({TABLES}/{table.experiment.name}.trace.json)", ""]
    lines += [plain.markdown() for plain in (*paper.named_tables(material), *paper.cost_tables(material))]
    for figure in figures:
        lines += [f"## {figure.title}", ""]
        if isinstance(figure, MissingFigure):
            lines += [f"Left out: {figure.why}.", ""]
        else:
            lines += [f"![{figure.title}]({FIGURES}/{figure.name}.png)", "", wrapped(figure.caption), ""]
    about, tables = paper.paper_only(material)
    lines += [f"## {PAPER_ONLY}", "", wrapped(about), "", *(plain.markdown(level=3) for plain in tables)]
    return "\n".join(lines).rstrip() + "\n"
