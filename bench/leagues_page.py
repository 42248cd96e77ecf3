"""Writes the page of bench/leagues.py: cells at equal core-seconds, paired by seed, with intervals and curves."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.aligned_page import effect_words, read_runs
from bench.leagues_cells import Cell, Group, Leagues, read_leagues
from dinorankclip_studies.verdicts import Effect, holm, p_value, paired, summary

SCORE = "test/mean R@1"
SHARES = ("val/mean R@1", SCORE, "test/i2t R@1", "test/t2i R@1", "test/i2t R@10", "test/t2i R@10")
SHARES += ("test/mean R@1 of 100", "test/new combinations R@1", "test/swapped sides", "test/swapped colours")
HEADINGS = {
    "val/mean R@1": "val R@1", SCORE: "test R@1", "test/i2t R@1": "i→t", "test/t2i R@1": "t→i",
    "test/i2t R@10": "i→t R@10", "test/t2i R@10": "t→i R@10", "test/mean R@1 of 100": "R@1 of 100",
    "test/new combinations R@1": "new combinations", "test/swapped sides": "sides", "test/swapped colours": "colours",
    "test/mean log-rank": "log-rank",
}  # fmt: skip
PLAIN = ("test/mean log-rank",)  # scores that are no shares
TARGETS = (0.1, 0.2, 0.3, 0.4, 0.5)
WIN = 0.01  # a champion wins if the lower bound of its lead is above this
PAGE, SUMMARY = "README.md", "summary.json"
NO_TEACHER, INCLUDED, AMORTISED = "none", "included", "amortised"
HEAD = """\
# Leagues at equal core-seconds
Every cell of a table had the same budget, in units of CLIP's step: its steps are those of CLIP in the budget, divided
by its cost ratio, which was measured with CLIP alternating (costs.json). Ratios of cells of equal work differ by up to
3 %, so a cell may have so many steps more or fewer than it should; the intervals do not contain this error. On scenes,
1.5 % of the steps are worth about 0.3 points. Cells of a seed start from the same weights and see the same
pairs in the same order. "Cache included" takes the core-seconds of the teacher's cache of the training part from the
budget; "amortised" does not. Differences are paired by seed, with 95 % t-intervals; p-values are Holm's over a table.
"Detectable" is the true difference that so many seeds would show in 80 % of studies. Scores are percentages,
differences points of mean test R@1; log-rank is the mean natural logarithm of the rank of the right item (less is
better).
Scenes: the test pairs come from a seed that no training used. "New combinations" counts queries of scenes with a
(kind, relation, kind) that no training scene has; "sides" and "colours" are two-way caption swaps (chance 50 %).
"R@1 of 100" is taken in galleries of 100 images. "Core s" are those that training really used, on a machine that
other work shared. `anchor` is CLIP with the teacher as a third tower (3T), `lit` has the teacher as its image tower,
`trunk-student` distils the teacher into the trunk. The table "Decisive cells" repeats runs of Leagues A and B.
Written by `python -m bench.leagues page`; cells are in bench/leagues_cells.toml, runs in runs*.jsonl.
"""

Run = dict[str, Any]


def runs_of(runs: Iterable[Run], cell: Cell, mode: str) -> dict[int, Run]:
    """Return seed → run of a cell. A cell without a teacher has the same runs in both columns."""
    return {run["seed"]: run for run in runs if run["digest"] == cell.digest and run["cache"] in (mode, NO_TEACHER)}


def scores(runs: Mapping[int, Run], score: str) -> dict[int, float]:
    return {seed: run["scores"][score] for seed, run in runs.items() if score in run["scores"]}


def unequal_starts(runs: Iterable[Run]) -> list[int]:
    """Return the seeds whose runs did not all start from the same weights and first pairs."""
    starts: dict[int, set[str]] = defaultdict(set)
    for run in runs:
        starts[run["seed"]].add(run["start"])
    return sorted(seed for seed, found in starts.items() if len(found) > 1)


def unequal_settings(runs: Iterable[Run]) -> list[str]:
    """Return the cells whose runs had different settings: a default has changed between them."""
    found: dict[str, set[str]] = defaultdict(set)
    names: dict[str, str] = {}
    for run in runs:
        names.setdefault(run["digest"], run["cell"])
        if "settings" in run:  # older runs did not store them
            found[run["digest"]].add(run["settings"])
    return sorted(names[digest] for digest, settings in found.items() if len(settings) > 1)


def table(runs: Sequence[Run], group: Group, mode: str, costs: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return the lines of a table and its numbers."""
    by_cell = {name: found for name, cell in group.cells.items() if (found := runs_of(runs, cell, mode))}
    reference = scores(by_cell.get(group.reference, {}), SCORE)
    effects = {name: paired(reference, scores(of, SCORE)) for name, of in by_cell.items() if name != group.reference}
    adjusted = dict(zip(effects, holm([p_value(effect) for effect in effects.values()])))
    known = {score for of in by_cell.values() for run in of.values() for score in run["scores"]}
    shown = [score for score in (*SHARES, *PLAIN) if score in known]
    columns = ["cell", "seeds", "steps", "cost", *(HEADINGS[score] for score in shown)]
    columns += ["difference", "detectable", "verdict", "core s"]
    lines = [f"| {' | '.join(columns)} |", "| --- |" + " --: |" * (len(shown) + 3) + " --- | --: | --- | --: |"]
    numbers = {}
    for name, of in by_cell.items():
        effect = effects.get(name)
        words = ("–", "–", "reference") if effect is None else effect_words(effect, adjusted[name])
        means = [summary(scores(of, score)).mean for score in shown]
        cells = [f"{mean:.3f}" if score in PLAIN else f"{100 * mean:.2f}" for score, mean in zip(shown, means)]
        steps = statistics.median(run["steps"] for run in of.values())
        seconds = statistics.median(run["core_seconds"] for run in of.values())
        ratio = costs.get("cells", {}).get(group.cells[name].cost_digest, {}).get("median")
        cost = "–" if ratio is None else f"{ratio:.3f}"
        lines.append(f"| {' | '.join([name, str(len(of)), f'{steps:.0f}', cost, *cells, *words, f'{seconds:.0f}'])} |")
        numbers[name] = {"n": len(of), "steps": steps, **dict(zip(shown, means))} | _numbers(effect, adjusted.get(name))
    return lines, numbers


