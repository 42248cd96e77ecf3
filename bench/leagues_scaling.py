"""Writes the page of leagues over amounts of data: CLIP and taught at the same core-seconds, and a forecast.

The forecast of the largest amount uses smaller amounts alone: straight lines over log₂ N, fitted by least squares, of
the lead of taught and of CLIP's logit. It was committed before the runs of the largest amount began.

    data multiplier s(N) = N' / N, where CLIP on N' pairs scores what taught scores on N (linear in log₂ N)
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.aligned_page import effect_words, read_runs
from bench.leagues_cells import Cell, read_leagues
from bench.leagues_page import INCLUDED, SCORE, runs_of, scores
from dinorankclip.types import UserError
from dinorankclip_studies.verdicts import Effect, p_value, paired, summary, t_quantile

PAGE, FIGURE = "scaling.md", "scaling.svg"
BUDGET = 180.0
LARGEST = 16_000  # what the forecast is about
HEAD = f"""\
# Amounts of data at equal core-seconds
CLIP and `taught` on 1,000 to 16,000 scenes, {BUDGET:g} core-seconds each, the teacher's cache included (its cost grows
with the scenes), 5,000 sealed test scenes. A budget of time is not a budget of data: fewer pairs are seen more often.
Scores are mean test R@1 in per cent, differences are paired by seed, with 95 % t-intervals. The data multiplier says
how many times as many scenes CLIP needs for the score of `taught`. Written by `python -m bench.leagues page`.
"""


@dataclass(frozen=True)
class Amount:
    """Holds the scores of an amount of data: seed → mean test R@1 of both cells."""

    pairs: int
    clip: Mapping[int, float]
    taught: Mapping[int, float]

    @property
    def lead(self) -> Effect:
        return paired(self.clip, self.taught)


@dataclass(frozen=True)
class Forecast:
    value: float
    low: float
    high: float


def amounts_of(runs: Sequence[Mapping[str, Any]], clip: Cell, taught: Cell) -> list[Amount]:
    """Return the amounts of scenes that both cells were trained on, smallest first."""
    found = []
    data = {run["data"] for run in runs if run["data"].startswith("scenes-") and run["budget"] == BUDGET}
    for name in sorted(data, key=pairs_of):
        some = [dict(run) for run in runs if run["data"] == name and run["budget"] == BUDGET]
        if len(worlds := {run["world"] for run in some}) > 1:
            raise UserError(f"runs of {name} were tested on different pairs ({', '.join(sorted(worlds))})")
        of = [scores(runs_of(some, cell, INCLUDED), SCORE) for cell in (clip, taught)]
        if all(of):
            found.append(Amount(pairs_of(name), *of))
    return found


def pairs_of(name: str) -> int:
    return int(name.rpartition("-")[2])


def line_forecast(x: Sequence[float], y: Sequence[float], at: float, level: float = 0.95) -> Forecast:
    """Return what a straight line through (x, y) says of `at`, with the interval of a new observation."""
    xs, ys = np.asarray(x, float), np.asarray(y, float)
    slope, start = np.polyfit(xs, ys, 1)
    freedom = len(xs) - 2
    spread = np.sqrt(((ys - slope * xs - start) ** 2).sum() / freedom)
    leverage = 1 + 1 / len(xs) + (at - xs.mean()) ** 2 / ((xs - xs.mean()) ** 2).sum()
    reach = t_quantile(0.5 + level / 2, freedom) * spread * np.sqrt(leverage)
    value = slope * at + start
    return Forecast(float(value), float(value - reach), float(value + reach))


def forecasts(amounts: Sequence[Amount]) -> tuple[Forecast, Forecast] | None:
    """Return what amounts below the largest say of it: CLIP's score and the lead of taught."""
    known = [amount for amount in amounts if amount.pairs < LARGEST]
    if len(known) < 3:
        return None
    x, at = [np.log2(amount.pairs) for amount in known], float(np.log2(LARGEST))
    clip = np.array([summary(amount.clip).mean for amount in known])
    logit = line_forecast(x, np.log(clip / (1 - clip)), at)
    share = [1 / (1 + np.exp(-value)) for value in (logit.value, logit.low, logit.high)]
    return Forecast(*map(float, share)), line_forecast(x, [amount.lead.mean for amount in known], at)


def multiplier(amounts: Sequence[Amount], amount: Amount) -> float:
    """Return s(N): infinite if no amount that was run brings CLIP to the score of taught, 0 if the least does."""
    x = np.log2([each.pairs for each in amounts])
    clip = np.array([summary(each.clip).mean for each in amounts])
    target = summary(amount.taught).mean
    above = np.flatnonzero(clip >= target)
    if not len(above):
        return float("inf")
    if above[0] == 0:
        return 0.0
    last = above[0]
    share = (target - clip[last - 1]) / (clip[last] - clip[last - 1])
    return float(2 ** (x[last - 1] + share * (x[last] - x[last - 1])) / amount.pairs)


