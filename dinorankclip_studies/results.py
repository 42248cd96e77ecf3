"""What a study has found, as everything after its runs reads it: `results.json` in the study folder.

A run that is finished leaves `result.json` in its folder (`finished`); `collect` puts them together. The file is small
enough to be committed: a line a run, with numbers to seven digits in the order of names that are listed once (null
where a run has no such number), and settings as differences to the first run's, `{"loss.order": 2}`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dinorankclip.commands.doctor import read_metrics
from dinorankclip.config import flatten
from dinorankclip.io import write_json, write_text
from dinorankclip.run_files import ENVIRONMENT, FUSION, ITEMS, METRICS, SCORES, read_object, read_settings
from dinorankclip.train.cost import spending
from dinorankclip.types import UserError
from dinorankclip_studies.papers.dinorankclip.measures import Measures, measures_of
from dinorankclip_studies.verdicts import SMALLEST, summary

RESULT, RESULTS = "result.json", "results.json"
CELLS = "cells"  # run folders by key, in the folder of a study
CHANCES = "chances.json"  # beside them: what adopted results knew of chance
EARLIER = "earlier"  # beside them: records of runs that are being made again
FORMAT = 2
NUMBERED = ("scores", "telemetry")  # fields of a record that are numbers by name
# Beside scores of the validation part, which come at each epoch's end, a line of metrics.jsonl has numbers of a step.
HELD_OUT = ("val/", "test/")

Number = TypeVar("Number", float, None)


@dataclass(frozen=True)
class RunRecord:
    """A finished run. `folder` is relative to the study's; `seconds` is all time spent on it, scoring included."""

    cell: str
    seed: int
    key: str
    folder: str
    revision: str | None
    settings: dict[str, Any]  # nested, whole
    scores: dict[str, float]  # "SET/score"; val/ and test/ are those that training took
    telemetry: dict[str, float]  # last values of the log, "fusion/end/image/angle/mean" and so on
    seconds: float
    pairs_seen: int
    steps: int
    parameters: dict[str, int | None]  # trained: "model", "heads" (of the loss alone), and "model/PART"
    data: str | None = None  # fingerprint of the training pairs
    teacher: str | None = None  # with what must be said beside its results
    device: str | None = None  # cpu or cuda; None: not recorded
    precision: str | None = None  # what `auto` came to


@dataclass(frozen=True)
class Results:
    """`tuned`: learning rates that were tried, {method: {"chosen": lr, "tried": {lr: val/mean R@1}}}.
    `chances`: score → what knowing nothing would give, where the sets tell."""

    name: str
    runs: tuple[RunRecord, ...]
    tuned: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    chances: Mapping[str, float] = field(default_factory=dict)

    def cells(self) -> tuple[str, ...]:
        """Names of the cells that have a finished run, in the study's order."""
        return tuple(dict.fromkeys(run.cell for run in self.runs))

    def of(self, cell: str) -> dict[int, RunRecord]:
        """Finished runs of a cell by seed; empty if there are none."""
        return {run.seed: run for run in self.runs if run.cell == cell}

    def values(self, cell: str, score: str) -> dict[int, float]:
        """One score of a cell by seed; seeds without it are left out."""
        return {seed: run.scores[score] for seed, run in self.of(cell).items() if score in run.scores}

    def telemetry(self, cell: str, name: str) -> dict[int, float]:
        return {seed: run.telemetry[name] for seed, run in self.of(cell).items() if name in run.telemetry}

    def on_common_seeds(self, cells: Iterable[str]) -> Results:
        """Runs of these cells with the seeds that all of them have; cells without any run do not count. Means of
        different seeds side by side would show the seeds."""
        found = {cell: self.of(cell) for cell in cells if self.of(cell)}
        common = set.intersection(*map(set, found.values())) if found else set()
        return replace(self, runs=tuple(run for run in self.runs if run.cell in found and run.seed in common))

    def save(self, path: str | Path) -> None:
        common = flatten(self.runs[0].settings) if self.runs else {}
        names = {kind: list(dict.fromkeys(n for run in self.runs for n in getattr(run, kind))) for kind in NUMBERED}
        lines = []
        for run in self.runs:
            told, flat = asdict(run), flatten(run.settings)
            told["settings"] = {name: value for name, value in flat.items() if value != common.get(name, flat)}
            told |= {kind: [_seven_digits(told[kind].get(name)) for name in names[kind]] for kind in NUMBERED}
            lines.append(json.dumps(told, ensure_ascii=False))
        head = {"format": FORMAT, "name": self.name, "title": self.title, "tuned": dict(self.tuned)}
        head["chances"] = {name: _seven_digits(value) for name, value in self.chances.items()}
        head |= {"settings": common, **{f"{kind}_names": names[kind] for kind in NUMBERED}}
        parts = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in head.items()]
        text = ",\n".join([*parts, '"runs": [\n' + ",\n".join(lines) + "\n]"])
        write_text(path, "{\n" + text + "\n}\n")

    @classmethod
    def load(cls, path: str | Path) -> Results:
        """From the file or from the folder that holds it."""
        path = Path(path)
        path = path / RESULTS if path.is_dir() else path
        if not path.is_file():
            raise UserError(f"there is no {path}: run the study first (dinorankclip study run NAME)")
        try:
            stored = json.loads(path.read_text())
        except ValueError as error:
            raise UserError(f"{path} is damaged: {error}; dinorankclip study status NAME writes it anew") from error
        if stored.get("format") != FORMAT:
            raise UserError(f"{path} has format {stored.get('format')}, this version reads {FORMAT}")
        runs = []
        for run in stored["runs"]:
            run["settings"] = nested(stored["settings"] | run["settings"])
            for kind in NUMBERED:
                pairs = zip(stored[f"{kind}_names"], run[kind])
                run[kind] = {name: value for name, value in pairs if value is not None}
            runs.append(RunRecord(**run))
        # Files of earlier versions have no chances; `open_material` finds them in the run folders.
        return cls(stored["name"], tuple(runs), stored["tuned"], stored["title"], stored.get("chances", {}))


