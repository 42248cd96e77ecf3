"""Makes runs of equal core-seconds, paired by seed, and compares cells with intervals.

Every cell gets the steps that fit a budget: steps of CLIP in it, divided by the cell's cost ratio, which is measured
once (cell and CLIP alternating) and kept in OUT/costs.json. So equal time is the same for all seeds, and repeatable.
Cells with a teacher run twice: with the core-seconds of the cache taken from their budget (included), and without
(amortised). Cells of a seed start from the same weights and see the same pairs in the same order.

    python -m bench.leagues cost --world scenes --cells league-a --out docs/study/leagues
    python -m bench.leagues run  --world scenes --cells league-a --seeds 8 --budget T2 --out docs/study/leagues
    python -m bench.leagues page --out docs/study/leagues

`run` measures missing costs first, appends a line to OUT/runs*.jsonl after each run and makes no run twice; a stopped
run goes on at its last checkpoint. Several processes may share the work: --share 0/2 and --share 1/2 take every other
seed. Cells, worlds and budgets are in leagues_cells.toml. Test pairs of the scenes are made from --sealed-seed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.decoded_pairs import mean_recall, read_from_memory
from bench.leagues_cells import Cell, Leagues, World, read_leagues
from bench.leagues_data import LeagueData, open_data
from bench.locked import lock, train_locked
from bench.step_cost import Ratio, Steps, cost_ratio, steps_of
from dinorankclip.config import TrainSettings, as_dict, with_changes
from dinorankclip.io import home, one_at_a_time, write_json
from dinorankclip.methods import AUTO
from dinorankclip.stored_settings import flatten, meaning_of_absent
from dinorankclip.teachers.cache_request import cache_of_data, is_complete
from dinorankclip.train.assemble import RunParts, assemble, resume
from dinorankclip.train.distil_setup import cache_spec_of
from dinorankclip.train.loop import StopRequest, pretrain
from dinorankclip.train.timed_budget import core_time
from dinorankclip.types import Encoder, UserError

RUNS, COSTS = "runs.jsonl", "costs.json"
INCLUDED, AMORTISED, NO_TEACHER = "included", "amortised", "none"
CURVE = "curve.jsonl"
ROUNDS = 15
BUILT = home() / "leagues"  # caches and unfinished runs


@dataclass
class Bench:
    """Holds the data of a world, the leagues, and the folder of results."""

    leagues: Leagues
    world: World
    data: LeagueData
    out: Path
    rounds: int = ROUNDS
    costs_of: str | None = None  # data whose measured costs hold here, too

    # Costs: a file that all processes share.

    def costs(self) -> dict[str, Any]:
        path = self.out / COSTS
        table = json.loads(path.read_text()) if path.is_file() else {}
        return table.get(self.data.name, {"cells": {}, "caches": {}})

    def take_over(self, cells: list[Cell]) -> None:
        """Store the costs that were measured on other data of the same world: those of steps do not depend on the
        number of pairs, and those of caches grow with it."""
        path = self.out / COSTS
        table = json.loads(path.read_text()) if path.is_file() else {}
        other = table.get(self.costs_of, {"cells": {}, "caches": {}})
        sizes = {name: name.rpartition("-")[2] for name in (self.data.name, str(self.costs_of))}
        if not all(size.isdigit() for size in sizes.values()):
            raise UserError(f"--costs-of: {', '.join(sizes)}: the names must end with a number of pairs")
        pairs = {name: int(size) for name, size in sizes.items()}
        for cell in (self.leagues.reference, *cells):
            if cell.cost_digest not in other["cells"]:
                raise UserError(f"--costs-of {self.costs_of}: the cost of {cell.name} was not measured there")
            self._keep("cells", cell.cost_digest, other["cells"][cell.cost_digest])
            for name in self.cache_names(cell):
                teachers = str(cache_spec_of(cell.settings(self.world, self.data.where)))
                found = [each["core_seconds"] for each in other["caches"].values() if each["teachers"] == teachers]
                if not found:
                    raise UserError(
                        f"--costs-of {self.costs_of}: the cost of a cache of {teachers} was not measured there"
                    )
                seconds = round(found[0] * pairs[self.data.name] / pairs[str(self.costs_of)], 1)
                self._keep("caches", name, {"teachers": teachers, "core_seconds": seconds})

    def _keep(self, kind: str, name: str, value: Any) -> None:
        path = self.out / COSTS
        table = json.loads(path.read_text()) if path.is_file() else {}
        table.setdefault(self.data.name, {"cells": {}, "caches": {}})[kind][name] = value
        write_json(path, table)

    def measure(self, cells: list[Cell]) -> None:
        """Measure the costs that are missing, one process at a time: caches first, then steps against CLIP's."""
        with one_at_a_time("leagues-costs", BUILT):
            caches = {name: cell for cell in cells for name in self.cache_names(cell)}
            for name, cell in caches.items():
                if name not in self.costs()["caches"] or not is_complete(BUILT / name):
                    self._build_cache(name, cell)
            missing = [cell for cell in cells if cell.cost_digest not in self.costs()["cells"]]
            if not missing:
                return
            base = steps_of(self.assembled(self.leagues.reference, 0, None))
            twin = self._ratio(self.leagues.reference, base)  # the same work: what differs from 1 is the bench's
            for cell in {cell.cost_digest: cell.of_cost for cell in missing}.values():
                found = twin if cell.digest == self.leagues.reference.digest else self._ratio(cell, base)
                found = found.over(twin.median)
                words = f"{found} of CLIP's step, {found.step:.3f} core-seconds"
                print(f"{self.data.name}, {cell.name}: {words}", flush=True)
                self._keep("cells", cell.digest, {"cell": cell.name, **asdict(found)})

    def _ratio(self, cell: Cell, base: Steps) -> Ratio:
        """Measure a step of a cell against one of the reference, alternating."""
        parts = self.assembled(cell, 0, None)
        return cost_ratio(steps_of(lock(parts) if cell.locked else parts), base, self.rounds, f"cost of {cell.name}")

    def reference_step(self) -> float:
        """Return core-seconds of a step of the reference, reading included."""
        stored = self.costs()["cells"]
        if self.leagues.reference.digest not in stored:
            self.measure([self.leagues.reference])
            stored = self.costs()["cells"]
        return stored[self.leagues.reference.digest]["step"]

    # Caches: of the training part alone, so that their cost is what training needs.

    def cache_names(self, cell: Cell) -> list[str]:
        settings = cell.settings(self.world, self.data.where)
        if settings.distil.cache != AUTO:
            return []
        identity = f"{cache_spec_of(settings)} {cache_spec_of(settings).layout} {self.data.train.fingerprint}"
        return [f"{self.data.name}-{hashlib.sha256(identity.encode()).hexdigest()[:10]}"]

    def _build_cache(self, name: str, cell: Cell) -> None:
        settings = cell.settings(self.world, self.data.where)
        spec = cache_spec_of(settings)
        shutil.rmtree(BUILT / name, ignore_errors=True)  # an unfinished or unmeasured one
        begin = core_time()
        cache_of_data(BUILT / name, replace(spec, split=("train",)), settings.reading, torch.device("cpu"))
        seconds = round(core_time() - begin, 1)
        print(f"{self.data.name}: cache of {spec}: {seconds} core-seconds", flush=True)
        if name not in self.costs()["caches"]:  # a cost counts for all seeds, also if the cache is made again elsewhere
            self._keep("caches", name, {"teachers": str(spec), "core_seconds": seconds})

    def settings(self, cell: Cell, seed: int, steps: int | None) -> TrainSettings:
        settings = cell.settings(self.world, self.data.where, seed, steps)
        names = self.cache_names(cell)
        return with_changes(settings, {"distil.cache": str(BUILT / names[0])}) if names else settings

    def assembled(self, cell: Cell, seed: int, steps: int | None) -> RunParts:
        """Build a run that reads its pairs from memory."""
        with quiet():
            parts = assemble(self.settings(cell, seed, steps))
        read_from_memory(parts.loader, self.data.train, self.data.tokenizer)
        return parts

    # Runs.

    def steps(self, cell: Cell, budget: float, mode: str) -> int:
        """Return the steps of a cell in a budget of core-seconds; 0 if its cache alone costs more."""
        ratio = self.costs()["cells"][cell.cost_digest]["median"]
        return steps_in(budget - self.cache_seconds(cell, mode), self.reference_step(), ratio)

    def cache_seconds(self, cell: Cell, mode: str) -> float:
        """Return the core-seconds that a cell's cache takes from its budget."""
        caches = self.costs()["caches"]
        return sum(caches[name]["core_seconds"] for name in self.cache_names(cell)) if mode == INCLUDED else 0.0

    def modes(self, cell: Cell) -> tuple[str, ...]:
        return (INCLUDED, AMORTISED) if self.cache_names(cell) else (NO_TEACHER,)

    def key(self, cell: Cell, budget: float, mode: str, seed: int) -> str:
        return f"{self.data.identity}/{budget:g}/{cell.digest}/{mode}/{seed}"

    def run(self, cell: Cell, budget: float, mode: str, seed: int, steps: int) -> dict[str, Any] | None:
        """Train and score one run; None if it was asked to stop, and goes on the next time."""
        identity = f"{self.key(cell, budget, mode, seed)}/{steps}"  # costs may change while a run is stopped
        folder = BUILT / "runs" / hashlib.sha256(identity.encode()).hexdigest()[:16]
        folder.mkdir(parents=True, exist_ok=True)
        parts = self.assembled(cell, seed, steps)
        start = start_of(parts)
        if cell.locked:
            parts = lock(parts)
            (folder / CURVE).unlink(missing_ok=True)  # a locked run leaves no checkpoint: it begins anew
            watch = Curve(self.data, parts, folder / CURVE)
            train_locked(parts, watch)
            finished = True
        else:
            resume(parts, folder)
            watch = Curve(self.data, parts, folder / CURVE)
            with quiet():
                finished = parts.state.step == steps or pretrain(
                    parts.state, parts.loader, parts.length, [watch], parts.settings, parts.placement, folder,
                    StopRequest(),
                )  # fmt: skip
        if not finished:
            watch.leave()
            return None
        model = parts.state.model.eval()
        begin = time.process_time()
        scores = {name: round(value, 6) for name, value in self.data.scores(model)}
        record = {"scores": scores, "steps": steps, "core_seconds": watch.points[-1][1], "curve": watch.points}
        record |= {"start": start, "scoring_seconds": round(time.process_time() - begin, 1)}
        record |= {"settings": settings_digest(parts.settings)}
        shutil.rmtree(folder)
        return record


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Leave out what a run prints of itself, and its progress bar."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def steps_in(budget: float, reference_step: float, ratio: float) -> int:
    """Return steps of CLIP in the budget divided by the cost ratio, in whole steps: ⌊⌊budget / step⌋ / ratio⌋."""
    return max(0, int(int(budget / reference_step) / ratio))


