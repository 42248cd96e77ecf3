"""`dinorankclip report RUN|STUDY`: write one HTML file to read, and a study's tables and figures as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from dinorankclip.commands.shared import import_studies
from dinorankclip.run_files import REPORT, is_run
from dinorankclip.types import UserError


def report(
    where: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|STUDY")],
    out: Path | None = None,
    docs: Path | None = None,
    bench: Path = Path("docs/bench"),
) -> None:
    """Write up a run or a study: one self-contained HTML file; of a study also its tables (Markdown, LaTeX, CSV),
    figures (PNG, SVG) and the verdicts on the paper's claims.

    Examples:
      dinorankclip report runs/first
      dinorankclip report runs/study-small
      dinorankclip report full --docs docs

    A study may be named or given by its folder, and need not be finished: the report says what is missing.

    Args:
        where: A run folder, a study folder, or a study's name (its folder is runs/study-NAME).
        out: The folder for the files; by default the run's or the study's own.
        docs: Studies: also put small copies to commit under DOCS/study/NAME, and the claims into DOCS/claims.md.
        bench: Studies: the folder with the dated records of what a step costs.
    """
    folder = folder_of(where)
    if is_run(folder):
        if docs is not None:
            raise UserError("--docs is for studies; of a run there is report.html alone")
        write_run(folder, out or folder)
    else:
        import_studies("study_report").report_study(where, folder, out or folder, docs, bench)


def folder_of(where: str) -> Path:
    """Return an existing folder as it is; the name of a study means runs/study-NAME."""
    named = Path(f"runs/study-{where}")
    return named if not Path(where).exists() and named.is_dir() else Path(where)


def write_run(run: Path, out: Path) -> None:
    """Write the report of a run. `train` calls this at its end, `score` when the run has a report already."""
    from dinorankclip.report.run_report import run_page

    run_page(run).write(out / REPORT)
    print(f"report: {out / REPORT}")