def finished(folder: Path, key: str, seconds: float) -> RunRecord:
    """The record of a run that is trained and scored, from its folder with the last checkpoint still in it.

    Whose run it is (cell and seed) is for `collect` to say, since several cells may share it.
    """
    settings = read_settings(folder)
    spent = spending(folder)
    assert spent.pairs_seen is not None, "the last checkpoint says so"
    steps = spent.pairs_seen // settings["budget"]["batch"]
    return RunRecord(
        cell="", seed=settings["seed"], key=key, folder=f"{CELLS}/{key}",
        revision=read_object(folder / ENVIRONMENT)["revision"],
        settings=settings, scores=scores_of(folder), telemetry=telemetry_of(folder), seconds=round(seconds, 1),
        pairs_seen=spent.pairs_seen, steps=steps,
        parameters={"model": spent.model_parameters, "heads": spent.heads}, data=spent.data, teacher=spent.teacher,
        device=spent.device, precision=spent.precision,
    )  # fmt: skip


def scores_of(folder: Path) -> dict[str, float]:
    """`val/…`, `test/…`, `fidelity/…` of training, `SET/…` of the sets, from scores.json."""
    stored = read_object(folder / SCORES)
    scores = {name: value for name, value in stored.get("scores", {}).items() if "/chance " not in name}
    scores |= {f"fidelity/{name}": value for name, value in stored.get("fidelity", {}).items()}
    for name, result in stored.get("sets", {}).items():
        scores |= {f"{name}/{metric}": score["value"] for metric, score in result["scores"].items()}
    return {name: value for name, value in scores.items() if value == value}  # NaN: there was nothing to score


def chances_of(folders: Iterable[Path]) -> dict[str, float]:
    """`SET/score` → its chance, from scores.json of these runs; left out where it depends on the model's own errors."""
    seen: dict[str, set[float]] = {}
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):
            for name, result in json.loads((folder / SCORES).read_text()).get("sets", {}).items():
                for metric, score in result["scores"].items():
                    if "chance" in score:
                        seen.setdefault(f"{name}/{metric}", set()).add(_seven_digits(score["chance"]))
    return {name: values.pop() for name, values in seen.items() if len(values) == 1}


def adopted_chances(folder: Path) -> dict[str, float]:
    """What results of another machine knew of chance."""
    path = folder / CHANCES
    return json.loads(path.read_text()) if path.is_file() else {}