def write_scaling(folder: Path) -> None:
    """Write page and figure, if both cells were run on two amounts of data or more."""
    cells = read_leagues().group("decisive").cells
    amounts = amounts_of(read_runs(folder), cells["clip"], cells["taught"])
    if len(amounts) < 2:
        return
    found = forecasts(amounts)
    lines = [HEAD, "| scenes | seeds | CLIP | taught | lead | detectable | verdict | data multiplier |"]
    lines.append("| --: | --: | --: | --: | --- | --: | --- | --: |")
    for amount in amounts:
        lead, times = amount.lead, multiplier(amounts, amount)
        shown = f"{times:.1f}"
        if times in (0.0, float("inf")):
            end = amounts[-1 if times else 0].pairs / amount.pairs
            shown = f"{'above' if times else 'below'} {end:g}"
        means = (f"{100 * summary(of).mean:.2f}" for of in (amount.clip, amount.taught))
        words = effect_words(lead, p_value(lead))
        lines.append(f"| {amount.pairs:,} | {lead.n} | {' | '.join(means)} | {' | '.join(words)} | {shown} |")
    if found is not None:
        lines += ["", f"**Forecast for {LARGEST:,} scenes from the smaller amounts** (95 % interval of a new point): "]
        lines[-1] += f"CLIP {percent(found[0])} %, lead of taught {percent(found[1])} points."
        if amounts[-1].pairs == LARGEST:
            lines[-1] += f" Measured: {outcome(found, amounts[-1])}."
    lines += ["", f"![Scores and lead by the number of scenes]({FIGURE})", ""]
    (folder / PAGE).write_text("\n".join(lines), encoding="utf-8")
    (folder / FIGURE).write_text(drawn(amounts, found), encoding="utf-8")
    print(f"{len(amounts)} amounts of data: {folder / PAGE}")


def percent(forecast: Forecast) -> str:
    return f"{100 * forecast.value:.1f} [{100 * forecast.low:.1f}, {100 * forecast.high:.1f}]"


def outcome(found: tuple[Forecast, Forecast], amount: Amount) -> str:
    """Say what was measured, and whether each forecast holds it."""
    measured = (summary(amount.clip).mean, amount.lead.mean)
    words = [f"{100 * value:.1f} ({'inside' if of.low <= value <= of.high else '**outside**'})"
             for value, of in zip(measured, found)]  # fmt: skip
    return f"CLIP {words[0]}, lead {words[1]}"


def drawn(amounts: Sequence[Amount], found: tuple[Forecast, Forecast] | None) -> str:
    """Draw scores at the left and the lead at the right, over the number of scenes, as SVG."""
    from dinorankclip.report.figures import BLACK, FAINT, METHOD_COLOURS, RED, new_figure

    figure = new_figure(3.0)
    left, right = figure.subplots(1, 2)
    x = [amount.pairs for amount in amounts]
    for name, values, colour, marker in (
        ("CLIP", [amount.clip for amount in amounts], METHOD_COLOURS["clip"], "o"),
        ("taught", [amount.taught for amount in amounts], RED, "s"),
    ):
        left.plot(x, [100 * summary(of).mean for of in values], marker=marker, color=colour, label=name)
        for pairs, of in zip(x, values):
            left.plot([pairs] * len(of), [100 * value for value in of.values()], ".", color=colour, alpha=0.4, ms=3)
    right.plot(x, [100 * amount.lead.mean for amount in amounts], marker="s", color=RED, label="measured")
    if found is not None:
        for axes, forecast in zip((left, right), found):
            reach = [[100 * (forecast.value - forecast.low)], [100 * (forecast.high - forecast.value)]]
            axes.errorbar(
                [LARGEST * 1.06], [100 * forecast.value], reach, fmt="D", color=BLACK, capsize=3, ms=4,
                label="forecast" if axes is right else "forecast for CLIP",
            )  # fmt: skip
    for axes, title in ((left, "Mean test R@1, %"), (right, "Lead of taught, points")):
        axes.set(xscale="log", xticks=x, title=title, xlabel="scenes")
        axes.set_xticks(x, [f"{pairs // 1000}k" for pairs in x])
        axes.minorticks_off()
        axes.legend(loc="upper left")
    left.set_ylim(bottom=0)
    right.axhline(0, color=FAINT, linewidth=1)
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()
