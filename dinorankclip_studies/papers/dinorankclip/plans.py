"""Defines the studies of the paper by name (files in studies/, and cc3m here) with their cells (cells.toml), and the
claims that they judge (claims.toml) with the contrasts that are more than scores of two cells."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from dinorankclip.config import LossSettings, TrainSettings, with_changes
from dinorankclip.given_settings import checked
from dinorankclip.io import home
from dinorankclip.methods import LABEL
from dinorankclip.presets import preset
from dinorankclip.run_files import INERT_SPREAD, MODALITIES, spread_name
from dinorankclip_studies.claim import Claim, Contrast
from dinorankclip_studies.papers.claims_file import load_claims
from dinorankclip_studies.papers.dinorankclip import PAPER
from dinorankclip_studies.papers.dinorankclip.paper_tables import scale_of, tables_of
from dinorankclip_studies.papers.dinorankclip.scales import CC3M_PAIRS, MAIN, Scale, cell_at, pairs_change, scales_with
from dinorankclip_studies.papers.paper_data import Measures
from dinorankclip_studies.quantities import SCORES, Context, Quantity, gain, spreads
from dinorankclip_studies.run_times import PAPER_TRUNK, Bench
from dinorankclip_studies.study import Cell, Experiment, Numbers, Scenes, Study

NO_TEACHER = (PAPER.main_cells[-1], "control-no-teacher")  # the method, and its students and fusion without a teacher
CATALOGUE_SETS = "sets"  # a folder of clip-benchmark sets, as `dinorankclip score --catalogue` lists them
PAPER_GPUS = 8  # GPUs of the paper's one node
# Time of the full method over CLIP's, epoch for epoch: 433 s against 158 s in the first hundred runs of the scenes
# study, scoring included, and rounded up in CLIP's favour; at the paper's scale by its own (projected) step times.
FULL_TAKES = 2.8
_STEPS = PAPER.values["tab:cost-accuracy"]
PAPER_FULL_TAKES = _STEPS["3"]["step ms"] / _STEPS["0"]["step ms"]
# The runs on record have the plain L1 of gates, the plain loss and AdamW; keys of cells and results belong to them.
AS_RUN = LossSettings(gate_l1_size="plain", several_positives=False)
OPTIMISER_AS_RUN: Final = "adamw"

_STUDY_KEYS = {
    "title", "stands_for", "preset", "cells", "tables", "seeds", "sets", "pairs", "pair_seconds", "grid", "tuned_on",
    "rate_note", "scenes", "settings", "table",
}  # fmt: skip
_CELL_KEYS = {"method", "changes", "unset", "decisive", "pictured", "longer", "photos", "at_scale", "share"}


def read_cells(path: Path) -> dict[str, dict[str, Any]]:
    """Read the entries of cells.toml, whose head explains the keys."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))
    for name, entry in entries.items():
        if unknown := sorted(entry.keys() - _CELL_KEYS):
            known = ", ".join(sorted(_CELL_KEYS))
            raise ValueError(f"{path}: [{name}]: unknown keys {', '.join(unknown)}; known: {known}")
        if "method" not in entry:
            raise ValueError(f"{path}: [{name}] has no method")
    return entries


_ENTRIES = read_cells(PAPER.folder / "cells.toml")


def _cell(name: str, **further: Any) -> Cell:
    entry = _ENTRIES[name]
    return Cell(name, entry["method"], entry.get("changes", {}) | dict.fromkeys(entry.get("unset", ())) | further)


def cells_with(key: str) -> tuple[str, ...]:
    """Return the names of the cells whose entry sets a key."""
    return tuple(name for name, entry in _ENTRIES.items() if entry.get(key))


CELLS = tuple(_cell(name) for name, entry in _ENTRIES.items() if entry.get("at_scale") != "only")
AT_SCALE_CELLS = tuple(_cell(name) for name, entry in _ENTRIES.items() if entry.get("at_scale") == "only")
DECISIVE = cells_with("decisive")
PICTURED = cells_with("pictured")