def telemetry_of(folder: Path) -> dict[str, float]:
    """The last value of every number that the log has, and what fusion did."""
    last: dict[str, float] = {}
    for line in read_metrics(folder / METRICS):
        last |= {n: v for n, v in line.items() if isinstance(v, int | float) and not n.startswith(HELD_OUT)}
    if (folder / FUSION).is_file():
        told = flatten(read_object(folder / FUSION))
        last |= {f"fusion/{n.replace('.', '/')}": v for n, v in told.items() if not n.endswith("items")}
    last.pop("step", None)
    return last


def write_record(folder: Path, record: RunRecord) -> None:
    """Marks the run as finished: everything else of it is written by now."""
    write_json(folder / RESULT, asdict(record))
    earlier_record(folder).unlink(missing_ok=True)


def earlier_record(folder: Path) -> Path:
    """Where the record of a run stays while it is made again: it counts until the new one is there. Not in the run
    folder, which must be empty for a run to begin."""
    return folder.parents[1] / EARLIER / f"{folder.name}.json"


def read_record(folder: Path) -> RunRecord | None:
    """None: never finished."""
    for path in (folder / RESULT, earlier_record(folder)):
        with contextlib.suppress(FileNotFoundError):
            return RunRecord(**json.loads(path.read_text()))
    return None


def collect(
    name: str, title: str, folder: Path, wanted: Iterable[tuple[str, int, str]], tuned: Mapping[str, Any]
) -> Results:
    """Finished runs of `wanted` (cell, seed, key), in that order."""
    found = []
    for cell, seed, key in wanted:
        record = read_record(folder / CELLS / key)
        if record is not None:
            found.append(replace(record, cell=cell, seed=seed))
    chances = adopted_chances(folder) | chances_of(folder / CELLS / record.key for record in found)
    return Results(name, tuple(found), dict(tuned), title, chances)


def _seven_digits(value: Number) -> Number:
    return value if value is None or isinstance(value, int) else float(f"{value:.7g}")


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """{'a.b': 1} → {'a': {'b': 1}}"""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *above, last = name.split(".")
        at = tree
        for part in above:
            at = at.setdefault(part, {})
        at[last] = value
    return tree


# -------- chances
# What knowing nothing would score, and which cells are not shown to know more.

RECALL = " R@"


def chance_of(results: Results, score: str) -> float | None:
    """As the sets tell it; of means over sets, which have none there, as the study's measures do. None: not known."""
    return results.chances.get(score, measures_of(results.name).chance(score))


def at_chance(results: Results, cells: Iterable[str], share: str) -> bool:
    """Whether none of these cells is shown to be a point above chance in this share, by the lower end of its interval
    or, with too few seeds for one, by its mean. False where chance is not known, or nothing was run; and of recalls,
    whose chance is so small that a point is many times as much."""
    chance = None if RECALL in share else chance_of(results, share)
    found = [summary(values) for cell in cells if (values := results.values(cell, share))]
    if chance is None or not found:
        return False
    return max(one.mean if one.low is None else one.low for one in found) < chance + SMALLEST["points"]


# -------- near_misses
# What becomes of the captions that CLIP nearly gets right (App. H of the paper): found from single items of two runs,
# and kept as a score of the full method's run, so that results.json tells it without the run folders.

BASE, OURS = "clip", "full"


def with_near_misses(folder: Path, runs: Sequence[RunRecord], measures: Measures) -> list[RunRecord]:
    """The runs, those of the full method with one score more where both runs of a seed have their items here."""
    base = {run.seed: run for run in runs if run.cell == BASE}
    found = []
    for run in runs:
        if run.cell == OURS and run.seed in base:
            share = recovered(folder / base[run.seed].folder, folder / run.folder, measures)
            if share is not None:
                run = replace(run, scores=run.scores | {measures.near_misses: share})
        found.append(run)
    return found


def recovered(base: Path, ours: Path, measures: Measures) -> float | None:
    """Of the captions whose image `base` misses at rank 1 but has among its first ten, the share that `ours` has at
    rank 1; None where items are not there, or there is no such caption."""
    if not ((base / ITEMS).is_file() and (ours / ITEMS).is_file()):
        return None
    with np.load(base / ITEMS) as theirs, np.load(ours / ITEMS) as mine:
        first, among_ten = measures.recall("t2i", 1), measures.recall("t2i", 10)
        if first not in theirs or among_ten not in theirs or first not in mine:
            return None
        near = (theirs[first] == 0) & (theirs[among_ten] > 0)
        return float(mine[first][near].mean()) if near.any() else None