class Curve:
    """Takes validation scores during a run, an `Evaluator`: keeps [step, core-seconds of training, mean R@1]."""

    name = "val"

    def __init__(self, data: LeagueData, parts: RunParts, path: Path) -> None:
        self._data, self._state, self._path = data, parts.state, path
        stored = [json.loads(line) for line in path.open()] if path.is_file() else []
        self.points = [point for point in stored if point[0] <= parts.state.step]
        self._left = path.with_suffix(".left.json")
        left = json.loads(self._left.read_text()) if self._left.is_file() else [0, 0.0]
        last = self.points[-1] if self.points else [0, 0.0]
        self._before = (left if left[0] == parts.state.step else last)[1]
        self._begin, self._scoring = time.process_time(), 0.0

    def used(self) -> float:
        """Return core-seconds of training so far, without scoring."""
        return self._before + time.process_time() - self._begin - self._scoring

    def leave(self) -> None:
        """Note the core-seconds of a run that was asked to stop between two scores."""
        self._left.write_text(json.dumps([self._state.step, self.used()]))

    def __call__(self, encoder: Encoder) -> Iterator[tuple[str, float]]:
        used, begin = self.used(), time.process_time()
        value = mean_recall(encoder, self._data.part("val", self._state.model.image_spec))
        self.points.append([self._state.step, round(used, 2), round(value, 6)])
        self._path.write_text("".join(json.dumps(point) + "\n" for point in self.points))
        self._scoring += time.process_time() - begin
        yield "mean R@1", value