def study_of_file(name: str, numbers: Numbers = Numbers()) -> Study:  # noqa: B008 (frozen)
    """Return a study that a file in studies/ defines. Keys are those of study_file.py, and:

    cells        "scenes": every cell of cells.toml but those of cc3m alone; "photos": cells that are marked so
    tables       the kind of study in tables.toml whose tables it has; [table.NAME] changes rows and note of one
    seeds        a number, or numbers for cells that are marked decisive and for others
    grid, tuned_on, rate_note, stands_for, pair_seconds    as in `Study`
    """
    path = PAPER.folder / "studies" / f"{name}.toml"
    entry = tomllib.loads(path.read_text(encoding="utf-8"))
    if unknown := sorted(entry.keys() - _STUDY_KEYS):
        raise ValueError(f"{path}: unknown keys {', '.join(unknown)}; known: {', '.join(sorted(_STUDY_KEYS))}")
    base = with_changes(preset(entry["preset"]), checked(entry["settings"], str(path)))
    base = with_changes(base, {"budget.epochs": numbers.epochs or base.budget.epochs})
    more: dict[str, Any] = {key: entry[key] for key in ("rate_note", "pair_seconds", "tuned_on") if key in entry}
    more |= {"paper": entry["stands_for"], "grid": tuple(entry.get("grid", ()))}
    if "scenes" in entry:
        sizes = entry["scenes"] | ({} if numbers.pairs is None else {"train": numbers.pairs})
        scenes = Scenes(str(home() / f"scenes-{sizes['train']}"), **sizes)
        study = _of_scenes(name, entry["title"], scenes, _seeds(**entry["seeds"]), base, **more)
    else:
        cells = tuple(map(_cell, cells_with(entry["cells"])))
        more["pairs"] = entry["pairs"]
        study = _of_photos(name, entry["title"], base, cells, entry["seeds"], tuple(entry["sets"]), **more)
        study = study.on_at_most(numbers.pairs)
    changed = entry.get("table", {})
    return replace(study, experiments=tuple(_changed(table, changed.get(table.name)) for table in study.experiments))


def _changed(table: Experiment, changes: Mapping[str, Any] | None) -> Experiment:
    """Return a table with other rows (of its own cells) and another note; its cells are then matched."""
    if changes is None:
        return table
    known = {row.cell: row for row in table.rows}
    rows = tuple(replace(known[cell], label=label) for label, cell in changes["rows"])
    return replace(table, rows=rows, note=changes["note"], unmatched={})


def cc3m(numbers: Numbers = Numbers()) -> Study:  # noqa: B008 (frozen)
    """Return the paper's own plan, for `study plan` and SLURM: its scales, students, teachers and shares of CC3M.
    Each cell has one seed, as the paper plans: tables without intervals, and no verdicts."""
    scales, tables = scales_with(numbers), tables_of("cc3m")
    base = preset("cc3m")
    # All teachers share a grid (D14): DINOv2's patches of 14 give it 16×16 tokens where the others have 14×14.
    base = replace(
        base,
        loss=AS_RUN,
        optim=replace(base.optim, name=OPTIMISER_AS_RUN),
        distil=replace(base.distil, compare_grid=7),
        budget=replace(base.budget, epochs=scales[MAIN].epochs),
    )
    shown = {table.name: {row.cell for row in table.rows} for table in tables}
    cells = [
        _at_scale(name, scale)
        for scale_name, scale in scales.items()
        for name, entry in _ENTRIES.items()
        if entry.get("at_scale") is not False
        and any(name + scale.suffix in shown[table] for table in shown if scale_of(table) == scale_name)
    ]
    about = "the paper's own plan: CC3M, ViT-B/32, batch 1024"
    more = {"pairs": CC3M_PAIRS, "gpus": PAPER_GPUS, "paper": about}
    study = _of_photos("cc3m", "The paper's plan at its own scale", base, tuple(cells), 1, (CATALOGUE_SETS,), **more)
    return study.on_at_most(numbers.pairs)


def _at_scale(name: str, scale: Scale) -> Cell:
    """Return a cell of the paper's plan at a scale, under its name there."""
    entry, changes = _ENTRIES[name], scale.changes() if scale.suffix else {}
    changes |= pairs_change(entry.get("share"))
    if entry.get("longer"):
        changes["budget.epochs"] = round(PAPER_FULL_TAKES * scale.epochs)
    at_scale = entry.get("at_scale", {})
    changes |= at_scale if isinstance(at_scale, dict) else {}
    return replace(_cell(name, **changes), name=name + scale.suffix)


