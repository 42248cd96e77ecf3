"""Builds the tables of a kind of study: rows, titles and notes are data (tables.toml), columns depend on the study."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from dinorankclip_studies.papers import paper_data
from dinorankclip_studies.papers.dinorankclip import PAPER
from dinorankclip_studies.papers.dinorankclip.scales import MAIN, PAPER_SCALES, SWEEP, cell_at
from dinorankclip_studies.papers.paper_data import Measures, PaperValue
from dinorankclip_studies.results import Results
from dinorankclip_studies.study import Column, Experiment, Row

# Cells of the orders 0, 1, 2, …
PLAIN = ("clip", "rankclip", "rank-2", "rank-3", "rank-4", "rank-5")
WITH_TEACHER = ("full-0", "full-1", "full-2", "full", "full-4", "full-5")
MIXED = ("clip", "rankclip", "full-2", "full", "full-4", "full-5")  # the mixture in the paper's curve

IN_FAMILY = "errors inside the family"

_DEFAULT_KINDS = ("scenes", "cc3m")
_REQUIRED = {"name", "title", "reference", "columns", "rows", "note"}
_KEYS = _REQUIRED | {"kinds", "paper", "unmatched", "scale"}


def sweep_of(cells: tuple[str, ...], measures: Measures) -> tuple[str, ...]:
    """Return the cells of an order sweep under the names that they have in a kind of study."""
    return tuple(cell_at(SWEEP, cell) for cell in cells) if measures.scales else cells


def sweep_results(results: Results, measures: Measures) -> Results:
    """Return the results of the sweeps over orders and amounts of data, with the cells' names as in claims.toml."""
    if not measures.scales:
        return results
    suffix = PAPER_SCALES[SWEEP].suffix
    runs = (replace(run, cell=run.cell.removesuffix(suffix)) for run in results.runs if run.cell.endswith(suffix))
    return replace(results, runs=tuple(runs))


def columns(measures: Measures, *names: str) -> tuple[Column, ...]:
    """Return the columns with these names in a kind of study. Most names are headings; some stand for several columns
    or, where the study has no such score, for none."""
    known = _known_columns(measures)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown columns {', '.join(unknown)}; known: {', '.join(known)}")
    return tuple(column for name in names for column in known[name])


SUITES = "suites"  # stands for the columns of all suites of a kind of study


def _known_columns(m: Measures) -> dict[str, tuple[Column, ...]]:
    single = [
        *(Column(m.top(k), f"T@{k}") for k in (1, 3, 5)),
        *(
            Column(m.recall(way, k), f"{arrow} R@{k}")
            for way, arrow in (("i2t", "i→t"), ("t2i", "t→i"))
            for k in (1, 5, 10)
        ),
        Column(m.mean_r1, "mean R@1"),
        Column(m.shift, "shift mean T@1"),
        Column(m.base_top1, "unshifted T@1"),
        Column(m.relative_drop, "drop, % of unshifted", better="lower", over=m.base_top1),
        Column(m.fine_probe, "fine probe"),
        Column(m.fine_probe_of_features, "fine probe, features"),
        Column(m.probe_average, "probe mean"),
        Column(m.probe_average_of_features, "probe mean, features"),
        Column(m.cone, "cone separation °", percent=False, better="lower"),
        Column(f"{m.retrieval}/image half-angle", "image half-angle °", percent=False, better=None),
        Column(f"{m.retrieval}/text half-angle", "text half-angle °", percent=False, better=None),
        Column(f"{m.retrieval}/centroid distance", "centroid distance", percent=False, better="lower"),
        Column(paper_data.COSINE, "teacher–student cosine", percent=False),
        Column(paper_data.CENTRED_COSINE, "… without the mean", percent=False),
        Column(paper_data.GRAM_DISTANCE, "Gram distance", percent=False, better="lower"),
        Column(paper_data.ABOVE_09, "items above 0.9"),
        Column(paper_data.OWN_COSINE, "cosine, own projector", percent=False),
    ]
    # Where relevance is known, both directions are shown: a loss may gain in one what it loses in the other.
    directions = tuple(
        Column(f"{m.retrieval}/{way} tau-b", f"τ-b {arrow}", percent=False)
        for way, arrow in (("t2i", "t→i"), ("i2t", "i→t"))
    )
    in_family = tuple(
        Column(
            f"{name}/embedding probe errors in family",
            f"{f'{name} ' if m.several_fine else ''}{IN_FAMILY}",
            better=None,
        )
        for name in m.family_sets
    )
    renditions = tuple(Column(f"{one}/T@1", one.removeprefix(f"{m.zero_shot}-")) for one in m.renditions)
    probed = {name: name.removesuffix(" probe") for name in m.suites if m.several_fine and name.endswith(" probe")}
    single += [*renditions, Column("averages/ImageNetV2: T@1", "imagenetv2 mean")] if m.several_fine else []
    single += [Column(f"{name}/embedding probe accuracy", heading) for heading, name in probed.items()]
    return {column.heading: (column,) for column in single} | {
        "ranking τ-b": directions if m.graded else (ranking_quality(m),),
        "renditions": renditions,
        "fine zero-shot T@1": (
            Column(f"{m.fine}/T@1", f"{m.fine if m.several_fine else 'fine'} zero-shot T@1"),
        ),
        IN_FAMILY: in_family,
        "kinds probe": (Column(m.coarse_probe, f"{m.coarse} probe" if m.several_fine else "kinds probe"),),
        "probes": (
            Column(m.coarse_probe, f"{m.coarse} probe"),
            Column(m.fine_probe, "fine probe" if m.several_fine else f"{m.fine} probe"),
            *(Column(f"{name}/embedding probe accuracy", f"{name} probe") for name in m.other_probes),
        ),
    }  # fmt: skip