def start_of(parts: RunParts) -> str:
    """Return a digest of the trunk's first weights and of the first batch's images and captions: equal for all cells
    of a seed. Temperature and bias are left out, since a sigmoid loss starts from others."""
    found = hashlib.sha256()
    state: dict[str, Tensor] = parts.state.model.trunk.towers.state_dict()
    for name, value in sorted(state.items()):
        if not name.startswith("logit"):
            found.update(name.encode() + value.numpy().tobytes())
    batch = next(iter(parts.loader))
    parts.loader.step = 0
    found.update(batch.images.numpy().tobytes() + "\n".join([*batch.keys, *batch.captions]).encode())
    return found.hexdigest()[:12]


def settings_digest(settings: TrainSettings) -> str:
    """Return a digest of all settings that seeds of a cell share: it changes when a default does, not when a setting is
    added whose default changes nothing."""
    flat, absent = flatten(as_dict(settings)), meaning_of_absent()
    free = ("seed", "data", "run", "distil.cache", "budget.steps")
    own = {name: value for name, value in flat.items() if name not in free and value != absent[name]}
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:10]


def run(args: argparse.Namespace) -> None:
    bench, cells = opened(args)
    budget = bench.world.budget(args.budget)
    if bench.costs_of is not None:
        bench.take_over(cells)
    bench.measure([bench.leagues.reference, *cells])
    share, shares = map(int, args.share.split("/"))
    path = args.out / (RUNS if shares == 1 else f"runs-{share}.jsonl")
    done = {json.loads(line)["key"] for file in args.out.glob("runs*.jsonl") for line in file.open()}
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        if seed % shares != share:
            continue
        for cell in cells:
            for mode in bench.modes(cell):
                key = bench.key(cell, budget, mode, seed)
                if key in done or (args.cache != "both" and mode not in (args.cache, NO_TEACHER)):
                    continue
                steps = bench.steps(cell, budget, mode)
                if steps == 0:
                    print(f"{cell.name}: its cache alone costs more than {budget:g} core-seconds: not run", flush=True)
                    continue
                record = bench.run(cell, budget, mode, seed, steps)
                if record is None:
                    raise SystemExit("stopped; the same command goes on")
                head = {
                    "key": key,
                    "world": bench.data.identity,
                    "data": bench.data.name,
                    "budget": budget,
                    "cell": cell.name,
                }
                head |= {"digest": cell.digest, "cache": mode, "seed": seed}
                head |= {"cache_seconds": bench.cache_seconds(cell, mode)}
                with path.open("a") as file:
                    file.write(json.dumps(head | record) + "\n")
                done.add(key)
                shown = record["scores"]
                print(
                    f"{cell.name} seed {seed} ({mode}): {steps} steps, val {100 * shown['val/mean R@1']:.2f} "
                    f"test {100 * shown['test/mean R@1']:.2f}, {record['core_seconds']} core-seconds",
                    flush=True,
                )