def _numbers(effect: Effect | None, p: float | None) -> dict[str, Any]:
    if effect is None:
        return {}
    own = {"difference": effect.mean, "low": effect.low, "high": effect.high}
    return own | {"p": p, "detectable": effect.detectable}


def champion_table(runs: Sequence[Run], leagues: Leagues, group: Group, mode: str) -> tuple[list[str], dict[str, Any]]:
    """Compare the champion with every cell of the rival groups: lead, interval, Holm, and the rule of a win."""
    assert group.champion is not None
    champion = group.cells[group.champion]
    own = scores(runs_of(runs, champion, mode), SCORE)
    rivals: dict[str, Effect] = {}
    seen = {champion.digest}
    for name in group.rivals:
        for cell in leagues.group(name).cells.values():
            values = scores(runs_of(runs, cell, mode), SCORE)
            if cell.digest not in seen and values:
                seen.add(cell.digest)
                rivals[f"{name}/{cell.name}"] = paired(values, own)
    adjusted = dict(zip(rivals, holm([p_value(effect) for effect in rivals.values()])))
    lines = [
        "| rival | seeds | lead | detectable | verdict | lower bound above +1 |",
        "| --- | --: | --- | --: | --- | --- |",
    ]
    numbers = {}
    for name, effect in rivals.items():
        won = effect.low is not None and effect.low > WIN and adjusted[name] < 0.05
        words = effect_words(effect, adjusted[name])
        lines.append(f"| {name} | {effect.n} | {' | '.join(words)} | {'yes' if won else 'no'} |")
        numbers[name] = _numbers(effect, adjusted[name]) | {"won": won}
    return lines, numbers


def seconds_to(curve: Sequence[Sequence[float]], target: float, step_seconds: float) -> float | None:
    """Return core-seconds to a validation score, in the currency of the budget (steps times the cost of a step).

    `curve` has [step, …, score]. Between two points the score is taken as linear; None if it is not reached.
    """
    before_step, before = 0.0, 0.0
    for step, *_, score in curve:
        if score >= target:
            share = (target - before) / (score - before) if score > before else 1.0
            return (before_step + max(0.0, share) * (step - before_step)) * step_seconds
        before_step, before = step, score
    return None


def time_of(run: Run, target: float, step_seconds: float) -> float | None:
    """Return core-seconds of a run to a score, with those of its cache if they are taken from its budget."""
    seconds = seconds_to(run["curve"], target, step_seconds)
    return None if seconds is None else seconds + run.get("cache_seconds", 0.0)


