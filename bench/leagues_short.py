"""Writes equal-time.md of the leagues: each method at two budgets in one row.

README and docs/results.md repeat its rows, and a test compares them, so no figure there is typed by hand.

    python -m bench.leagues page --out docs/study/leagues
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.leagues_cells import Cell, Leagues
from bench.leagues_page import AMORTISED, INCLUDED, SCORE, runs_of, scores
from dinorankclip.types import UserError
from dinorankclip_studies.verdicts import Effect, paired, summary

PAGE = "equal-time.md"
DATA, TRAINING_ONLY, WHOLE = "scenes-8000", 60.0, 180.0
MOST_SEEDS = 8  # a number of seeds that a row does not mention
# Group, cell, and the words of the row; CLIP, which all rows are compared with, comes first.
ROWS: tuple[tuple[str, str, str], ...] = (
    ("league-a", "clip", "CLIP"),
    ("league-a", "rankclip-32", "RankCLIP, lists of 32"),
    ("league-b", "anchor-96px", "CLIP with the teacher as a third tower"),
    ("league-b", "taught", "**`--recipe taught`**: third tower and lists"),
    ("league-b", "lit-96px", "LiT: the teacher *is* the image tower, also at inference"),
    ("league-a", "clip-two-captions", "CLIP with two captions a step"),
    ("league-b", "taught-two-captions", "taught with two captions a step"),
    ("league-a", "alip", "ALIP-style, two captions a step"),
    ("league-a", "siglip", "SigLIP"),
    ("league-a", "cyclip", "CyCLIP"),
    ("league-a", "rank-3-32", "order 3, lists of 32, heads × 30"),
    ("league-a", "clip-decorrelation", "CLIP with a decorrelation term"),
    ("league-b", "taught-shuffled", "control: taught with features of other images"),
    ("league-b", "taught-random", "control: taught with a random network as teacher"),
    ("league-b", "trunk-student", "teacher into the trunk: Gram + relational"),
    ("league-b", "trunk-student-crd", "teacher into the trunk: CRD"),
)
HEAD = """\
# Methods at equal time
Built-in scenes, 8,000 for training; mean R@1 of both directions on 5,000 sealed scenes; Muon for all. Budgets are
core-seconds: 60 for training alone, where the teacher's cache is **not** counted, and 180 with the cache **counted**
(its core-seconds stand in the [leagues](README.md)). Differences to CLIP are paired by seed, with 95 % intervals; eight
seeds where a row says nothing else. No interval stands where there are fewer than three seeds. Written by
`python -m bench.leagues page` from the runs of the leagues, which have every score.
"""


@dataclass(frozen=True)
class Budget:
    """Holds the runs of one budget of time, and whether the teacher's cache is taken from it."""

    runs: list[dict[str, Any]]
    mode: str

    def cells(self, cell: Cell, reference: Cell) -> tuple[str, str]:
        """Return score and difference of a cell as they stand in a row."""
        own = scores(runs_of(self.runs, cell, self.mode), SCORE)
        if not own:
            return "–", "–"
        score = f"{100 * summary(own).mean:.1f} %"
        if cell.digest == reference.digest:
            return score, "–"
        return score, difference_words(paired(scores(runs_of(self.runs, reference, self.mode), SCORE), own))


def difference_words(effect: Effect) -> str:
    """Return `+7.6 [6.7, 8.4]`, with the number of seeds if it is not the usual one."""
    seeds = "" if effect.n == MOST_SEEDS else f" ({effect.n} seed{'s' * (effect.n > 1)})"
    if effect.n < 3 or effect.low is None or effect.high is None:
        return f"{points(effect.mean, '+')}{seeds}"
    return f"{points(effect.mean, '+')} [{points(effect.low)}, {points(effect.high)}]{seeds}"


def points(value: float, sign: str = "") -> str:
    """Return points with one decimal, with a real minus."""
    return f"{100 * value:{sign}.1f}".replace("-", "−")


def rows(runs: Iterable[Mapping[str, Any]], leagues: Leagues, costs: Mapping[str, Any]) -> list[str]:
    """Return a row for each cell of `ROWS` that has runs, under two lines of headings."""
    own = [dict(run) for run in runs if run["data"] == DATA]
    if len(worlds := {run["world"] for run in own}) > 1:
        raise UserError(f"runs of {DATA} were tested on different pairs ({', '.join(sorted(worlds))})")
    budgets = [
        Budget([run for run in own if run["budget"] == core_seconds], mode)
        for core_seconds, mode in ((TRAINING_ONLY, AMORTISED), (WHOLE, INCLUDED))
    ]
    lines = [
        "| | cost of a step | 60 core-seconds, no cache counted | to CLIP | 180, cache counted | to CLIP |",
        "| --- | --: | --: | --: | --: | --: |",
    ]
    for group, name, words in ROWS:
        cell = leagues.groups[group].cells[name]
        found = [budget.cells(cell, leagues.reference) for budget in budgets]
        if all(score == "–" for score, _ in found):
            continue
        cost = costs["cells"].get(cell.cost_digest)
        ratio = "–" if cost is None else f"{cost['median']:.2f}"
        lines.append(f"| {words} | {ratio} | {' | '.join(part for each in found for part in each)} |")
    return lines


def write_short(folder: Path, runs: list[dict[str, Any]], leagues: Leagues) -> None:
    """Write the page, if there are runs of its data."""
    path = folder / "costs.json"
    costs = json.loads(path.read_text()).get(DATA) if path.is_file() else None
    if costs is None or not any(run["data"] == DATA for run in runs):
        return
    (folder / PAGE).write_text("\n".join([HEAD, *rows(runs, leagues, costs), ""]), encoding="utf-8")
    print(folder / PAGE)