def cost(args: argparse.Namespace) -> None:
    bench, cells = opened(args)
    bench.measure([bench.leagues.reference, *cells])


def opened(args: argparse.Namespace) -> tuple[Bench, list[Cell]]:
    """Open world and data; return the bench and the different cells of all groups that were named."""
    torch.set_num_threads(1)
    leagues = read_leagues()
    if args.world not in leagues.worlds:
        raise UserError(f"--world {args.world}: there are {', '.join(leagues.worlds)}")
    args.out.mkdir(parents=True, exist_ok=True)
    data = open_data(args.world, args.data, args.sealed_seed, args.sealed_count)
    cells = {cell.digest: cell for group in args.cells for cell in leagues.group(group).cells.values()}
    bench = Bench(leagues, leagues.worlds[args.world], data, args.out, args.rounds, getattr(args, "costs_of", None))
    return bench, list(cells.values())


def page(args: argparse.Namespace) -> None:
    from bench.aligned_page import read_runs
    from bench.leagues_page import write_page
    from bench.leagues_scaling import write_scaling
    from bench.leagues_short import write_short

    write_page(args.out)
    write_scaling(args.out)
    write_short(args.out, read_runs(args.out), read_leagues())


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    for name, function, words in (("run", run, "make the missing runs"), ("cost", cost, "measure the missing costs")):
        verb = verbs.add_parser(name, help=words)
        verb.add_argument("--world", required=True, help="a world of leagues_cells.toml: scenes, flickr8k")
        verb.add_argument("--data", help="a folder of pairs; for scenes by default the built-in ones")
        verb.add_argument("--cells", nargs="+", required=True, help="groups of leagues_cells.toml, or GROUP/CELL")
        verb.add_argument("--sealed-seed", type=int, default=1, help="scenes: seed of the test pairs")
        verb.add_argument("--sealed-count", type=int, default=5000, help="scenes: test pairs")
        verb.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of a cost ratio")
        verb.add_argument("--out", type=Path, required=True)
        verb.set_defaults(run=function)
        if name == "run":
            verb.add_argument("--seeds", type=int, default=3)
            verb.add_argument("--first-seed", type=int, default=0)
            verb.add_argument("--budget", required=True, help="a budget of the world, or core-seconds")
            verb.add_argument("--cache", choices=("both", INCLUDED, AMORTISED), default="both")
            verb.add_argument(
                "--costs-of",
                help="take the costs of other data, scenes-8000: steps as there, caches by "
                "the number of pairs; so all amounts of data have the same steps",
            )
            verb.add_argument("--share", default="0/1", help="which seeds this process takes: 0/2 takes the even ones")
    writer = verbs.add_parser("page", help="write the page of all runs, and that of the amounts of data")
    writer.add_argument("--out", type=Path, required=True)
    writer.set_defaults(run=page)
    args = parser.parse_args(argv)
    args.run(args)


if __name__ == "__main__":
    main()
