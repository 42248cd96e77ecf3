"""Stores records of finished runs, and `results.json`, which collects them for tables, claims and other machines.

A finished run leaves `result.json` in its folder (`write_record`); `collect` puts these records together. The file is
small enough to be committed: a line a run, numbers with seven digits in the order of names that are listed once (null
where a run lacks the number), and settings as differences from the first run's, `{"loss.order": 2}`.

`tuned.json` holds the learning rates that were tried (`choose_rate`). `results.json` also holds chance levels.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from dinorankclip.checked_files import UnfitFile, read_arrays
from dinorankclip.checksums import CHECKSUM, read_sealed, sealed
from dinorankclip.io import write_json, write_text
from dinorankclip.json_shape import NONE, NUMBER, OBJECT, TEXT, WHOLE, either, entries, fault, listed, named
from dinorankclip.run_files import (
    ITEMS,
    read_environment,
    read_fusion,
    read_metrics,
    read_settings,
    stored_scores,
)
from dinorankclip.stored_settings import flatten
from dinorankclip.train.cost import spending
from dinorankclip.train.loop import CHOOSES_BEST
from dinorankclip.types import UserError
from dinorankclip_studies.papers import measures_of
from dinorankclip_studies.papers.paper_data import Measures
from dinorankclip_studies.study import TUNING_SEED, Run
from dinorankclip_studies.verdicts import SMALLEST, summary

RESULT, RESULTS, TUNED = "result.json", "results.json", "tuned.json"
CELLS = "cells"  # run folders by key, in the folder of a study
CHANCES = "chances.json"  # chance levels of adopted results
EARLIER = "earlier"  # records of runs that are being made again
FORMAT = 2
NUMBERED = ("scores", "telemetry")  # fields of a record that map names to numbers
# Prefixes of scores that validation adds to metrics.jsonl at the end of an epoch; the other numbers belong to a step.
HELD_OUT = ("val/", "test/")
RECALL = " R@"

_MAYBE_TEXT, _NUMBERS = either(TEXT, NONE), named(NUMBER)
_FIELDS = {
    **dict.fromkeys(("cell", "key", "folder"), TEXT),
    **dict.fromkeys(("revision", "data", "teacher", "device", "precision"), _MAYBE_TEXT),
    **dict.fromkeys(("seed", "pairs_seen", "steps"), WHOLE),
    "settings": OBJECT,
    "seconds": NUMBER,
    "parameters": named(either(WHOLE, NONE)),
}
_NEEDED = ("cell", "seed", "key", "folder", "revision", "settings", "scores", "telemetry", "seconds", "pairs_seen")
_RECORD = entries(
    {**_FIELDS, "scores": _NUMBERS, "telemetry": _NUMBERS}, required=(*_NEEDED, "steps", "parameters"), closed=True
)
_COLUMN = listed(either(NUMBER, NONE))
_TUNED = named(entries({"chosen": NUMBER, "tried": _NUMBERS}, required=("chosen",)))
_RESULTS = entries(
    {
        "name": TEXT,
        "title": TEXT,
        "settings": OBJECT,
        "scores_names": listed(TEXT),
        "telemetry_names": listed(TEXT),
        "runs": listed(
            entries(
                {**_FIELDS, "scores": _COLUMN, "telemetry": _COLUMN},
                required=(*_NEEDED, "steps", "parameters"),
                closed=True,
            )
        ),
        "tuned": _TUNED,
        "chances": _NUMBERS,
    },
    required=("name", "settings", "runs", "scores_names", "telemetry_names"),
)
Number = TypeVar("Number", float, None)


@dataclass(frozen=True)
class RunRecord:
    """Describes a finished run. `folder` is relative to the study's; `seconds` is all its time, scoring included."""

    cell: str
    seed: int
    key: str
    folder: str
    revision: str | None
    settings: dict[str, Any]  # nested, complete
    scores: dict[str, float]  # "SET/score"; val/ and test/ are computed by training
    telemetry: dict[str, float]  # last values of the log, such as "fusion/end/image/angle/mean"
    seconds: float
    pairs_seen: int
    steps: int
    parameters: dict[str, int | None]  # trained parameters: "model", "heads" (of the loss alone), "model/PART"
    data: str | None = None  # fingerprint of the training pairs
    teacher: str | None = None  # includes the remark that must stand beside its results
    device: str | None = None  # cpu or cuda; None: not recorded
    precision: str | None = None  # the precision that `auto` chose


