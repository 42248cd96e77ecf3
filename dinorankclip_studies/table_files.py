"""Lays tables out as grids of short texts, and writes Markdown, LaTeX (booktabs), CSV and a trace of rows to runs.

A table becomes several grids, since means with intervals, differences and the paper's values side by side fit no page.
Notes explain each table. A page of many tables prints the rules that tables share once (`reading_notes`).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dinorankclip.formatting import MISSING, Form, form_of
from dinorankclip.io import write_text
from dinorankclip.methods import LABEL
from dinorankclip.report.html import Grid, Words, wrapped
from dinorankclip_studies.papers.paper_data import about_paper, digits_for, paper_words
from dinorankclip_studies.study_tables import Measured, Table, TableRow, teachers
from dinorankclip_studies.verdicts import FEWEST_SEEDS

READING = "Reading the tables"
SHOWN_EFFECT, UNMATCHED = "*", "†"
CHANCE, AT_CHANCE = "chance", "[near chance]"
BESIDE = 4  # most columns of the paper that stand beside ours; more become a grid of their own below
ENDINGS = ("md", "tex", "csv", "trace.json")
_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "–": "--", "“": "``", "”": "''", "…": r"\ldots{}",
    **{letter: rf"\{letter}" for letter in "&%$#_{}"},
    **{letter: f"${command}$" for letter, command in {
        "±": r"\pm", "→": r"\to", "↔": r"\leftrightarrow", "≥": r"\geq", "≤": r"\leq", "†": r"\dagger",
        "‡": r"\ddagger", "−": "-", "°": r"^\circ", "×": r"\times", "Δ": r"\Delta", "λ": r"\lambda", "β": r"\beta",
        "γ": r"\gamma", "τ": r"\tau", "μ": r"\mu", "α": r"\alpha", "θ": r"\theta",
    }.items()},
}  # fmt: skip
_CSV_HEAD = (
    "experiment", "row", "cell", "score", "heading", "unit", "mean", "low", "high", "sd", "n",
    "reference", "difference", "difference_low", "difference_high", "difference_n", "detectable", "chance",
    "paper_projected", "paper_colour", "lacks", "seeds", "keys",
)  # fmt: skip


def grids(table: Table) -> list[Grid]:
    """Return means, the paper's values if they are too many to stand beside the means, and differences."""
    layouts = [value_grid(table), _paper_grid(table), difference_grid(table)]
    return [grid for grid in layouts if grid is not None]


def value_grid(table: Table) -> Grid:
    """Lay out label, n, means with intervals, and few values of the paper; the last row is chance."""
    forms, paper = _forms(table), _paper_columns(table)
    paper = paper if len(paper) <= BESIDE else []
    headings = ["", "n", *_headings(table), *(table.columns[at].heading for at in paper)]
    groups = [""] * (2 + len(table.columns)) + [LABEL] * len(paper)
    rows = [
        (
            Words(label_of(row)),
            Words(str(row.n) if row.n else MISSING),
            *(_value(measured, form) for measured, form in zip(row.measured, forms)),
            *_paper_texts(table, row, paper),
        )
        for row in table.rows
    ]
    if any(chance is not None for chance in table.chances):
        chances = [MISSING if chance is None else form.plain(chance) for chance, form in zip(table.chances, forms)]
        rows.append(tuple(Words(text) for text in (CHANCE, MISSING, *chances, *(MISSING for _ in paper))))
    return Grid(tuple(headings), tuple(groups), tuple(rows))


def _paper_grid(table: Table) -> Grid | None:
    """Lay out the paper's values alone."""
    paper = _paper_columns(table)
    if len(paper) <= BESIDE:
        return None
    rows = [
        (Words(row.label), *_paper_texts(table, row, paper))
        for row in table.rows
        if any(value is not None for value in row.paper)
    ]
    headings = ("", *(table.columns[at].heading for at in paper))
    return Grid(headings, ("", *(LABEL for _ in paper)), tuple(rows))


def _paper_columns(table: Table) -> list[int]:
    return [at for at in range(len(table.columns)) if any(row.paper[at] is not None for row in table.rows)]


