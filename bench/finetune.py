"""Fine-tunes trunks that were trained here on other data, and compares the ways to do it: own data and a general set.

    python -m bench.finetune start --data DIR               # the two starting models, about ten core-minutes each
    python -m bench.finetune run   --data DIR --cells full old lora --seeds 3 --out docs/study/finetune
    python -m bench.finetune page  --out docs/study/finetune

`run` appends a line to OUT/runs.jsonl after each run and makes no run twice; a stopped run resumes. `--part val` scores
validation parts and writes OUT/tuning.jsonl, for the choice of defaults. Cells and tasks are in finetune_cells.toml.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

import dinorankclip
from bench.finetune_data import BUILT, MIXTURES, held_out, prepare, task_of
from dinorankclip.data.benchmark_sets import find_sets
from dinorankclip.evaluate.embeddings import EmbeddingStore
from dinorankclip.evaluate.gains import Items, items_of, set_scores
from dinorankclip.evaluate.intervals import compare
from dinorankclip.io import write_json
from dinorankclip.models.folder import find_model
from dinorankclip.models.loaded import load_model
from dinorankclip.train.checkpoints import newest

CELLS = Path(__file__).parent / "finetune_cells.toml"
RUNS, TUNING, SUMMARY, COST = "runs.jsonl", "tuning.jsonl", "summary.json", "lora_cost.json"
HEAD = """\
# Study: fine-tuning

Made by `python -m bench.finetune page`; [predictions](predictions.md): the first round was written before any
run, the second after four results of test parts and a new division of the general sets.

Two trunks were trained here (`drc-small`, 64 px, `--recipe taught`, 480 core-seconds each): `captions` on Flickr8k,
PACS photo and flowers5, the start of the tasks cub and caltech; `names` on Caltech-101, CUB-100, PACS photo and
flowers5 with the captions "a photo of a NAME", the start of the Flickr8k tasks. The general set of a start is drawn
from the held-out photos of its own data: a sixth of them chooses the blend, another sixth is scored here. Own score:
image → text R@1 for names, that is zero-shot accuracy; mean recall for Flickr8k. Mean recall is the mean of R@1, R@5
and R@10 both ways, the captions of an image averaged first. Numbers are per cent before → after (difference in points
with a 95 % interval over images, the items averaged over seeds). "Blend" are the weights that such a run ends with;
the line above has those of its last step. Cells (finetune_cells.toml) see the same own pairs, and replay sees as many
of the start's beside them:

