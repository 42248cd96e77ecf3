"""The linear probe's logistic regression against scikit-learn's, on real features, over the whole grid of C.

    python bench/probe.py --sets DATA/caltech101 DATA/cub100 --threads 2

A set is a classification folder in the clip-benchmark layout. Features are what a frozen teacher says of its images,
scaled as the probe scales them (`scoring.probe.Scaling`), in single precision; both sides get the same numbers. Needs
the extra `bench` (scikit-learn) and, for the default teacher, `teachers`. Run it with nothing else running.

Sides, one after the other in every round:
  ours            certified to 1e-4 of the least objective
  same accuracy   LogisticRegression (lbfgs), for every C with the loosest of tol = 1e-4, 1e-5, … that ends within 1e-4
                  of the least objective, in double precision where it must; looking for these is not timed
  warm            the same, each C started at the solution of the one before (warm_start)
  default         LogisticRegression as it is, tol = 1e-4: it ends without a warning, far from the least objective

Every scikit-learn fit ends without a ConvergenceWarning. The least objective is scikit-learn's at tol = 1e-9 in double
precision. Wanted: ours at least 5 times faster, objectives within 1e-4, test accuracy within 0.3 points, at every C.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor
from tqdm import tqdm

from dinorankclip.data.benchmark_sets import BenchmarkSet, find_sets, open_set
from dinorankclip.data.images import decode
from dinorankclip.dino import open_teacher
from dinorankclip.scoring.logistic import Fit, fit_path
from dinorankclip.scoring.probe import GRID, Scaling

ACCURACY = 1e-4  # of the objective, relative
LADDER = tuple(10.0**-power for power in range(4, 10))
BATCH = 64

Classifier = tuple[Tensor, Tensor]  # weights [K, W] and bias [K]


@dataclass(frozen=True)
class Arguments:
    sets: tuple[str, ...]
    """Folders of classification sets."""
    teacher: str = "efficientnet-lite0"
    input_size: int = 128
    widths: tuple[int, ...] = (0, 512)
    """0: the features as they are; else a random projection to so many."""
    rounds: int = 3
    threads: int = 2
    features: Path = Path("built/bench-probe")
    """Where extracted features are kept."""
    out: Path = Path("docs/bench")


@dataclass(frozen=True)
class Problem:
    """Scaled features and labels of one set, for both sides."""

    name: str
    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    classes: int

    def objective(self, weight: Tensor, bias: Tensor, C: float) -> float:
        logits = self.train.double() @ weight.double().T + bias.double()
        loss = F.cross_entropy(logits, self.train_labels, reduction="sum")
        return (C * loss + 0.5 * weight.double().square().sum()).item()

    def accuracy(self, weight: Tensor, bias: Tensor) -> float:
        predicted = (self.test.double() @ weight.double().T + bias.double()).argmax(1)
        return 100 * (predicted == self.test_labels).double().mean().item()


@dataclass(frozen=True)
class Setting:
    """How scikit-learn is asked for one C."""

    C: float
    tol: float
    double: bool = False


# -------------------------------------------------------------------------------------------------------- features


def features_of(benchmark: BenchmarkSet, split: str, arguments: Arguments) -> tuple[Tensor, Tensor]:
    """The teacher's summaries [N, W] and class indices [N], extracted once."""
    file = (
        arguments.features
        / f"{benchmark.name}-{split}-{arguments.teacher.replace(':', '-')}-{arguments.input_size}.npz"
    )
    source = benchmark.open(split)
    if file.exists():
        kept = np.load(file)
        if kept["fingerprint"] == source.fingerprint:
            return torch.from_numpy(kept["features"]), torch.from_numpy(source.labels)
    teacher = open_teacher(arguments.teacher, arguments.input_size)
    rows = []
    for start in tqdm(range(0, len(source), BATCH), f"{benchmark.name}/{split}", unit="batch"):
        images = [decode(source.image(index)) for index in range(start, min(start + BATCH, len(source)))]
        tensors = [torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))) for image in images]
        rows.append(teacher.dense(torch.stack([teacher.preprocessing.resize(image) for image in tensors])).summary)
    features = torch.cat(rows)
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, features=features.numpy(), fingerprint=source.fingerprint)
    return features, torch.from_numpy(source.labels)


