"""The linear probe's logistic regression against scikit-learn's, on real features, over the whole grid of C.

    python -m bench.probe --sets DATA/caltech101 DATA/cub100 --threads 2

A set is a classification folder in the clip-benchmark layout. Features are what a frozen teacher says of its images,
scaled as the probe scales them (`scoring.probe.Scaling`), in single precision; both sides get the same numbers. Needs
the extra `bench` (scikit-learn) and, for the default teacher, `teachers`. Run it with nothing else running.

Sides, one after the other in every round:
  ours            certified to 1e-4 of the least objective
  same accuracy   LogisticRegression (lbfgs), for every C with the loosest of tol = 1e-4, 1e-5, … that ends within 1e-4
                  of the least objective, in double precision where it must; looking for these is not timed
  warm            the same, each C started at the solution of the one before (warm_start)
  default         LogisticRegression as it is, tol = 1e-4: it ends without a warning, far from the least objective

Every scikit-learn fit ends without a ConvergenceWarning. The least objective is the lower of scikit-learn's at
tol = 1e-9 and ours at 1e-9, both in double precision; the accuracy to compare with is scikit-learn's there. Wanted:
ours at least 5 times faster, objectives within 1e-4, test accuracy within 0.3 points, at every C. The chosen C is the
one that the probe takes by itself, on a validation part carved from train.

On two cores two sets take about ten minutes, half of it for the least objectives and the loosest tolerances.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from torch import Tensor
from tqdm import tqdm

from bench.harness import alternate, in_words, machine_now, ratio, timed, today, write_dated, written
from bench.probe_reference import Problem, Setting, least_objectives, loosest, whole_path
from dinorankclip.data.benchmark_sets import BenchmarkSet, find_sets, open_set
from dinorankclip.data.decode import decode
from dinorankclip.data.splits import carve_validation
from dinorankclip.evaluate.logistic import Fit, fit_path
from dinorankclip.evaluate.probe import GRID, Scaling, linear_probe
from dinorankclip.teachers.registry import open_teacher

# What `bench.probe` found, in the terminal and as a page.


def in_short(found: dict) -> str:
    """Return the line that the terminal shows when a set is done."""
    lines = [
        f"  objective off by at most {found['objective off by at most']:.1e} of it (wanted 1e-4)",
        f"  accuracy off by at most {found['accuracy off by at most']:.2f} points (wanted 0.3), "
        f"{found['accuracy off at the chosen C']:.2f} at the chosen C = {found['chosen C']:.3g}",
    ]
    for name, taken in found["seconds"].items():
        times = ", ".join(f"{each:.2f}" for each in taken)
        lines.append(f"  {name:<14} {times} s")
        if name in found["times faster"]:
            lines[-1] += f", ours {written(found['times faster'][name], digits=1)} times faster"
    return "\n".join(lines)


def as_markdown(record: dict) -> str:
    lines = [
        f"# Linear probe against scikit-learn, {record['date']}",
        "",
        f"{in_words(record['machine'])}; scikit-learn has as many threads. Features: {record['features']}.",
        f"The whole path of {len(GRID)} values of C, {GRID[0]:g} … {GRID[-1]:g}; ratios: median (range) over "
        "alternating rounds. The head of `bench/probe.py` says what the sides are.",
        "",
        "| set | items | ours s | same accuracy s | warm s | default s "
        "| ours faster than same accuracy (wanted 5) | than warm (wanted 5) | than default "
        "| objective off by at most (wanted 1e-4) | accuracy off by at most (wanted 0.3) | at the chosen C |",
        "| --- |" + " --- |" * 11,
    ]
    for name, found in record["results"].items():
        middle = [f"{statistics.median(taken):.2f}" for taken in found["seconds"].values()]
        faster = [written(ratio, digits=1) for ratio in found["times faster"].values()]
        off = [
            f"{found['objective off by at most']:.1e}",
            f"{found['accuracy off by at most']:.2f}",
            f"{found['accuracy off at the chosen C']:.2f} (C = {found['chosen C']:.3g})",
        ]
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


BATCH = 64


@dataclass(frozen=True)
class Arguments:
    sets: tuple[str, ...]
    """Folders of classification sets."""
    teacher: str = "efficientnet-lite0"
    input_size: int = 128
    widths: tuple[int, ...] = (0,)
    """0: the features as they are; else a random projection to so many, e.g. 512."""
    rounds: int = 2
    threads: int = 2
    features: Path = Path("built/bench-probe")
    """Where extracted features are kept."""
    out: Path = Path("docs/bench")


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
                name, classes = f"{name}, {rows[0].shape[1]} wide", len(benchmark.class_names)
                C = chosen(benchmark, *sides, train_labels, test_labels)
                found.append(Problem(name, rows[0], train_labels, rows[1], test_labels, classes, C))
    return found


def chosen(benchmark: BenchmarkSet, train: Tensor, test: Tensor, labels: Tensor, test_labels: Tensor) -> float:
    source = benchmark.open("train")
    rest, val = carve_validation([source.key(index) for index in range(len(source))], labels.numpy())
    parts = train[rest], labels[rest], train[val], labels[val], test, test_labels
    return linear_probe(*parts, len(benchmark.class_names)).C


# -------------------------------------------------------------------------------------------------------------- race


def measure(problem: Problem, rounds: int) -> dict:
    least, excess, reference_accuracy = least_objectives(problem)
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
            "its tightest above least": tightest,
            "ours accuracy": problem.accuracy(own.weight, own.bias),
            "its accuracy": accuracy,
            "default above least": problem.objective(*theirs, C) / objective - 1,
            "default accuracy": problem.accuracy(*theirs),
            "tol": cold_setting.tol,
            "double": cold_setting.double,
            "warm tol": warm_setting.tol,
        }
        for C, own, objective, tightest, accuracy, theirs, cold_setting, warm_setting in zip(
            GRID, ours, least, excess, reference_accuracy, as_default, cold, warm
        )
    ]
    sides = {
        "ours": timed(lambda: fit_path(problem.train, problem.train_labels, problem.classes, GRID)),
        "same accuracy": timed(lambda: whole_path(problem, cold)),
        "warm": timed(lambda: whole_path(problem, warm, warm=True)),
        "default": timed(lambda: whole_path(problem, default)),
    }
    # Nothing to warm up: every side has run above.
    seconds = alternate(sides, rounds, warmups=0, title=f"{problem.name}: race")
    off = {row["C"]: abs(row["ours accuracy"] - row["its accuracy"]) for row in table}
    return {
        "items": len(problem.train),
        "width": problem.train.shape[1],
        "classes": problem.classes,
        "seconds": seconds,
        "times faster": {name: ratio(taken, seconds["ours"]) for name, taken in seconds.items() if name != "ours"},
        "by C": table,
        "objective off by at most": max(abs(row["ours above least"]) for row in table),
        "accuracy off by at most": max(off.values()),
        "chosen C": problem.chosen,
        "accuracy off at the chosen C": off[problem.chosen],
    }


def main(argv: list[str] | None = None) -> None:
    arguments = tyro.cli(Arguments, description=__doc__, args=argv)

    from threadpoolctl import threadpool_limits

    torch.set_num_threads(arguments.threads)
    about = machine_now(arguments.threads, ("torch", "scikit-learn"))
    given = problems(arguments)
    results = {}
    with threadpool_limits(arguments.threads):
        for problem in given:
            results[problem.name] = found = measure(problem, arguments.rounds)
            print(f"\n{problem.name}\n{in_short(found)}", flush=True)
    record = {
        "date": today(),
        "machine": about,
        "features": f"summaries of {arguments.teacher} at {arguments.input_size} px",
        "rounds": arguments.rounds,
        "results": results,
    }
    write_dated(arguments.out, "probe", record["date"], record, as_markdown(record))


if __name__ == "__main__":
    main()