def headline(measures: Measures) -> tuple[Column, ...]:
    """Return the columns that every ablation shows."""
    return columns(measures, "T@1", "mean R@1", "shift mean T@1", "fine probe")


def ranking_quality(measures: Measures) -> Column:
    return Column(measures.ranking_quality, "τ-b t→i" if measures.graded else "ranking τ-b", percent=False)


def about_ranking(measures: Measures) -> str:
    if measures.graded:
        return "τ-b: Kendall's, between a query's order of all items and their true relevance, mean over queries."
    return "Ranking τ-b: Kendall's, between the orders that an image and its caption give all others, mean over pairs."


def tables_of(kind: str) -> tuple[Experiment, ...]:
    """Return the tables of a kind of study, with the rows of all its cells."""
    path = PAPER.folder / "tables.toml"
    built = []
    for entry in _entries():
        table = {key: value for key, value in entry.items() if key not in PAPER.kinds} | entry.get(kind, {})
        if wrong := sorted(_REQUIRED - table.keys()) + sorted(table.keys() - _KEYS):
            raise ValueError(f"{path}: table {entry.get('name')}: missing or unknown keys: {', '.join(wrong)}")
        if kind in table.get("kinds", _DEFAULT_KINDS):
            built.append(_table(table, PAPER.kinds[kind]))
    return tuple(built)


def _table(table: Mapping[str, Any], measures: Measures) -> Experiment:
    words = {f"n{items}": f"{items * measures.items_factor:,}" for items in (300, 1000, 2000)}
    words |= {"items": measures.items, "ranking": about_ranking(measures)}
    words |= {"alip": "ALIP" if measures.scales else "ALIP-style"}
    scale = table.get("scale", MAIN)
    return Experiment(
        table["name"],
        table["title"],
        tuple(
            Row(label.format_map(words), cell_at(scale, cell), _beside(cell, table.get("paper", {})))
            for label, cell in table["rows"]
        ),
        columns(measures, *(measures.suites if table["columns"] == [SUITES] else table["columns"])),
        cell_at(scale, table["reference"]),
        table["note"].format_map(words),
        {cell_at(scale, cell): tuple(settings) for cell, settings in table.get("unmatched", {}).items()},
    )


def scale_of(table: str) -> str:
    """Return the scale at which the study of the paper's own scale has a table."""
    return next(entry.get("cc3m", {}).get("scale", MAIN) for entry in _entries() if entry["name"] == table)


@cache
def _entries() -> Sequence[Mapping[str, Any]]:
    return tomllib.loads((PAPER.folder / "tables.toml").read_text(encoding="utf-8"))["table"]


def _beside(cell: str, paper: Mapping[str, Sequence[Any]]) -> dict[str, PaperValue]:
    """Return the paper's values beside a cell by heading: a printed value, or the mean of several columns."""
    found = {}
    for heading, (label, column) in paper.items():
        names = [column] if isinstance(column, str) else column
        values = list(PAPER.values.beside(label, cell, {name: name for name in names}).values())
        if len(values) > 1:
            mean = round(sum(value.value for value in values) / len(values), 2)
            found[heading] = PaperValue(mean, all(value.black for value in values))
        elif values:
            found[heading] = values[0]
    return found