STUDIES: dict[str, Callable[..., Study]] = {
    **{name: partial(study_of_file, name) for name in ("small", "full", "tuned", "flickr8k")},
    "cc3m": cc3m,  # its cells exist at several scales, which no file says
}
# Rows of the paper's compute profile → tables of the study at its scale; the first that shows a cell counts its hours.
PROFILE: Mapping[str, tuple[str, ...]] = {
    "order sweep": ("orders-paper", "orders-plain", "orders-teacher", "best-order"),
    "scaling": ("scaling",),
    "components": ("components",),
    "students": ("students",),
    "criteria": ("criterion",),
    "fusion": ("fusion",),
    "teachers": ("teacher",),
}


def _of_scenes(
    name: str, title: str, scenes: Scenes, seeds: Mapping[str, int], base: TrainSettings, **more: Any
) -> Study:
    """Return a study of every cell and every table on built-in scenes of this size."""
    base = replace(base, data=f"{scenes.folder}/pairs")
    as_long = {"budget.epochs": round(FULL_TAKES * base.budget.epochs)}
    cells = [_cell(cell.name, **as_long) if _ENTRIES[cell.name].get("longer") else cell for cell in CELLS]
    for at, cell in enumerate(cells):
        if cell.changes.get("reading.train_items", 0) > scenes.train:  # more than there are: all of them
            cells[at] = _cell(cell.name, **{"reading.train_items": scenes.train})
    more |= {"pairs": scenes.train, "scenes": scenes}
    title = title.format(pairs=f"{scenes.train:,}")
    return Study(name, title, base, tuple(cells), seeds, (scenes.folder,), tables_of("scenes"), **more)


def _seeds(decisive: int, others: int) -> Mapping[str, int]:
    return {cell.name: decisive if cell.name in DECISIVE else others for cell in CELLS}


def _of_photos(
    name: str, title: str, base: TrainSettings, cells: tuple[Cell, ...], seeds: int, sets: tuple[str, ...], **more: Any
) -> Study:
    """Return a study with the rows of these cells; tables without their reference or a second row are dropped."""
    by_cell = {cell.name: seeds for cell in cells}
    shortened = (
        replace(table, rows=tuple(row for row in table.rows if row.cell in by_cell)) for table in tables_of(name)
    )
    tables = tuple(table for table in shortened if len(table.rows) > 1 and table.reference in by_cell)
    return Study(name, title, base, cells, by_cell, sets, tables, **more)


def spread_of_order_3(cell: str) -> Contrast:
    """Return the spread of order 3 over the limit of inert orders, as a power of ten: spreads are positive, and seeds
    differ by factors."""

    def powers(context: Context) -> dict[int, float]:
        return {seed: math.log10(value / INERT_SPREAD) for seed, value in spreads(context.results, cell, 3).items()}

    quantity = Quantity(powers, (cell,), tuple(spread_name(3, side) for side in MODALITIES))
    return Contrast(f"{cell}: log10 of the spread of order 3 over {INERT_SPREAD:g}", quantity, unit="number")


def step_beyond_paper(order: int, to: int, full: bool = False, paper_trunk: bool = False) -> Contrast:
    """Return a step's cost over that of order `to` in the bench's rounds, minus the paper's (projected) ratio."""
    printed = PAPER.values["tab:cost-accuracy"]
    projected = printed[str(order)]["step ms"] / printed[str(to)]["step ms"]
    side, other = Bench.full(order) if full else Bench.order(order), Bench.order(to)
    trunk = PAPER_TRUNK if paper_trunk else None

    def values(context: Context) -> dict[int, float]:
        return {at: ratio - projected for at, ratio in context.bench.ratio(side, other, trunk).items()}

    label = f"{side} / {other}{f' on {trunk}' if trunk else ''}, minus {projected:.2f} of the {LABEL}"
    return Contrast(label, Quantity(values), unit="times")