@dataclass(frozen=True)
class Results:
    """Holds all finished runs of a study.

    `tuned`: {method: {"chosen": rate, "tried": {rate: val/mean R@1}}}. `chances`: score → its chance level, where the
    evaluation sets give one.
    """

    name: str
    runs: tuple[RunRecord, ...]
    tuned: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    chances: Mapping[str, float] = field(default_factory=dict)

    def cells(self) -> tuple[str, ...]:
        """Return the cells that have a finished run, in the study's order."""
        return tuple(dict.fromkeys(run.cell for run in self.runs))

    def of(self, cell: str) -> dict[int, RunRecord]:
        """Return the finished runs of a cell by seed."""
        return {run.seed: run for run in self.runs if run.cell == cell}

    def values(self, cell: str, score: str) -> dict[int, float]:
        """Return a score of a cell by seed; seeds without the score are left out."""
        return {seed: run.scores[score] for seed, run in self.of(cell).items() if score in run.scores}

    def telemetry(self, cell: str, name: str) -> dict[int, float]:
        return {seed: run.telemetry[name] for seed, run in self.of(cell).items() if name in run.telemetry}

    def are_same_runs(self, a: str, b: str) -> bool:
        """Return whether two cells have equal settings in this study, so that one run has both names."""
        ours, theirs = self.of(a), self.of(b)
        common = ours.keys() & theirs.keys()
        return a != b and bool(common) and all(ours[seed].key == theirs[seed].key for seed in common)

    def on_common_seeds(self, cells: Iterable[str]) -> Results:
        """Keep the runs of these cells with the seeds that all of them have; cells without runs do not count.

        Means over different seeds side by side would show the seeds.
        """
        runs = {cell: self.of(cell) for cell in cells if self.of(cell)}
        common = set.intersection(*map(set, runs.values())) if runs else set()
        return replace(self, runs=tuple(run for run in self.runs if run.cell in runs and run.seed in common))

    def save(self, path: str | Path) -> None:
        common = flatten(self.runs[0].settings) if self.runs else {}
        names = {kind: list(dict.fromkeys(n for run in self.runs for n in getattr(run, kind))) for kind in NUMBERED}
        lines = []
        for run in self.runs:
            entry, flat = asdict(run), flatten(run.settings)
            entry["settings"] = {name: value for name, value in flat.items() if value != common.get(name, flat)}
            entry |= {kind: [_seven_digits(entry[kind].get(name)) for name in names[kind]] for kind in NUMBERED}
            lines.append(json.dumps(entry, ensure_ascii=False))
        head = {"format": FORMAT, "name": self.name, "title": self.title, "tuned": dict(self.tuned)}
        head["chances"] = {name: _seven_digits(value) for name, value in self.chances.items()}
        head |= {"settings": common, **{f"{kind}_names": names[kind] for kind in NUMBERED}}
        parts = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in head.items()]
        text = ",\n".join([*parts, '"runs": [\n' + ",\n".join(lines) + "\n]"])
        checksum = sealed(json.loads("{" + text + "}"))[CHECKSUM]
        write_text(path, "{\n" + text + f',\n"{CHECKSUM}": "{checksum}"\n}}\n')

    @classmethod
    def load(cls, path: str | Path) -> Results:
        """Read the file, or the file in the given folder."""
        path = Path(path)
        path = path / RESULTS if path.is_dir() else path
        if not path.is_file():
            raise UserError(f"there is no {path}: run the study first (dinorankclip study run NAME)")
        try:
            stored = read_sealed(path)
            if stored.get("format") != FORMAT:
                raise UserError(f"{path} has format {stored.get('format')}, this version reads {FORMAT}")
            if text := fault(stored, _RESULTS):
                raise UnfitFile(f"{path} is damaged: {text}")
        except UnfitFile as error:
            raise UserError(f"{error}; dinorankclip study status NAME writes it anew") from error
        runs = []
        for run in stored["runs"]:
            run["settings"] = nested(stored["settings"] | run["settings"])
            for kind in NUMBERED:
                pairs = zip(stored[f"{kind}_names"], run[kind])
                run[kind] = {name: value for name, value in pairs if value is not None}
            runs.append(RunRecord(**run))
        # Files of earlier versions have no chances; `open_material` reads them from the run folders.
        tuned, title = stored.get("tuned", {}), stored.get("title", "")
        return cls(stored["name"], tuple(runs), tuned, title, stored.get("chances", {}))