def curve_table(
    runs: Sequence[Run], group: Group, mode: str, costs: Mapping[str, Any], reference_step: float
) -> list[str]:
    """Return median core-seconds to validation scores, with the share of seeds that reached them if not all did."""
    reached: dict[str, dict[float, list[float | None]]] = {}
    for name, cell in group.cells.items():
        ratio = costs.get("cells", {}).get(cell.cost_digest, {}).get("median")
        found = runs_of(runs, cell, mode)
        if found and ratio is not None:
            each = [[time_of(run, t, ratio * reference_step) for t in TARGETS] for run in found.values()]
            reached[name] = dict(zip(TARGETS, map(list, zip(*each))))
    targets = [t for t in TARGETS if any(s is not None for of in reached.values() for s in of[t])]
    if not targets:
        return []
    lines = [
        "Core-seconds to a validation mean R@1, median over seeds (in brackets the seeds that reach it, if not all):\n",
        f"| cell | {' | '.join(f'{100 * t:.0f} %' for t in targets)} |",
        "| --- |" + " --: |" * len(targets),
    ]
    for name, of in reached.items():
        lines.append(f"| {name} | {' | '.join(_median(of[t]) for t in targets)} |")
    return [*lines, ""]


def _median(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    # Seeds that did not reach the score count as infinitely late.
    middle = statistics.median(known + [float("inf")] * (len(values) - len(known)))
    share = "" if len(known) == len(values) else f" ({len(known)} of {len(values)})"
    return f"{middle:.0f}{share}" if middle < float("inf") else f"–{share}"


def write_page(folder: Path, leagues: Leagues | None = None) -> None:
    leagues = leagues or read_leagues()
    runs = read_runs(folder)
    path = folder / "costs.json"
    costs = json.loads(path.read_text()) if path.is_file() else {}
    lines, numbers = [HEAD], {}
    for world, budget in sorted({(run["world"], run["budget"]) for run in runs}):
        some = [run for run in runs if (run["world"], run["budget"]) == (world, budget)]
        found = costs.get(some[0].get("data", ""), {})
        data = f" ({pairs} training pairs)" if (pairs := some[0].get("data", "").partition("-")[2]) else ""
        lines.append(f"## {world}{data}, {budget:g} core-seconds\n")
        lines += cache_lines(found)
        if bad := unequal_starts(some):
            lines.append(f"**Runs of seeds {bad} did not start alike: their differences are not paired.**\n")
        if changed := unequal_settings(some):
            lines.append(f"**Runs of {', '.join(changed)} had different settings: a default has changed.**\n")
        for name, group in leagues.groups.items():
            own = [run for run in some if run["digest"] in {cell.digest for cell in group.cells.values()}]
            cells_run = {run["digest"] for run in own}
            if not own or (len(cells_run) == 1 and len(group.cells) > 1):
                continue  # the reference alone, which other groups share
            has_teacher = any(run["cache"] != NO_TEACHER for run in own)
            if group.champion is not None and not has_teacher:
                continue  # rivals without a teacher, which stand in their league
            ran = [mode for mode in (INCLUDED, AMORTISED) if any(run["cache"] == mode for run in own)]
            for mode in ran or (NO_TEACHER,):
                title = f"{group.title}, cache {mode}" if has_teacher else group.title
                rows, numbers[f"{world}/{budget:g}/{name}/{mode}"] = table(own, group, mode, found)
                note = [f"{group.note}\n"] if group.note else []
                lines += [f"### {title}\n", *note, *rows, ""]
                reference_step = found.get("cells", {}).get(leagues.reference.digest, {}).get("step")
                if reference_step is not None:
                    lines += curve_table(own, group, mode, found, reference_step)
                if group.champion is not None and runs_of(some, group.cells[group.champion], mode):
                    rows, won = champion_table(some, leagues, group, mode)
                    numbers[f"{world}/{budget:g}/{name}/{mode}/champion"] = won
                    lines += [f"#### {group.champion} against each rival\n", *rows, ""]
    (folder / PAGE).write_text("\n".join(lines), encoding="utf-8")
    (folder / SUMMARY).write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    print(f"{len(runs)} runs: {folder / PAGE}")


def cache_lines(costs: Mapping[str, Any]) -> list[str]:
    """State what the caches of the training part cost."""
    caches = [f"{cache['teachers']} {cache['core_seconds']:g}" for cache in costs.get("caches", {}).values()]
    return [f"Core-seconds of caches: {'; '.join(caches)}.\n"] if caches else []