def _paper_texts(table: Table, row: TableRow, columns: Sequence[int]) -> list[Words]:
    digits = [digits_for(other.paper[at] for other in table.rows) for at in columns]
    return [Words(paper_words(row.paper[at], count)) for at, count in zip(columns, digits)]


def difference_grid(table: Table) -> Grid | None:
    """Lay out each row minus the reference, paired by seed; None if there is nothing to pair."""
    forms = _forms(table)
    rows = []
    for row in table.rows:
        pairs = [measured.effect.n for measured in row.measured if measured.effect is not None]
        if pairs:
            cells = [_difference(measured, form) for measured, form in zip(row.measured, forms)]
            rows.append((Words(label_of(row)), Words(str(max(pairs))), *cells))
    if not rows:
        return None
    headings = (f"minus {table.reference}", "n", *_headings(table))
    return Grid(headings, ("",) * len(headings), tuple(rows))


def _headings(table: Table) -> list[str]:
    marked = zip(table.columns, table.at_chance)
    return [f"{column.heading} {AT_CHANCE}" if near_chance else column.heading for column, near_chance in marked]


def label_of(row: TableRow) -> str:
    label = f"{row.label} {UNMATCHED}" if row.unmatched else row.label
    return f"{label} [{', '.join(row.marks)}]" if row.marks else label


def _forms(table: Table) -> list[Form]:
    forms = []
    for at, column in enumerate(table.columns):
        summaries = [row.measured[at].summary for row in table.rows]
        forms.append(form_of([each.mean for each in summaries if each is not None], column.percent))
    return forms


def _value(measured: Measured, form: Form) -> Words:
    mean = measured.summary
    if mean is None:
        return Words(MISSING)
    return Words(form.with_half(mean.mean, mean.low, mean.high), measured.best)


def _difference(measured: Measured, form: Form) -> Words:
    effect = measured.effect
    if effect is None:
        return Words(MISSING)
    text = form.with_half(effect.mean, effect.low, effect.high, sign=True)
    return Words(text + (f" {SHOWN_EFFECT}" if effect.shown else ""))


def notes(table: Table, alone: bool = True) -> list[str]:
    """Return a table's comparison, missing runs, teachers and, if the table stands `alone`, the shared rules."""
    lines = [table.experiment.note] if table.experiment.note else []
    if alone:
        lines += reading_notes([table])
    missing = sorted({measured.why_missing for row in table.rows for measured in row.measured if measured.why_missing})
    if missing:
        lines.append(f"{MISSING}: {' or '.join(missing)}.")
    return lines + [f"Teacher of {', '.join(labels)}: {teacher}." for teacher, labels in teachers([table]).items()]


def reading_notes(tables: Sequence[Table]) -> list[str]:
    """Return the rules that at least one of the tables needs."""
    rules = []
    rows = [row for table in tables for row in table.rows]
    if max((row.n for row in rows), default=0) >= FEWEST_SEEDS:
        rules.append(
            "Means over n seeds ± half of the 95 % t-interval; differences are paired by seed, and those whose "
            f"interval leaves zero out are marked {SHOWN_EFFECT} (by chance alone about one of twenty would be)."
        )
        rules.append(
            "Bold: the best of its column, if n ≥ 3 and its paired interval to every other row leaves zero out; "
            "nothing is bold otherwise. A difference that is the same for every seed has no interval: six seeds "
            "are needed for a mark."
        )
    if any(len({row.n for row in table.rows if row.n}) > 1 for table in tables):
        rules.append("Means of rows with different n are of different seeds: compare rows by their paired differences.")
    if any(0 < row.n < FEWEST_SEEDS for row in rows):
        rules.append("n < 3: so few seeds have no interval, and nothing of them is bold.")
    if any(any(table.at_chance) for table in tables):
        rules.append(
            f"{AT_CHANCE}: no row is shown to be a point above chance, by the lower end of its interval or, where n < "
            f"{FEWEST_SEEDS}, by its mean. Differences there are of models that can hardly do what is asked, and "
            "nothing is bold."
        )
    printed = [value for row in rows for value in row.paper if value is not None]
    if printed:
        rules.append(about_paper(printed))
    if any(row.unmatched for row in rows):
        rules.append(
            f"{UNMATCHED} differs knowingly in budget or parameters and does not compete for bold; where its mean is "
            "the better one, nothing is bold."
        )
    return rules


