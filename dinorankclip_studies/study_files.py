"""What `report` writes for a study: the page, and tables, figures and claims as files of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dinorankclip.report.figures import Drawn
from dinorankclip.report.html import wrapped
from dinorankclip.types import UserError
from dinorankclip_studies.claims_page import JUDGING, all_claims, machine_of, own_claims
from dinorankclip_studies.material import StudyMaterial, open_material
from dinorankclip_studies.papers.dinorankclip.extra_tables import TITLE as PAPER_ONLY
from dinorankclip_studies.papers.dinorankclip.extra_tables import (
    best_orders,
    cost_tables,
    paired_differences,
    paper_only,
)
from dinorankclip_studies.papers.dinorankclip.plans import STUDIES
from dinorankclip_studies.results import RESULTS
from dinorankclip_studies.study_figures import KeptPicture, Missing, study_figures, unless_kept
from dinorankclip_studies.study_page import study_page, write_page
from dinorankclip_studies.table_files import READING, as_markdown, reading_notes, write_table

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


def report_study(where: str, folder: Path, out: Path, docs: Path | None, bench: Path) -> None:
    """Write up the study in `folder`. `where` is what the user typed: a folder, or the name of a study."""
    if (folder / RESULTS).is_file():
        material = open_material(folder, bench)
        if not material.results.runs:
            raise UserError(_no_results(material.study.name))
        _report(material, out, docs)
    elif where in STUDIES and not Path(where).exists():
        raise UserError(_no_results(where))
    else:
        raise UserError(
            f"{where} is neither a run (no config.json of training) nor a study (no {RESULTS}); a run is made by "
            "dinorankclip train, a study by dinorankclip study run NAME"
        )


def _no_results(study: str) -> str:
    return f"study {study} has no results yet: dinorankclip study run {study}"


def _report(material: StudyMaterial, out: Path, docs: Path | None) -> None:
    figures = write_study(material, out, own_claims(material))
    for figure in figures:
        if isinstance(figure, Missing):
            print(f"left out: {figure.title}: {figure.why}")
    lacking = sum(map(len, material.lacking.values()))
    if lacking:
        print(f"{lacking} of {sum(material.study.seeds.values())} runs are not finished; the report says which")
    drawn = sum(not isinstance(figure, Missing) for figure in figures)
    print(f"report: {out / 'report.html'} ({len(material.tables)} tables, {drawn} of {len(figures)} figures)")
    if docs is not None:
        print(f"to commit: {write_docs(material, figures, docs)}")
