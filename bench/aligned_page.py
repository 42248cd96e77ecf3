"""Writes the page of bench/aligned.py: cells of a group against their reference, paired by seed, with intervals."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from dinorankclip_studies.verdicts import Effect, holm, p_value, paired, summary

SCORE = "test/mean R@1"
SHOWN = ("test/i2t R@1", "test/t2i R@1", "test/i2t R@10", "test/t2i R@10")
PAGE, SUMMARY = "README.md", "summary.json"
HEAD = """\
# Aligned models on real photos
Flickr8k: 6,000 training, 1,000 validation and 1,000 test photos with five captions each. Heads on frozen towers
(EfficientNet-Lite0, ImageNet-supervised, and MiniLM), each run with its own seed of weights and order of pairs. Cells
of a seed see the same pairs. Differences are paired by seed, with 95 % t-intervals; p-values are Holm's over a table.
"Detectable" is the true difference that so many seeds would show in 80 % of studies. A verdict needs an interval
on one side of zero after Holm; "no difference above X" gives the interval's larger end. All in points of mean test R@1.
Written by `python -m bench.aligned page`; cells are in bench/aligned_cells.toml, runs in runs.jsonl.
"""


@dataclass(frozen=True)
class Group:
    """Describes a table: the cell that others are compared with, its title and a note.

    `{n}` in the name of the reference stands for the number at the end of a cell's own name.
    """

    reference: str
    title: str
    note: str = ""

    def reference_of(self, cell: str) -> str:
        return self.reference.format(n=cell.rsplit("-", 1)[-1])


SHORT = "Width 512, batch 128, 8 epochs: shorter than the recipe, so that thirty seeds are minutes."
GROUPS = {
    "orders": Group("order-1", "Orders 0 to 5, lists of 32 positions", f"Reference: RankCLIP (order 1). {SHORT}"),
    "forms": Group(
        "order-1", "Other forms of ranking", f"Reference: RankCLIP (order 1), reference order of the pair. {SHORT}"
    ),
    "fusion": Group("none", "Six fusions over dense tokens", "Reference: heads alone."),
    "recipe": Group(
        "clip",
        "Methods with the recipe's own settings",
        "Width 2048, batch 512, 15 epochs. Reference: CLIP. `clip-20-epochs` has a third more time, as `alip` takes.",
    ),
    "methods": Group("clip", "Methods", f"Reference: CLIP. {SHORT}"),
    "widths": Group(
        "hidden-2048", "Width of the heads' hidden layer", "Reference: the recipe's 2048. Batch 256, 8 epochs."
    ),
    "scaling": Group("clip-{n}", "RankCLIP by number of photos", "`rankclip-N` is compared with `clip-N`."),
    "positives": Group("plain", "Several positives", "Reference: the plain loss."),
    "start": Group(
        "random-{n}",
        "The starter beside the heads, by number of photos",
        "`names-N` is compared with `random-N`, heads alone, on the same N photos of a seed.",
    ),
    "tune": Group("heads", "Settings of the recipe", "One to three seeds, for the choice of defaults on validation."),
}


def read_runs(folder: Path) -> list[dict]:
    """Return the runs of all files, one for each key."""
    runs = {}
    for path in sorted(folder.glob("runs*.jsonl")):
        for line in path.open(encoding="utf-8"):
            record = json.loads(line)
            runs[record["key"]] = record
    return list(runs.values())


def values(runs: list[dict], group: str, score: str) -> dict[str, dict[int, float]]:
    """Return cell → seed → score of a group."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for run in runs:
        if run["group"] == group:
            found[run["cell"]][run["seed"]] = run["scores"][score]
    return dict(found)


def table(runs: list[dict], group: str, about: Group) -> tuple[list[str], dict]:
    """Return the lines of a table and its numbers."""
    by_cell, validation = values(runs, group, SCORE), values(runs, group, "val/mean R@1")
    effects = {
        cell: paired(by_cell.get(about.reference_of(cell), {}), seeds)
        for cell, seeds in by_cell.items()
        if cell != about.reference_of(cell)
    }
    adjusted = dict(zip(effects, holm([p_value(effect) for effect in effects.values()])))
    seconds: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        if run["group"] == group:
            seconds[run["cell"]].append(run["core_seconds"])
    lines = [
        f"## {about.title}",
        f"{about.note}\n" if about.note else "",
        "| cell | seeds | val R@1 | test R@1 | i→t | t→i | i→t R@10 | t→i R@10 | difference | detectable | verdict "
        "| core s |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --- | --: | --- | --: |",
    ]
    numbers = {}
    for cell, seeds in by_cell.items():
        shown = [100 * summary(values(runs, group, score)[cell]).mean for score in SHOWN]
        effect = effects.get(cell)
        words = ("–", "–", "reference") if effect is None else effect_words(effect, adjusted[cell])
        cost = sorted(seconds[cell])[len(seconds[cell]) // 2]
        lines.append(
            f"| {cell} | {len(seeds)} | {100 * summary(validation[cell]).mean:.2f} | {100 * summary(seeds).mean:.2f} | "
            + " | ".join(f"{value:.2f}" for value in shown)
            + f" | {' | '.join(words)} | {cost:.0f} |"
        )
        numbers[cell] = {"n": len(seeds), "mean": summary(seeds).mean}
        if effect is not None:
            numbers[cell] |= {"difference": effect.mean, "low": effect.low, "high": effect.high, "p": adjusted[cell]}
            numbers[cell] |= {"detectable": effect.detectable, "verdict": words[2]}
    return [*lines, ""], numbers


def effect_words(effect: Effect, p: float) -> tuple[str, str, str]:
    if effect.low is None or effect.high is None or effect.detectable is None:
        return f"{100 * effect.mean:+.2f}", "–", "too few seeds"
    low, high = 100 * effect.low, 100 * effect.high
    difference = f"{100 * effect.mean:+.2f} [{low:.2f}, {high:.2f}]"
    if effect.shown and p < 0.05:
        verdict = "better" if effect.mean > 0 else "worse"
    elif effect.shown:
        verdict = "not shown after Holm"
    else:
        verdict = f"no difference above {max(abs(low), abs(high)):.2f}"
    return difference, f"{100 * effect.detectable:.2f}", verdict


def write_page(folder: Path) -> None:
    runs = read_runs(folder)
    lines, numbers = [HEAD], {}
    for group, about in GROUPS.items():
        if any(run["group"] == group for run in runs):
            rows, numbers[group] = table(runs, group, about)
            lines += rows
    (folder / PAGE).write_text("\n".join(lines), encoding="utf-8")
    (folder / SUMMARY).write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    print(f"{len(runs)} runs: {folder / PAGE}")