def problems(arguments: Arguments) -> list[Problem]:
    found = []
    for where in arguments.sets:
        for location in find_sets(where):
            benchmark = open_set(location)
            train, train_labels = features_of(benchmark, "train", arguments)
            test, test_labels = features_of(benchmark, "test", arguments)
            for width in arguments.widths:
                name, sides = benchmark.name, (train, test)
                if width:
                    draw = torch.Generator().manual_seed(0)
                    projection = torch.randn(train.shape[1], width, generator=draw) / width**0.5
                    sides = train @ projection, test @ projection
                scaling = Scaling.of(sides[0])
                rows = [scaling(side) for side in sides]
                name = f"{name}, {rows[0].shape[1]} wide"
                found.append(Problem(name, rows[0], train_labels, rows[1], test_labels, len(benchmark.class_names)))
    return found


# ------------------------------------------------------------------------------------------------------ scikit-learn


class Sklearn:
    """LogisticRegression on one problem. With `warm`, a fit starts where the last one ended."""

    def __init__(self, problem: Problem, warm: bool = False) -> None:
        from sklearn.linear_model import LogisticRegression

        self._rows = {False: problem.train.numpy(), True: problem.train.double().numpy()}
        self._labels = problem.train_labels.numpy()
        self._model = LogisticRegression(solver="lbfgs", max_iter=1_000_000, warm_start=warm)

    def fit(self, setting: Setting) -> Classifier:
        """A ConvergenceWarning is an error."""
        from sklearn.exceptions import ConvergenceWarning

        with warnings.catch_warnings():
            warnings.simplefilter("error", ConvergenceWarning)
            self._model.set_params(C=setting.C, tol=setting.tol).fit(self._rows[setting.double], self._labels)
        return torch.from_numpy(self._model.coef_.copy()), torch.from_numpy(self._model.intercept_.copy())

    def start_at(self, classifier: Classifier) -> None:
        self._model.coef_, self._model.intercept_ = (part.numpy().copy() for part in classifier)


def whole_path(problem: Problem, settings: Sequence[Setting], warm: bool = False) -> list[Classifier]:
    model = Sklearn(problem, warm)
    return [model.fit(setting) for setting in settings]


def least_objectives(problem: Problem) -> tuple[list[float], list[float]]:
    """Objective and test accuracy at tol = 1e-9, for each C."""
    settings = [Setting(C, 1e-9, double=True) for C in GRID]
    model = Sklearn(problem, warm=True)
    found = [model.fit(setting) for setting in tqdm(settings, f"{problem.name}: least objectives", unit="fit")]
    return [problem.objective(*one, C) for one, C in zip(found, GRID)], [problem.accuracy(*one) for one in found]


def loosest(problem: Problem, least: Sequence[float], warm: bool) -> list[Setting]:
    """For each C the cheapest setting that reaches the accuracy; with `warm`, after the settings before it."""
    chosen: list[Setting] = []
    last: Classifier | None = None
    for C, objective in zip(tqdm(GRID, f"{problem.name}: loosest tolerances", unit="fit"), least):
        for setting in (Setting(C, tol, double) for double in (False, True) for tol in LADDER):
            model = Sklearn(problem, warm)
            if warm and last is not None:
                model.start_at(last)
            try:
                found = model.fit(setting)
            except UserWarning:  # what a ConvergenceWarning is: this precision was not enough
                continue
            if problem.objective(*found, C) <= objective * (1 + ACCURACY):
                chosen.append(setting)
                last = found
                break
        else:
            raise RuntimeError(f"scikit-learn does not reach the least objective at C = {C:g}")
    return chosen


# -------------------------------------------------------------------------------------------------------------- race


