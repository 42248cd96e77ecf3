"""Shows several runs beside each other: a table of costs and held-out scores, and curves over core-seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dinorankclip.evaluate.scores_file import ComparedScore, compare_scores, read_scores
from dinorankclip.formatting import MISSING, bare
from dinorankclip.report.figures import COLOURS, GREY, MARKERS, Drawn, Unavailable, new_figure
from dinorankclip.run_files import CORE_SECONDS, is_run, read_metrics, read_settings
from dinorankclip.stored_settings import flatten, meaning_of_absent
from dinorankclip.train.cost import spending
from dinorankclip.train.loop import CHOOSES_BEST, ITS_CHANCE

SHOWN = {"i2t R@1": "image → text", "t2i R@1": "text → image"}
PARTS = ("test", "val")  # the first that all models were scored on is shown


def several_lines(folders: Sequence[Path], level: float, draws: int) -> Iterator[str]:
    """Yield a table: name, optimiser, pairs seen and core-seconds of each model, its R@1 in both directions, and the
    differences to the first model with intervals over items."""
    scored = [read_scores(folder) for folder in folders]
    compared = [compare_scores(scored[0], other, level, draws)[0] for other in scored[1:]]
    part = next((part for part in PARTS if all(_rows(rows, part) for rows in compared)), None)
    width = max(len(folder.name) for folder in folders) + 2
    yield f"{'':<{width}}{'method':<44}{'optimiser':<11}{'pairs seen':>12}{'core-seconds':>14}"
    for folder in folders:
        about, optimiser, pairs, cores = _spent(folder)
        yield f"{folder.name:<{width}}{about:<44}{optimiser:<11}{pairs:>12}{cores:>14}"
    if part is None:
        yield f"\nno score in common: dinorankclip score MODEL --sets PATH, for each of {', '.join(map(str, folders))}"
        return
    heading = f"{part} R@1, %"
    yield f"\n{heading:<{width}}" + "".join(f"{words:>14}{'less ' + folders[0].name:>30}" for words in SHOWN.values())
    first = _rows(compared[0], part)
    yield f"{folders[0].name:<{width}}" + "".join(f"{bare(first[name].a, 'share'):>14}{'':>30}" for name in SHOWN)
    for folder, rows in zip(folders[1:], compared):
        cells = (f"{bare(row.b, 'share'):>14}{_difference(row):>30}" for row in _rows(rows, part).values())
        yield f"{folder.name:<{width}}" + "".join(cells)
    chance = first["i2t R@1"].chance
    if chance is not None:
        yield f"{'chance':<{width}}{bare(chance, 'share'):>14}"
    yield f"\nIntervals of {100 * level:g} % are over items of these runs: another seed may differ by more."


def _rows(rows: Sequence[ComparedScore], part: str) -> dict[str, ComparedScore]:
    """Return the shown scores of a part, in order; nothing if one of them is missing."""
    found = {row.metric: row for row in rows if row.set == part and row.metric in SHOWN}
    return {name: found[name] for name in SHOWN} if len(found) == len(SHOWN) else {}


def _difference(row: ComparedScore) -> str:
    if row.difference is None:
        return f"{bare(row.b - row.a, 'share', '+')}"
    low, high = (bare(value, "share", "+") for value in (row.difference.low, row.difference.high))
    return f"{bare(row.difference.mean, 'share', '+')} [{low}, {high}]"


def _spent(folder: Path) -> tuple[str, str, str, str]:
    """Return method, optimiser, pairs seen and core-seconds of a run, as words."""
    if not is_run(folder):
        return "no run folder", MISSING, MISSING, MISSING
    spent = spending(folder)
    pairs = MISSING if spent.pairs_seen is None else f"{spent.pairs_seen:,}"
    cores = next((line[CORE_SECONDS] for line in reversed(read_metrics(folder)) if CORE_SECONDS in line), None)
    method = spent.method if len(spent.method) < 43 else spent.method[:40] + "…"
    return method, _setting(folder, "optim.name"), pairs, MISSING if cores is None else f"{cores:,.0f}"


def _setting(folder: Path, name: str) -> Any:
    return (meaning_of_absent() | flatten(read_settings(folder)))[name]


def curves_over_time(runs: Sequence[Path]) -> Drawn:
    """Draw the validation score of runs over the core-seconds of their steps."""
    figure = new_figure(3.2)
    axes = figure.subplots()
    chance = None
    for number, run in enumerate(runs):
        scored = [line for line in read_metrics(run) if CHOOSES_BEST in line and CORE_SECONDS in line]
        if scored:
            points = [(line[CORE_SECONDS], 100 * line[CHOOSES_BEST]) for line in scored]
            colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
            axes.plot(*zip(*points), color=colour, marker=marker, label=run.name)
            chance = 100 * scored[-1][ITS_CHANCE]
    if chance is None:
        raise Unavailable("no run has a validation score with its core-seconds")
    axes.axhline(chance, color=GREY, linestyle=":", label="chance")
    axes.set(xlabel="core-seconds of training", ylabel="R@1, percent", title="held-out retrieval over time")
    axes.set_xlim(left=0)
    axes.grid(axis="y")
    axes.legend()
    caption = "Mean R@1 of both directions on the validation part, over the core-seconds that the steps took."
    return Drawn("several-runs", "Runs over time", caption, figure)
