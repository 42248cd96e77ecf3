"""What a student learns of a teacher by each criterion (`bench.teacher`)."""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from bench.alternation import seconds
from dinorankclip_studies.verdicts import LEVEL, t_quantile

CRITERIA = ("gram+rel", "mse", "cosine", "rkd", "crd")


def criteria(options: argparse.Namespace) -> dict:
    """Distil-only runs, scored on held-out images after the same ridge map (D17)."""
    results: dict[str, list[dict[str, float]]] = {}
    root = Path(tempfile.mkdtemp(prefix="criteria-"))
    for criterion in CRITERIA:
        for seed in range(options.seeds):
            run = root / f"{criterion}-{seed}"
            words = [sys.executable, "-m", "dinorankclip", "train", "--preset", options.preset, "--method", "distil"]
            words += ["--data", options.data, "--distil.cache", options.cache, "--distil.criterion", criterion]
            words += ["--seed", str(seed), "--budget.epochs", str(options.epochs), "--run", str(run)]
            words += ["--distil.weight", "1", "--distil.branches", options.branches, "--record.no-tensorboard"]
            words += batch_flags(options)
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            taken = seconds(partial(subprocess.run, words, check=True, **quiet))
            scores = json.loads((run / "scores.json").read_text())["fidelity"]
            results.setdefault(criterion, []).append(scores | {"seconds": taken})
            print(f"{criterion} seed {seed}: {taken:.0f} s", json.dumps(scores))
    shutil.rmtree(root)
    columns = ["image gram distance", "image cosine", "image centred cosine", "image own projector's cosine", "seconds"]
    print("\n| criterion | " + " | ".join(columns) + " |\n|" + " --- |" * (1 + len(columns)))
    for criterion, runs in results.items():
        cells = [interval([run[c] for run in runs]) if c in runs[0] else "–" for c in columns]
        print(f"| {criterion} | " + " | ".join(cells) + " |")
    mean = statistics.mean(run["image cosine of the mean"] for run in results["gram+rel"])
    print(f"\nthe teacher's training mean alone has a held-out cosine of {mean:.4f}")
    return results


def batch_flags(options: argparse.Namespace) -> list[str]:
    return ["--budget.batch", str(options.batch)] if options.batch else []


def interval(values: list[float]) -> str:
    """Mean ± half-width of the 95 % t-interval."""
    if len(values) < 2:
        return f"{values[0]:.4f}"
    half = t_quantile(0.5 + LEVEL / 2, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.mean(values):.4f} ± {half:.4f}"