- `full`: the defaults where the data of the start are at hand: half of a batch is replayed, rate 3e-4
- `alone`: the defaults where they are not: rate 4e-5
- `lora`: as `full`, with LoRA of rank 8 and the rate 1e-2
- `old`: what the preset had before: rate 1e-4, decay 0.2, no layer-wise decay, no blend
"""
TABLE_HEAD = """\
| task | cell | seeds | own score | general: mean recall | general: image → text R@1 | α | rate | core-seconds |
| --- | --- | --: | --- | --- | --- | --- | --: | --: |"""
TUNING_HEAD = """\
| task | cell | rate | own validation, mean recall | general validation, mean recall |
| --- | --- | --: | --- | --- |"""
COST_HEAD = """\
| trunk, batch | parameters trained | step, full | step, LoRA | ratio | peak memory, full | peak memory, LoRA |
| --- | --: | --: | --: | --: | --: | --: |"""
START: dict[str, Any] = {
    "preset": "flickr8k", "recipe": "taught", "model.trunk": "drc-small", "distil.cache": "auto",
    "distil.teacher_size": 128, "budget.batch": 256, "budget.core_seconds": 480, "budget.threads": 1,
    "record.score_every": 10, "record.tensorboard": False,
}  # fmt: skip
TUNED: dict[str, Any] = {
    "preset": "finetune", "reading.flip": True, "budget.batch": 64, "budget.threads": 1, "record.tensorboard": False,
    "record.keep": 1, "record.save_every": 50, "tune.replay": None,
}  # fmt: skip


def start(name: str, data: Path) -> Path:
    """Train a starting model; the same call goes on with it."""
    folder = prepare(data)[name]
    return dinorankclip.train(**START | {"data": str(folder), "run": str(BUILT / "starts" / name)}).folder


def measured(model: Path, folder: Path, part: str) -> dict[str, Items]:
    """Return items by measure: `first` (image → text R@1) by image, and `recall` (mean recall) by image, or by images
    with the same captions."""
    scores = set_scores(load_model(model, device="cpu"), find_sets(str(folder))[0], part, EmbeddingStore())
    first = scores["i2t R@1"]
    return {"first": Items(np.asarray(first.items, float), first.clusters), "recall": items_of(scores)}


def run(args: argparse.Namespace) -> None:
    table = tomllib.loads(CELLS.read_text())
    folders, out = prepare(args.data), args.out / (RUNS if args.part == "test" else TUNING)
    args.out.mkdir(parents=True, exist_ok=True)
    done = {(line["task"], line["cell"], line["seed"]) for line in lines_of(out)}
    for seed in range(args.first_seed, args.seeds):
        for task in args.tasks or table["tasks"]:
            for cell in args.cells:
                if (task, cell, seed) not in done:
                    about = table["tasks"][task]
                    lines = one(task, about, cell, table["cells"][cell], seed, folders, args.part)
                    with out.open("a") as file:
                        file.writelines(json.dumps(line) + "\n" for line in lines)


def one(
    task: str, about: dict[str, Any], cell: str, changes: dict[str, Any], seed: int, folders: dict[str, Path], part: str
) -> list[dict[str, Any]]:
    """Make a run of a cell; return a line for the weights of its last step, and one for those that it ends with."""
    begin, name = BUILT / "starts" / about["start"], f"{task}-{cell}-{seed}"
    own, general = folders[task_of(about["data"])], folders[held_out(about["start"])]
    own_changes = {key: str(folders[about["start"]]) if value == "START" else value for key, value in changes.items()}
    settings = TUNED | {
        "data": str(own), "init": str(begin), "run": str(BUILT / "runs" / part / name), "seed": seed,
        "tune.general": str(general),
    } | about["settings"] | own_changes  # fmt: skip
    clock, cores = time.perf_counter(), time.process_time()
    log = BUILT / "logs" / f"{part}-{name}.log"
    log.parent.mkdir(exist_ok=True)
    with log.open("w") as file, contextlib.redirect_stdout(file):
        trained = dinorankclip.train(**settings)
    if not trained.finished:
        raise SystemExit(130)  # the same command goes on
    spent = {"minutes": (time.perf_counter() - clock) / 60, "core_seconds": time.process_time() - cores}
    held = trained.settings()
    folder = trained.folder / "checkpoints"
    ends = {cell: newest(folder)}
    if find_model(trained.folder).name == "chosen":
        ends[f"{cell}, blend"] = find_model(trained.folder)
    stored = json.loads((trained.folder / "scores.json").read_text())
    lines = []
    for row, weights in ends.items():
        assert weights is not None, "a finished run has a checkpoint"
        line: dict[str, Any] = {
            "task": task, "cell": row, "seed": seed, "lr": held.optim.lr, "steps": stored["step"],
            "alpha": stored.get("chosen", {}).get("alpha", 1.0) if row != cell else 1.0,
            **{key: round(value, 2) for key, value in spent.items()},
        }  # fmt: skip
        for of, data in (("own", own), ("general", general)):
            before, after = (measured(place, data, part) for place in (find_model(begin), weights))
            for measure in before:
                line[f"{of} {measure}"] = four_numbers(
                    before[measure].values, after[measure].values, before[measure].clusters
                )
            if part == "test":
                items = BUILT / "items"
                items.mkdir(exist_ok=True)
                np.savez_compressed(items / f"{task}-{row}-{seed}-{of}.npz", **{
                    f"{when} {measure}": held_items[measure].values
                    for when, held_items in (("before", before), ("after", after)) for measure in before
                }, **{f"clusters {measure}": of_image for measure, each in before.items()
                      if (of_image := each.clusters) is not None})  # fmt: skip
        lines.append(line)
    if part == "test" and seed > 0:
        shutil.rmtree(folder)  # room: the numbers stay
    print(f"{task} {cell} {seed}: {spent['core_seconds']:.0f} core-seconds", flush=True)
    return lines


def pooled(task: str, row: str, of: str, measure: str, seeds: list[int]) -> list[float] | None:
    """Return before, after, and low and high of their paired difference, items averaged over seeds first; None if the
    items are not on this machine."""
    files = [BUILT / "items" / f"{task}-{row}-{seed}-{of}.npz" for seed in seeds]
    if not all(file.is_file() for file in files):
        return None
    before, after = (np.mean([np.load(file)[f"{when} {measure}"] for file in files], 0) for when in ("before", "after"))
    return four_numbers(before, after, np.load(files[0]).get(f"clusters {measure}"))


def four_numbers(before: np.ndarray, after: np.ndarray, clusters: np.ndarray | None) -> list[float]:
    """Return the means before and after, and low and high of their paired difference."""
    found = compare(before, after, clusters)
    return [round(float(x), 6) for x in (before.mean(), after.mean(), found.low, found.high)]


def summarise(out: Path) -> dict[str, Any]:
    """Add the pooled differences that this machine can compute to OUT/summary.json, and return all of them."""
    path = out / SUMMARY
    summary: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    seeds: dict[tuple[str, str], list[int]] = {}
    for line in lines_of(out / RUNS):
        seeds.setdefault((line["task"], line["cell"]), []).append(line["seed"])
    for (task, row), made in seeds.items():
        for of in ("own", "general"):
            for measure in ("first", "recall"):
                if (found := pooled(task, row, of, measure, made)) is not None:
                    summary[f"{task}/{row}/{of} {measure}"] = {"seeds": len(made), "numbers": found}
    write_json(path, summary)
    return summary


def page(out: Path) -> None:
    """Write OUT/README.md from the runs."""
    summary, lines = summarise(out), lines_of(out / RUNS)
    tasks = list(tomllib.loads(CELLS.read_text())["tasks"])
    made = dict.fromkeys((line["task"], line["cell"]) for line in lines)
    rows = sorted(made, key=lambda row: tasks.index(row[0]))  # as they were made within a task
    text = [HEAD, "## Own data and the general set", "", TABLE_HEAD]
    for task, row in rows:
        of_row = [line for line in lines if (line["task"], line["cell"]) == (task, row)]
        measure = "recall" if task.startswith("flickr") else "first"
        own, general, first = (
            summary[f"{task}/{row}/{name}"]["numbers"] for name in (f"own {measure}", "general recall", "general first")
        )
        alpha = " ".join(f"{line['alpha']:.1f}" for line in of_row)
        text.append(
            f"| {task} | {row} | {len(of_row)} | {_points(own)} | {_points(general)} | {_points(first)} | {alpha} | "
            f"{of_row[0]['lr']:.0e} | {np.mean([line['core_seconds'] for line in of_row]):.0f} |"
        )
    if tuned := lines_of(out / TUNING):
        text += ["", "## Rates, on validation (seed 0)", "", TUNING_HEAD]
        for line in tuned:
            own, general = (line[f"{of} recall"] for of in ("own", "general"))
            text.append(f"| {line['task']} | {line['cell']} | {line['lr']:.0e} | {_points(own)} | {_points(general)} |")
    if (out / COST).is_file():
        cost = json.loads((out / COST).read_text())
        text += ["", "## A step of LoRA", "", cost["words"], "", COST_HEAD]
        text += [f"| {row['trunk']} | " + " | ".join(row["cells"]) + " |" for row in cost["rows"]]
    (out / "README.md").write_text("\n".join([*text, ""]), encoding="utf-8")


def _points(numbers: list[float]) -> str:
    before, after, low, high = (100 * number for number in numbers)
    return f"{before:.1f} → {after:.1f} ({after - before:+.1f} [{low:+.1f}, {high:+.1f}])"


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("start", "run", "page"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--names", nargs="*", default=tuple(MIXTURES))
    parser.add_argument("--tasks", nargs="*")
    parser.add_argument("--cells", nargs="*", default=("full", "old", "lora"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--part", choices=("test", "val"), default="test")
    parser.add_argument("--out", type=Path, default=Path("docs/study/finetune"))
    args = parser.parse_args(argv)
    if args.verb == "start":
        for name in args.names:
            start(name, args.data)
    elif args.verb == "run":
        run(args)
    else:
        page(args.out)


if __name__ == "__main__":
    main()