def _seven_digits(value: Number) -> Number:
    return value if value is None or isinstance(value, int) else float(f"{value:.7g}")


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Nest dotted names: {'a.b': 1} → {'a': {'b': 1}}."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *above, last = name.split(".")
        at = tree
        for part in above:
            at = at.setdefault(part, {})
        at[last] = value
    return tree


def record_of(folder: Path, key: str, seconds: float) -> RunRecord:
    """Build the record of a run that is trained and scored; its folder must still hold the last checkpoint.

    `collect` fills in the cell and the seed, since several cells may share a run.
    """
    settings = read_settings(folder)
    spent = spending(folder)
    assert spent.pairs_seen is not None, "the last checkpoint says so"
    return RunRecord(
        cell="", seed=settings["seed"], key=key, folder=f"{CELLS}/{key}",
        revision=read_environment(folder).get("revision"),
        settings=settings, scores=scores_of(folder), telemetry=telemetry_of(folder), seconds=round(seconds, 1),
        pairs_seen=spent.pairs_seen, steps=spent.pairs_seen // settings["budget"]["batch"],
        parameters={"model": spent.model_parameters, "heads": spent.heads}, data=spent.data, teacher=spent.teacher,
        device=spent.device, precision=spent.precision,
    )  # fmt: skip


def scores_of(folder: Path) -> dict[str, float]:
    """Return `val/…`, `test/…` and `fidelity/…` of training and `SET/…` of the sets, from scores.json."""
    stored = stored_scores(folder)
    scores = {name: value for name, value in stored.get("scores", {}).items() if "/chance " not in name}
    scores |= {f"fidelity/{name}": value for name, value in stored.get("fidelity", {}).items()}
    for name, result in stored.get("sets", {}).items():
        scores |= {f"{name}/{metric}": score["value"] for metric, score in result["scores"].items()}
    return {name: value for name, value in scores.items() if value == value}  # NaN: there was nothing to score


def telemetry_of(folder: Path) -> dict[str, float]:
    """Return the last value of every number in the log, and the measures of fusion."""
    last: dict[str, float] = {}
    for line in read_metrics(folder):
        last |= {n: v for n, v in line.items() if isinstance(v, int | float) and not n.startswith(HELD_OUT)}
    fusion = flatten(read_fusion(folder))
    last |= {f"fusion/{n.replace('.', '/')}": v for n, v in fusion.items() if not n.endswith("items")}
    last.pop("step", None)
    return last


def write_record(folder: Path, record: RunRecord) -> None:
    """Mark the run as finished; everything else of it must be written before."""
    write_json(folder / RESULT, sealed(asdict(record)))
    earlier_record(folder).unlink(missing_ok=True)


def earlier_record(folder: Path) -> Path:
    """Return the path of a run's record while the run is made again; it counts until the new record exists.

    The path is outside the run folder, which must be empty for a run to begin.
    """
    return folder.parents[1] / EARLIER / f"{folder.name}.json"


def read_record(folder: Path) -> RunRecord | None:
    """Return the record of a run; None if the run was never finished."""
    for path in (folder / RESULT, earlier_record(folder)):
        with contextlib.suppress(FileNotFoundError):
            return RunRecord(**read_sealed(path, _RECORD))
    return None


def collect(
    name: str, title: str, folder: Path, runs: Iterable[tuple[str, int, str]], tuned: Mapping[str, Any]
) -> Results:
    """Collect the finished runs among `runs` (cell, seed, key), in that order."""
    records = []
    for cell, seed, key in runs:
        record = read_record(folder / CELLS / key)
        if record is not None:
            records.append(replace(record, cell=cell, seed=seed))
    chances = adopted_chances(folder) | chances_of(folder / CELLS / record.key for record in records)
    return Results(name, tuple(records), dict(tuned), title, chances)