def bend_of_cost() -> Contrast:
    """Return the extra cost of orders 3 to 5 over orders 1 to 3, as a share of the whole; 0 on a straight line."""

    def values(context: Context) -> dict[int, float]:
        third, fifth = (context.bench.ratio(Bench.order(order), Bench.order(1)) for order in (3, 5))
        return {at: (fifth[at] - 2 * third[at] + 1) / (fifth[at] - 1) for at in third.keys() & fifth.keys()}

    return Contrast("[(t₅ - t₃) - (t₃ - t₁)] / (t₅ - t₁)", Quantity(values), unit="number")


def gain_for_cost(over: str, order: int) -> Contrast:
    """Return the gain over RankCLIP per extra cost of a step, in steps of order 0: that of order 3 minus that of the
    cell `over`."""

    def per_cost(cell: str, order: int) -> Quantity:
        def median_extra(context: Context) -> float | None:
            own, first = (context.bench.ratio(Bench.order(number), Bench.order(0)) for number in (order, 1))
            extra = sorted(own[at] - first[at] for at in own.keys() & first.keys())
            return extra[len(extra) // 2] if extra else None

        return gain(cell, "rankclip", SCORES["accuracy"].score) / median_extra

    return Contrast(f"rank-3 minus {over}", per_cost("rank-3", 3) - per_cost(over, order), unit="points a step")


def time_of_full(context: Context) -> str:
    """Return how much longer the full method takes than CLIP at equal pairs: the fastest runs of the study, since
    others shared the machine, and the bench's steps on the paper's trunk."""
    ratios = [
        f"{min(_seconds(context, full)) / min(_seconds(context, clip)):.1f} ({_epochs(context, clip)} epochs)"
        for full, clip in (("full", "clip"), ("full-longer", "control-clip-longer"))
        if _seconds(context, full) and _seconds(context, clip)
    ]
    said = []
    if ratios:
        trunk = next(iter(context.results.of("full").values())).settings["model"]["trunk"]
        said.append(
            f"at equal pairs a run of the full method takes {' and '.join(ratios)} times CLIP's time on {trunk}"
        )
    if on_paper := sorted(context.bench.ratio(Bench.full(), Bench.order(0), PAPER_TRUNK).values()):
        spread = f"{median(on_paper):.2f} ({on_paper[0]:.2f} to {on_paper[-1]:.2f})"
        said.append(f"{'' if said else 'at equal pairs '}a step takes {spread} times CLIP's on {PAPER_TRUNK}")
    return ", ".join(said)


def _seconds(context: Context, cell: str) -> list[float]:
    return [run.seconds for run in context.results.of(cell).values()]


def _epochs(context: Context, cell: str) -> int:
    return next(iter(context.results.of(cell).values())).settings["budget"]["epochs"]


_SPECIAL = {
    build.__name__: build for build in (spread_of_order_3, step_beyond_paper, bend_of_cost, gain_for_cost, time_of_full)
}
CLAIMS = load_claims(PAPER.folder / "claims.toml", PAPER.values, _SPECIAL, NO_TEACHER)


def _names_at_scale(tables: Sequence[str]) -> Callable[[str], str]:
    """Return the function that names a claim's cells in the cc3m study: at the scale of the claim's first table."""
    return partial(cell_at, scale_of(tables[0]))


@cache
def _claims_at_scale() -> tuple[Claim, ...]:
    return load_claims(PAPER.folder / "claims.toml", PAPER.values, _SPECIAL, NO_TEACHER, "cc3m", _names_at_scale)


def claims_of(measures: Measures) -> tuple[Claim, ...]:
    """Return the claims that a kind of study has the cells for. Claims about cost are judged beside the scenes only."""
    if measures.kind == "flickr8k":
        cells = set(cells_with("photos"))
        return tuple(claim for claim in CLAIMS if not claim.only and claim.cells and cells.issuperset(claim.cells))
    claims = _claims_at_scale() if measures.kind == "cc3m" else CLAIMS
    allowed = (claim for claim in claims if not claim.only or measures.kind in claim.only)
    return tuple(claim for claim in allowed if claim.cells or measures.kind != "cc3m")
