"""Writes the report of a study: the HTML page, and tables, figures and claims as files of their own.

`write_docs` writes the small copies that are committed. Models do not travel with results.json, so a committed picture
says in its own file which runs it was drawn from; while the study's runs are the same, the picture stays on the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from dinorankclip.report.figures import CAPTION, DRAWN_FROM, Drawn
from dinorankclip.report.html import wrapped
from dinorankclip.types import UserError
from dinorankclip_studies.claims_page import JUDGING, all_claims, machine_of, own_claims
from dinorankclip_studies.material import StudyMaterial, open_material
from dinorankclip_studies.papers import all_studies
from dinorankclip_studies.results import RESULTS
from dinorankclip_studies.study_page import PAPER_ONLY, MissingFigure, draw_figures, study_page
from dinorankclip_studies.table_files import READING, as_markdown, reading_notes, write_table

TABLES, FIGURES, CLAIMS, INDEX = "tables", "figures", "claims.md", "README.md"


@dataclass(frozen=True)
class EarlierPicture:
    """A committed picture that was drawn earlier, when the models were at hand."""

    name: str
    title: str
    caption: str


def report_study(where: str, folder: Path, out: Path, docs: Path | None, bench: Path) -> None:
    """Write the report of the study in `folder`; `where` is the folder or study name that the user typed."""
    if not (folder / RESULTS).is_file():
        if where in all_studies() and not Path(where).exists():
            raise UserError(_no_results(where))
        raise UserError(
            f"{where} is neither a run (no config.json of training) nor a study (no {RESULTS}); a run is made by "
            "dinorankclip train, a study by dinorankclip study run NAME"
        )
    material = open_material(folder, bench)
    if not material.results.runs:
        raise UserError(_no_results(material.study.name))
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
    (out / CLAIMS).write_text(claims, encoding="utf-8")
    study_page(material, figures, claims).write(out / "report.html")
    return figures


def write_docs(material: StudyMaterial, figures: Sequence[Drawn | MissingFigure], docs: Path) -> Path:
    """Write the committed copies: docs/study/NAME and, if this study judges claims, docs/claims.md."""
    folder = docs / "study" / material.study.name
    folder.mkdir(parents=True, exist_ok=True)
    if (material.folder / RESULTS).resolve() != (folder / RESULTS).resolve():
        material.results.save(folder / RESULTS)
    for table in material.tables:
        write_table(table, folder / TABLES, ("md", "trace.json"))
    _write_plain_tables(material, folder / TABLES)
    committed = [_committed(figure, material, folder / FIGURES) for figure in figures]
    for figure in committed:
        if isinstance(figure, Drawn):
            (folder / FIGURES).mkdir(exist_ok=True)
            (folder / FIGURES / f"{figure.name}.png").write_bytes(figure.png)
    (folder / INDEX).write_text(index(material, committed), encoding="utf-8")
    if material.study.name in JUDGING:
        (docs / CLAIMS).write_text(all_claims(docs, material.bench, machine_of(material)), encoding="utf-8")
    return folder


def _write_plain_tables(material: StudyMaterial, folder: Path) -> None:
    """Write the tables that are no grid of cells and scores; they have no trace."""
    paper = material.paper
    tables = (paper.difference_tables, paper.named_tables, paper.cost_tables)
    for plain in (plain for make in tables for plain in make(material)):
        (folder / f"{plain.name}.md").write_text(plain.markdown(), encoding="utf-8")


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
    lines += [
        "",
        "Each table has a file `tables/NAME.trace.json` that names its run folders, seeds, settings and revision.",
        "",
    ]
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