def choose_rate(runs: Sequence[Run], folder: Path) -> dict[str, Any]:
    """Choose one learning rate for all methods, the best on their average, and write tuned.json.

    Every method has the same small grid, one seed that is not reported, and validation scores alone. A single run
    separates a method's rates no better than chance does (500 validation pairs, one seed). A rate chosen by luck would
    be an advantage that all seeds share, so no interval over seeds could show it. Of equal rates the smallest wins.
    """
    tuned: dict[str, Any] = {}
    for run in runs:
        record = read_record(folder / CELLS / run.key)
        if record is None:
            raise UserError(f"the tuning run {run.cell} at {run.settings.optim.lr:g} is not finished")
        tried = tuned.setdefault(run.settings.method, {"cell": run.cell, "seed": TUNING_SEED, "tried": {}})["tried"]
        tried[f"{run.settings.optim.lr:g}"] = record.scores[CHOOSES_BEST]
    if tuned:
        tables = [entry["tried"] for entry in tuned.values()]
        best = max(sorted(tables[0], key=float), key=lambda rate: sum(tried[rate] for tried in tables))
        for entry in tuned.values():
            entry["chosen"] = float(best)
        write_json(folder / TUNED, sealed(tuned))
    return tuned


def read_tuned(folder: Path) -> dict[str, Any]:
    """Return the contents of tuned.json; empty if nothing was tuned yet."""
    return read_sealed(folder / TUNED, _TUNED) if (folder / TUNED).is_file() else {}


def rates(tuned: Mapping[str, Any]) -> dict[str, float]:
    return {method: entry["chosen"] for method, entry in tuned.items()}


def chances_of(folders: Iterable[Path]) -> dict[str, float]:
    """Return `SET/score` → chance from scores.json of these runs; without chances that depend on a model's errors."""
    levels: dict[str, set[float]] = {}
    for folder in folders:
        for name, result in stored_scores(folder).get("sets", {}).items():
            for metric, score in result["scores"].items():
                if "chance" in score:
                    levels.setdefault(f"{name}/{metric}", set()).add(_seven_digits(score["chance"]))
    return {name: values.pop() for name, values in levels.items() if len(values) == 1}


def adopted_chances(folder: Path) -> dict[str, float]:
    """Return the chance levels that came with results of another machine."""
    path = folder / CHANCES
    return read_sealed(path, named(NUMBER)) if path.is_file() else {}


def chance_of(results: Results, score: str) -> float | None:
    """Return the chance level of a score, for means over sets from the study's measures; None if it is unknown."""
    return results.chances.get(score, measures_of(results.name).chance(score))


def at_chance(results: Results, cells: Iterable[str], share: str) -> bool:
    """Return whether no cell is shown to be a point above chance in this share.

    The lower end of the interval counts or, with too few seeds for an interval, the mean. False where chance is
    unknown or nothing was run, and for recalls: their chance is so small that a point is many times as much.
    """
    chance = None if RECALL in share else chance_of(results, share)
    summaries = [summary(values) for cell in cells if (values := results.values(cell, share))]
    if chance is None or not summaries:
        return False
    return max(each.mean if each.low is None else each.low for each in summaries) < chance + SMALLEST["points"]


def with_near_misses(
    folder: Path, runs: Sequence[RunRecord], measures: Measures, base: str, ours: str
) -> list[RunRecord]:
    """Add `near_miss_share` as a score to runs of the cell `ours`, where both runs of a seed have their items here.

    The share needs single items of two runs; as a score it is in results.json, which travels without run folders.
    """
    base_runs = {run.seed: run for run in runs if run.cell == base}
    records = []
    for run in runs:
        if run.cell == ours and run.seed in base_runs:
            share = near_miss_share(folder / base_runs[run.seed].folder, folder / run.folder, measures)
            if share is not None:
                run = replace(run, scores=run.scores | {measures.near_misses: share})
        records.append(run)
    return records


def near_miss_share(base: Path, ours: Path, measures: Measures) -> float | None:
    """Of the captions whose image `base` ranks 2 to 10, return the share that `ours` ranks first (App. H).

    None where items are missing or there is no such caption.
    """
    if not ((base / ITEMS).is_file() and (ours / ITEMS).is_file()):
        return None
    theirs, mine = read_arrays(base / ITEMS), read_arrays(ours / ITEMS)
    first, among_ten = measures.recall("t2i", 1), measures.recall("t2i", 10)
    if first not in theirs or among_ten not in theirs or first not in mine:
        return None
    near = (theirs[first] == 0) & (theirs[among_ten] > 0)
    return float(mine[first][near].mean()) if near.any() else None