def write_table(table: Table, folder: Path, endings: Sequence[str] = ENDINGS) -> list[Path]:
    """Write NAME.md, NAME.tex, NAME.csv and NAME.trace.json, or only some of them."""
    writers = {"md": as_markdown, "tex": as_latex, "csv": as_csv, "trace.json": _as_trace}
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for ending in endings:
        path = folder / f"{table.experiment.name}.{ending}"
        write_text(path, writers[ending](table))
        written.append(path)
    return written


def as_markdown(table: Table, level: int = 2, alone: bool = True) -> str:
    """Write title, means, differences and notes; `alone`: with the rules that a page of tables prints once."""
    lines = [f"{'#' * level} {table.experiment.title}", ""]
    for grid in grids(table):
        lines += [*_markdown_grid(grid), ""]
    for note in notes(table, alone):
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
    """Write a `table` environment; it needs booktabs, and graphicx to shrink grids wider than the page."""
    lines = [r"\begin{table}[t]", r"\centering", rf"\caption{{{latex(table.experiment.title)}}}"]
    lines += [rf"\label{{tab:{table.experiment.name}}}", r"\small"]
    for number, grid in enumerate(grids(table)):
        lines += [*([r"\par\medskip"] if number else []), *_latex_grid(grid)]
    text = r"\\ ".join(latex(note) for note in notes(table))
    lines += [r"\par\smallskip", rf"\begin{{minipage}}{{\linewidth}}\footnotesize {text}\end{{minipage}}"]
    return "\n".join([*lines, r"\end{table}", ""])


def _latex_grid(grid: Grid) -> list[str]:
    fitted = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
    lines = [fitted, rf"\begin{{tabular}}{{l{'r' * (len(grid.headings) - 1)}}}", r"\toprule"]
    theirs = grid.groups.count(LABEL)
    if theirs:
        ours = len(grid.groups) - theirs
        lines.append(rf"\multicolumn{{{ours}}}{{l}}{{}} & \multicolumn{{{theirs}}}{{c}}{{{latex(LABEL)}}} \\")
        lines.append(rf"\cmidrule(lr){{{ours + 1}-{ours + theirs}}}")
    lines += [" & ".join(latex(heading) for heading in grid.headings) + r" \\", r"\midrule"]
    lines += [" & ".join(_latex_words(words) for words in row) + r" \\" for row in grid.rows]
    return [*lines, r"\bottomrule", r"\end{tabular}}"]


def _latex_words(words: Words) -> str:
    return rf"\textbf{{{latex(words.text)}}}" if words.bold else latex(words.text)


def latex(text: str) -> str:
    """Escape a text so that LaTeX prints it letter for letter."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


def as_csv(table: Table) -> str:
    """Write one line for each row and score, in the unit of the score (shares stay shares).

    The paper's value has its own column and unit (percent): red for projections, black for printed results.
    """
    data = io.StringIO()
    writer = csv.writer(data, lineterminator="\n")
    writer.writerow(_CSV_HEAD)
    for row in table.rows:
        for column, chance, measured, paper in zip(table.columns, table.chances, row.measured, row.paper):
            mean, effect = measured.summary, measured.effect
            ours = (mean.mean, mean.low, mean.high, mean.sd, mean.n) if mean else (None,) * 4 + (0,)
            pair = (effect.mean, effect.low, effect.high, effect.n, effect.detectable) if effect else (None,) * 5
            runs = " ".join(str(run.seed) for run in row.runs), " ".join(run.key for run in row.runs)
            unit = "share" if column.percent else "number"
            about = (table.experiment.name, label_of(row), row.cell, column.score, column.heading, unit)
            printed = (paper.value, "black" if paper.black else "red") if paper else (None, None)
            line = (*about, *ours, table.experiment.reference, *pair, chance, *printed, measured.why_missing, *runs)
            writer.writerow([*map(_csv_number, line)])
    return data.getvalue()


def _csv_number(value: Any) -> Any:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value


def _as_trace(table: Table) -> str:
    return json.dumps(trace(table), indent=1, ensure_ascii=False) + "\n"


def trace(table: Table) -> dict[str, Any]:
    """Return every row's cell, settings (of the first seed) and runs with seed, key, folder and revision."""
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