def race(sides: dict[str, Callable[[], object]], rounds: int, title: str) -> dict[str, list[float]]:
    """Seconds of each side in each round, forwards and backwards by turns; a first round is not counted."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in tqdm(range(1 + rounds), title, unit="round"):
        for name in list(sides)[:: -1 if turn % 2 else 1]:
            begin = time.perf_counter()
            sides[name]()
            times[name].append(time.perf_counter() - begin)
    return {name: taken[1:] for name, taken in times.items()}


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    each = [a / b for a, b in zip(above, below)]
    return {"median": statistics.median(each), "least": min(each), "most": max(each)}


def measure(problem: Problem, rounds: int) -> dict:
    least, reference_accuracy = least_objectives(problem)
    cold, warm = loosest(problem, least, warm=False), loosest(problem, least, warm=True)
    default = [Setting(C, 1e-4) for C in GRID]
    ours: list[Fit] = fit_path(problem.train, problem.train_labels, problem.classes, GRID)
    as_default = whole_path(problem, default)
    table = [
        {
            "C": C,
            "gradients": own.iterations,
            "ours above least": problem.objective(own.weight, own.bias, C) / objective - 1,
            "certified": own.gap / own.objective,
            "ours accuracy": problem.accuracy(own.weight, own.bias),
            "its accuracy": accuracy,
            "default above least": problem.objective(*theirs, C) / objective - 1,
            "default accuracy": problem.accuracy(*theirs),
            "tol": cold_setting.tol,
            "double": cold_setting.double,
            "warm tol": warm_setting.tol,
        }
        for C, own, objective, accuracy, theirs, cold_setting, warm_setting in zip(
            GRID, ours, least, reference_accuracy, as_default, cold, warm
        )
    ]
    sides = {
        "ours": lambda: fit_path(problem.train, problem.train_labels, problem.classes, GRID),
        "same accuracy": lambda: whole_path(problem, cold),
        "warm": lambda: whole_path(problem, warm, warm=True),
        "default": lambda: whole_path(problem, default),
    }
    seconds = race(sides, rounds, f"{problem.name}: race")
    return {
        "items": len(problem.train),
        "width": problem.train.shape[1],
        "classes": problem.classes,
        "seconds": seconds,
        "times faster": {name: ratio(taken, seconds["ours"]) for name, taken in seconds.items() if name != "ours"},
        "by C": table,
        "objective off by at most": max(abs(row["ours above least"]) for row in table),
        "accuracy off by at most": max(abs(row["ours accuracy"] - row["its accuracy"]) for row in table),
    }


# ------------------------------------------------------------------------------------------------------------ record


def as_markdown(record: dict) -> str:
    about = record["machine"]
    lines = [
        f"# Linear probe against scikit-learn, {record['date']}",
        "",
        f"{about['cores']} cores, {about['threads']} threads for each side, load at the start {about['load']}, torch "
        f"{about['torch']}, scikit-learn {about['scikit-learn']}. Features: {record['features']}.",
        f"The whole path of {len(GRID)} values of C, {GRID[0]:g} … {GRID[-1]:g}; ratios: median (range) over "
        "alternating rounds. The head of `bench/probe.py` says what the sides are.",
        "",
        "| set | items | ours s | same accuracy s | warm s | default s "
        "| ours faster than same accuracy (wanted 5) | than warm (wanted 5) | than default "
        "| objective off by (wanted 1e-4) | accuracy off by (wanted 0.3) |",
        "| --- |" + " --- |" * 10,
    ]
    for name, found in record["results"].items():
        middle = [f"{statistics.median(taken):.2f}" for taken in found["seconds"].values()]
        faster = [f"{r['median']:.1f} ({r['least']:.1f}–{r['most']:.1f})" for r in found["times faster"].values()]
        off = f"{found['objective off by at most']:.1e}", f"{found['accuracy off by at most']:.2f}"
        lines.append(f"| {name} | {' | '.join([str(found['items']), *middle, *faster, *off])} |")
    for name, found in record["results"].items():
        lines += [
            "",
            f"## {name}",
            "",
            "| C | gradients | ours above least | certified | accuracy | least objective's accuracy "
            "| tol for same accuracy (warm) | default above least | default's accuracy |",
            "| --- |" + " --- |" * 8,
        ]
        for row in found["by C"]:
            tol = f"{row['tol']:.0e}{' double' if row['double'] else ''} ({row['warm tol']:.0e})"
            lines.append(
                f"| {row['C']:.3g} | {row['gradients']} | {row['ours above least']:.1e} | {row['certified']:.1e} "
                f"| {row['ours accuracy']:.2f} | {row['its accuracy']:.2f} | {tol} "
                f"| {row['default above least']:.1e} | {row['default accuracy']:.2f} |"
            )
    return "\n".join(lines) + "\n"


def main(arguments: Arguments) -> None:
    from threadpoolctl import threadpool_limits

    torch.set_num_threads(arguments.threads)
    load = f"{os.getloadavg()[0]:.1f}"
    given = problems(arguments)
    with threadpool_limits(arguments.threads):
        results = {problem.name: measure(problem, arguments.rounds) for problem in given}
    record = {
        "date": datetime.date.today().isoformat(),
        "machine": {
            "cores": os.cpu_count(),
            "threads": arguments.threads,
            "load": load,
            "torch": torch.__version__,
            "scikit-learn": version("scikit-learn"),
        },
        "features": f"summaries of {arguments.teacher} at {arguments.input_size} px",
        "rounds": arguments.rounds,
        "results": results,
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    target = arguments.out / f"probe-{record['date']}"
    target.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    target.with_suffix(".md").write_text(as_markdown(record))
    print(f"\n{as_markdown(record)}\nwritten to {target}.json and .md")


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
