"""What `report` writes for a study: the page, and tables, figures and claims as files of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dinorankclip.study.results import RESULTS
from dinorankclip.writeup.best_orders import best_orders
from dinorankclip.writeup.cost_tables import cost_tables
from dinorankclip.writeup.figures.drawn import Drawn
from dinorankclip.writeup.kept_pictures import KeptPicture, unless_kept
from dinorankclip.writeup.paired_differences import paired_differences
from dinorankclip.writeup.paper_only import TITLE as PAPER_ONLY
from dinorankclip.writeup.paper_only import paper_only
from dinorankclip.writeup.report import study_page, write_page
from dinorankclip.writeup.study_claims import JUDGING, all_claims, machine_of
from dinorankclip.writeup.study_figures import Missing, study_figures
from dinorankclip.writeup.study_material import StudyMaterial
from dinorankclip.writeup.table_files import as_markdown, write_table
from dinorankclip.writeup.table_grids import wrapped
from dinorankclip.writeup.table_notes import READING, reading_notes

TABLES, FIGURES, CLAIMS, INDEX = "tables", "figures", "claims.md", "README.md"


def write_study(material: StudyMaterial, out: Path, claims: str) -> list[Drawn | Missing]:
    """report.html, tables/, figures/ and claims.md below `out`; what was drawn, and what was not and why."""
    for table in material.tables:
        write_table(table, out / TABLES)
    _write_plain(material, out / TABLES)
    figures = []
    for figure in study_figures(material):
        if isinstance(figure, Drawn):
            figure.save(out / FIGURES)
        figures.append(figure)
    (out / CLAIMS).write_text(claims, encoding="utf-8")
    write_page(study_page(material, figures, claims), out)
    return figures


def write_docs(material: StudyMaterial, figures: Sequence[Drawn | Missing], docs: Path) -> Path:
    """The small copies that are committed: docs/study/NAME with results, a readable page, tables and pictures; and
    docs/claims.md, if this study has a say in it."""
    folder = docs / "study" / material.study.name
    folder.mkdir(parents=True, exist_ok=True)
    if (material.folder / RESULTS).resolve() != (folder / RESULTS).resolve():
        material.results.save(folder / RESULTS)
    for table in material.tables:
        write_table(table, folder / TABLES, ("md", "trace.json"))
    _write_plain(material, folder / TABLES)
    shown = [_shown(figure, material, folder / FIGURES) for figure in figures]
    for figure in shown:
        if isinstance(figure, Drawn):
            (folder / FIGURES).mkdir(exist_ok=True)
            (folder / FIGURES / f"{figure.name}.png").write_bytes(figure.png)
    (folder / INDEX).write_text(index(material, shown), encoding="utf-8")
    if material.study.name in JUDGING:
        (docs / CLAIMS).write_text(all_claims(docs, material.bench, machine_of(material)), encoding="utf-8")
    return folder


def _write_plain(material: StudyMaterial, folder: Path) -> None:
    """Tables that are no list of cells and scores, and so have no trace of their own."""
    for plain in (*paired_differences(material), *best_orders(material), *cost_tables(material)):
        (folder / f"{plain.name}.md").write_text(plain.markdown(), encoding="utf-8")


def _shown(figure: Drawn | Missing, material: StudyMaterial, folder: Path) -> Drawn | KeptPicture | Missing:
    """What the copy shows: the figure, or the one that was drawn when its models were at hand. Built-in scenes are ours
    to show; photos and captions of other data stay in the report on this machine."""
    if isinstance(figure, Missing):
        return unless_kept(figure, folder, material.pictured)
    if not figure.shows_items or material.study.scenes is not None:
        return figure
    why = "it shows photos and captions of the data set; the report has it, this copy does not"
    return Missing(figure.name, figure.title, why)


def index(material: StudyMaterial, figures: Sequence[Drawn | KeptPicture | Missing]) -> str:
    """Tables and figures of a study on one Markdown page."""
    study = material.study
    lines = [f"# Study {study.name}: {study.title}", ""]
    lines += [wrapped(f"Stands for: {study.paper}. Written by `dinorankclip report`; do not edit."), ""]
    lacking = sum(map(len, material.lacking.values()))
    if lacking:
        lines += [
            wrapped(f"{lacking} of {sum(study.seeds.values())} runs are not finished; every n is what is there."),
            "",
        ]
    lines += [wrapped(f"Teacher: {teacher}.") for teacher in material.teachers]
    lines += [
        "",
        "Each table has a file `tables/NAME.trace.json` that names its run folders, seeds, settings and revision.",
        "",
    ]
    lines += [plain.markdown() for plain in paired_differences(material)]
    lines += [f"## {READING}", "", *(f"{wrapped(note)}\n" for note in reading_notes(material.tables))]
    for table in material.tables:
        lines += [as_markdown(table, alone=False), f"[trace]({TABLES}/{table.experiment.name}.trace.json)", ""]
    lines += [plain.markdown() for plain in (*best_orders(material), *cost_tables(material))]
    for figure in figures:
        lines += [f"## {figure.title}", ""]
        if not isinstance(figure, Missing):
            lines += [f"![{figure.title}]({FIGURES}/{figure.name}.png)", "", wrapped(figure.caption), ""]
        else:
            lines += [f"Left out: {figure.why}.", ""]
    told = paper_only(material)
    lines += [f"## {PAPER_ONLY}", "", wrapped(told.about), "", *(plain.markdown(level=3) for plain in told.tables)]
    return "\n".join(lines).rstrip() + "\n"
