"""Tables as files: Markdown, LaTeX (booktabs), CSV with a line a number, and a trace of every row to its runs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dinorankclip.writeup.table_grids import Grid, Words, grids, label_of, wrapped
from dinorankclip.writeup.table_notes import notes, own_notes
from dinorankclip.writeup.tables import PAPER, Table

ENDINGS = ("md", "tex", "csv", "trace.json")
_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "→": r"$\to$",
    "↔": r"$\leftrightarrow$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "−": r"$-$",
    "°": r"$^\circ$",
    "×": r"$\times$",
    "Δ": r"$\Delta$",
    "λ": r"$\lambda$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "τ": r"$\tau$",
    "μ": r"$\mu$",
    "α": r"$\alpha$",
    "θ": r"$\theta$",
    "–": "--",
    "“": "``",
    "”": "''",
    "…": r"\ldots{}",
}


def write_table(table: Table, folder: Path, endings: Sequence[str] = ENDINGS) -> list[Path]:
    """NAME.md, NAME.tex, NAME.csv and NAME.trace.json, or those that are asked for."""
    writers = {"md": as_markdown, "tex": as_latex, "csv": as_csv, "trace.json": _trace_text}
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for ending in endings:
        path = folder / f"{table.experiment.name}.{ending}"
        path.write_text(writers[ending](table), encoding="utf-8")
        written.append(path)
    return written


def as_markdown(table: Table, level: int = 2, alone: bool = True) -> str:
    """Title, means, differences, notes; unless it stands alone, without the rules that its page tells once."""
    lines = [f"{'#' * level} {table.experiment.title}", ""]
    for grid in grids(table):
        lines += [*_markdown_grid(grid), ""]
    for note in notes(table) if alone else own_notes(table):
        lines += [wrapped(note), ""]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_grid(grid: Grid) -> list[str]:
    headings = [f"{heading}, {group}" if group else heading for heading, group in zip(grid.headings, grid.groups)]
    rows = [[_markdown(Words(text)) for text in headings], ["---"] + ["--:"] * (len(headings) - 1)]
    rows += [[_markdown(words) for words in row] for row in grid.rows]
    return [f"| {' | '.join(row)} |" for row in rows]


def _markdown(words: Words) -> str:
    text = words.text.replace("\\", "\\\\").replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")
    return f"**{text}**" if words.bold else text


def as_latex(table: Table) -> str:
    """A `table` environment; needs booktabs and graphicx, which shrinks grids wider than the page."""
    lines = [r"\begin{table}[t]", r"\centering", rf"\caption{{{latex(table.experiment.title)}}}"]
    lines += [rf"\label{{tab:{table.experiment.name}}}", r"\small"]
    for number, grid in enumerate(grids(table)):
        lines += [*([r"\par\medskip"] if number else []), *_latex_grid(grid)]
    told = r"\\ ".join(latex(note) for note in notes(table))
    lines += [r"\par\smallskip", rf"\begin{{minipage}}{{\linewidth}}\footnotesize {told}\end{{minipage}}"]
    return "\n".join([*lines, r"\end{table}", ""])


def _latex_grid(grid: Grid) -> list[str]:
    fitted = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
    lines = [fitted, rf"\begin{{tabular}}{{l{'r' * (len(grid.headings) - 1)}}}", r"\toprule"]
    theirs = grid.groups.count(PAPER)
    if theirs:
        ours = len(grid.groups) - theirs
        lines.append(rf"\multicolumn{{{ours}}}{{l}}{{}} & \multicolumn{{{theirs}}}{{c}}{{{latex(PAPER)}}} \\")
        lines.append(rf"\cmidrule(lr){{{ours + 1}-{ours + theirs}}}")
    lines += [" & ".join(latex(heading) for heading in grid.headings) + r" \\", r"\midrule"]
    lines += [" & ".join(_latex_words(words) for words in row) + r" \\" for row in grid.rows]
    return [*lines, r"\bottomrule", r"\end{tabular}}"]


def _latex_words(words: Words) -> str:
    return rf"\textbf{{{latex(words.text)}}}" if words.bold else latex(words.text)


def latex(text: str) -> str:
    """Text as LaTeX prints it, letter for letter."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


_CSV_HEAD = (
    "experiment", "row", "cell", "score", "heading", "unit", "mean", "low", "high", "sd", "n",
    "reference", "difference", "difference_low", "difference_high", "difference_n", "detectable", "chance",
    "paper_projected", "paper_colour", "lacks", "seeds", "keys",
)  # fmt: skip


def as_csv(table: Table) -> str:
    """One line for each row and score, as they were scored (shares stay shares); the paper's value in its own column
    and unit (percent), red for projections and black for what it prints as a result."""
    data = io.StringIO()
    writer = csv.writer(data, lineterminator="\n")
    writer.writerow(_CSV_HEAD)
    for row in table.rows:
        for column, chance, measured, paper in zip(table.columns, table.chances, row.measured, row.paper):
            found, effect = measured.summary, measured.effect
            ours = (found.mean, found.low, found.high, found.sd, found.n) if found else (None,) * 4 + (0,)
            pair = (effect.mean, effect.low, effect.high, effect.n, effect.detectable) if effect else (None,) * 5
            runs = " ".join(str(run.seed) for run in row.runs), " ".join(run.key for run in row.runs)
            unit = "share" if column.percent else "number"
            about = (table.experiment.name, label_of(row), row.cell, column.score, column.heading, unit)
            told = (paper.value, "black" if paper.black else "red") if paper else (None, None)
            line = (*about, *ours, table.experiment.reference, *pair, chance, *told, measured.lacks, *runs)
            writer.writerow([*map(_csv_number, line)])
    return data.getvalue()


def _csv_number(value: Any) -> Any:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value


def _trace_text(table: Table) -> str:
    return json.dumps(trace(table), indent=1, ensure_ascii=False) + "\n"


def trace(table: Table) -> dict[str, Any]:
    """Every row's cell, and of each of its runs seed, key, folder (in the study's), revision and settings.

    Settings are those of the first seed; the others differ in the seed alone.
    """
    rows = []
    for row in table.rows:
        runs = [
            {"seed": run.seed, "key": run.key, "folder": run.folder, "revision": run.revision, "steps": run.steps,
             "pairs_seen": run.pairs_seen, "seconds": run.seconds}
            for run in row.runs
        ]  # fmt: skip
        settings = row.runs[0].settings if row.runs else None
        rows.append({"row": row.label, "cell": row.cell, "runs": runs, "settings": settings})
    scores = {column.heading: column.score for column in table.columns}
    return {"table": table.experiment.name, "title": table.experiment.title, "scores": scores, "rows": rows}
