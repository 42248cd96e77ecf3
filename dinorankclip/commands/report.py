"""`dinorankclip report RUN|STUDY`: one HTML file to read, and a study's tables and figures as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from dinorankclip.run_files import REPORT, is_run
from dinorankclip.types import UserError

if TYPE_CHECKING:
    from dinorankclip.writeup.study_material import StudyMaterial

HELP = """\
Write up a run or a study: one self-contained HTML file; of a study also its tables (Markdown, LaTeX, CSV), figures
(PNG, SVG) and the verdicts on the paper's claims.

Examples:
  dinorankclip report runs/first
  dinorankclip report runs/study-small
  dinorankclip report full --docs docs

A study may be named or given by its folder, and need not be finished: the report says what is missing.
"""


def report(
    where: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|STUDY")],
    out: Path | None = None,
    docs: Path | None = None,
    bench: Path = Path("docs/bench"),
) -> None:
    """Write up a run or a study.

    Args:
        where: A run folder, a study folder, or a study's name (its folder is runs/study-NAME).
        out: Where the files go; by default into the folder itself.
        docs: Studies: also put small copies to commit under DOCS/study/NAME, and the claims into DOCS/claims.md.
        bench: Studies: the folder with the dated records of what a step costs.
    """
    from dinorankclip.study.definition import STUDIES
    from dinorankclip.study.results import RESULTS

    folder = folder_of(where)
    if is_run(folder):
        if docs is not None:
            raise UserError("--docs is for studies; of a run there is report.html alone")
        write_run(folder, out or folder)
    elif (folder / RESULTS).is_file():
        from dinorankclip.writeup.study_material import open_material

        material = open_material(folder, bench)
        if not material.results.runs:
            raise UserError(_no_results(material.study.name))
        _write_study(material, out or folder, docs)
    elif where in STUDIES and not Path(where).exists():
        raise UserError(_no_results(where))
    else:
        raise UserError(
            f"{where} is neither a run (no config.json of training) nor a study (no {RESULTS}); a run is made by "
            "dinorankclip train, a study by dinorankclip study run NAME"
        )


def folder_of(where: str) -> Path:
    """A folder as it is; the name of a study means runs/study-NAME."""
    named = Path(f"runs/study-{where}")
    return named if not Path(where).exists() and named.is_dir() else Path(where)


def _no_results(study: str) -> str:
    return f"study {study} has no results yet: dinorankclip study run {study}"


def write_run(run: Path, out: Path) -> None:
    from dinorankclip.writeup.run_report import run_page

    run_page(run).write(out / REPORT)
    print(f"report: {out / REPORT}")


def _write_study(material: StudyMaterial, out: Path, docs: Path | None) -> None:
    from dinorankclip.writeup.study_claims import own_claims
    from dinorankclip.writeup.study_figures import Missing
    from dinorankclip.writeup.study_files import write_docs, write_study

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


def main(argv: list[str]) -> None:
    tyro.cli(report, args=argv, prog="dinorankclip report", description=HELP)
