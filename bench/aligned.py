"""Makes many short runs of `--recipe aligned` on one data set, paired by seed, and compares cells with intervals.

A run of heads on stored rows takes seconds, so thirty seeds of a cell take minutes. Rows of images and captions are
computed once (train/tower_rows.py) and held in memory; every run builds its own heads, loss and optimiser with the
functions that `train` uses, sees the pairs in the order that its seed gives, and is scored on the same held-out parts.
Cells of a seed see the same pairs in the same order.

    python -m bench.aligned run  --data DIR --cells orders --seeds 30 --out docs/study/aligned
    python -m bench.aligned page --out docs/study/aligned

`run` appends a line to OUT/runs.jsonl after each run and makes no run twice, so it can be stopped at any time. Several
processes may share the work: --share 0/2 and --share 1/2 take every other seed. Cells are in aligned_cells.toml.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dinorankclip.config import TrainSettings, with_changes
from dinorankclip.data.samples import Purpose, below, generator, permutation, shared_ids
from dinorankclip.device import Placement
from dinorankclip.evaluate.retrieval import retrieval_scores
from dinorankclip.losses.objective import Objective
from dinorankclip.methods import traits_of
from dinorankclip.models.aligned import AlignedModel
from dinorankclip.presets import default_settings
from dinorankclip.train.aligned_setup import new_aligned_model
from dinorankclip.train.assemble import RunParts, assemble
from dinorankclip.train.step import Updater, backward
from dinorankclip.types import Batch, Progress, Source, View
from dinorankclip.validate import validated

CELLS = Path(__file__).parent / "aligned_cells.toml"
RUNS = "runs.jsonl"
PLACEMENT = Placement(torch.device("cpu"), "fp32", "bench")


@dataclass
class Part:
    """Holds rows of a part: images [n, F], captions [T, G] by place in `captions`, and the captions of each image."""

    images: Tensor
    texts: Tensor
    captions: list[tuple[str, ...]]
    keys: list[str]

    @property
    def first_caption(self) -> np.ndarray:
        """Return the place of each image's first caption."""
        return np.cumsum([0, *(len(group) for group in self.captions)])[:-1]


def read_cells(group: str) -> dict[str, dict[str, Any]]:
    """Return the cells of a group: name → changes of settings."""
    table = tomllib.loads(CELLS.read_text(encoding="utf-8"))
    shared = table[group].pop("shared", {})
    return {name: shared | changes for name, changes in table[group].items()}


def cell_settings(data: str, changes: dict[str, Any], seed: int) -> TrainSettings:
    method = changes.get("method", "clip")
    base = default_settings("flickr8k", method, "aligned")
    own = {name: value for name, value in changes.items() if name != "method"}
    own = {"aligned.start": "random"} | {name: None if value == "absent" else value for name, value in own.items()}
    return validated(with_changes(base, {"data": data, "seed": seed, **own}))


def rows_of(parts: RunParts, part: str, source: Source) -> Part:
    assert parts.frozen is not None
    stored = parts.frozen.rows[part]
    captions = [source.captions(index) for index in range(len(source))]
    images = torch.stack([stored(index) for index in range(len(source))])
    texts = parts.tokenizer([text for group in captions for text in group])
    return Part(images, texts, captions, [source.key(index) for index in range(len(source))])


@dataclass
class Bench:
    """Holds the rows of all parts with dense tokens, from which cells take what they use."""

    model: AlignedModel  # its bases and scales serve all cells
    parts: dict[str, Part]

    @classmethod
    def open(cls, data: str, changes: dict[str, Any]) -> Bench:
        settings = with_changes(cell_settings(data, changes, 0), {"budget.batch": 64, "budget.epochs": 1})
        parts = assemble(settings)
        sources = {"train": parts.train, **parts.held_out}
        model = parts.state.model
        assert isinstance(model, AlignedModel)
        return cls(model, {part: rows_of(parts, part, source) for part, source in sources.items()})

    def run(self, settings: TrainSettings, items: int | None = None) -> dict[str, Any]:
        """Train and score one run; `items` takes that many training images, the same for all cells of a seed."""
        begin = time.process_time()
        torch.manual_seed(settings.seed)
        train = self.parts["train"]
        places = permutation(10_000 + settings.seed, 0, len(train.keys))[:items]
        model = new_aligned_model(settings)
        self._prepare(model, places)
        objective = Objective(model.dim, settings.method, settings.loss, settings.seed)
        model.gives_summaries = objective.needs_teacher
        model.train()
        batch, epochs = settings.budget.batch, settings.budget.epochs
        steps_per_epoch = len(places) // batch
        steps = steps_per_epoch * epochs
        updater = Updater({"model": model, "objective": objective}, settings.optim, steps)
        report: dict[str, float] = {}
        for step, made in enumerate(self._batches(model, settings, places, steps)):
            progress = Progress(step, steps, epochs)
            last = step == steps - 1
            terms = backward(model, objective, made, progress, PLACEMENT, None, last)
            updater.step(progress, model.logit_scale)
            report = terms.report if last else report
        seconds = time.process_time() - begin
        return {"scores": self._scores(model), "report": report, "core_seconds": round(seconds, 1), "steps": steps}

    def _prepare(self, model: AlignedModel, places: np.ndarray) -> None:
        """Give a new model the bases of the shared rows, and scales of its own training rows."""
        for branch in ("image", "text"):
            if model.design.fuses(branch):
                getattr(model, f"{branch}_basis").copy_(getattr(self.model, f"{branch}_basis"))
        train = self.parts["train"]
        model.image_head.set_scale(train.images[places, : model.layouts["image"].summary])
        texts = train.texts[train.first_caption[places], : model.layouts["text"].summary]
        model.text_head.set_scale(texts)

    def _batches(self, model: AlignedModel, settings: TrainSettings, places: np.ndarray, steps: int) -> Iterator[Batch]:
        train, batch, seed = self.parts["train"], settings.budget.batch, settings.seed
        first, second = train.first_caption, traits_of(settings.method).second_caption
        per_epoch = len(places) // batch
        image_dim, text_dim = model.layouts["image"].dim, model.layouts["text"].dim
        for step in range(steps):
            epoch, row = divmod(step, per_epoch)
            order = permutation(seed, epoch, len(places))[row * batch : (row + 1) * batch]
            chosen = places[order]
            draws = generator(seed, Purpose.CAPTION, epoch, row, 0)
            drawn = np.array([below(draws, len(train.captions[place])) for place in chosen])
            shift = np.array([1 + below(draws, max(1, len(train.captions[place]) - 1)) for place in chosen])
            others = (drawn + shift) % np.array([len(train.captions[place]) for place in chosen])
            captions = [train.captions[place][at] for place, at in zip(chosen, drawn)]
            keys = [train.keys[place] for place in chosen]
            groups = torch.tensor([shared_ids_of(key, caption) for key, caption in zip(keys, captions)])
            yield Batch(
                images=train.images[chosen, :image_dim],
                texts=train.texts[first[chosen] + drawn, :text_dim],
                keys=keys,
                views=[View()] * batch,
                captions=captions,
                second_texts=train.texts[first[chosen] + others, :text_dim] if second else None,
                groups=groups,
            )

    @torch.inference_mode()
    def _scores(self, model: AlignedModel) -> dict[str, float]:
        model.eval()
        numbers: dict[str, float] = {}
        image_dim, text_dim = model.layouts["image"].dim, model.layouts["text"].dim
        for name in ("val", "test"):
            part = self.parts[name]
            images = torch.cat([model.encode_image(rows[:, :image_dim]) for rows in part.images.split(512)])
            texts = torch.cat([model.encode_text(rows[:, :text_dim]) for rows in part.texts.split(2048)])
            for score in retrieval_scores(images, texts, part.captions):
                numbers[f"{name}/{score.name}"] = round(score.value, 6)
        return numbers


def shared_ids_of(key: str, caption: str) -> list[int]:
    from dinorankclip.data.samples import Sample

    return shared_ids(Sample(key, torch.empty(0), View(), caption))


def key_of(cell: str, changes: dict[str, Any], data: str, seed: int) -> str:
    """Name a run by its cell as the file defines it: a setting that is added later makes no run again."""
    text = json.dumps([Path(data).name, {name: changes[name] for name in sorted(changes) if name != "most_seeds"}])
    return f"{cell}/{seed}/{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    groups = {group: read_cells(group) for group in args.cells}
    args.out.mkdir(parents=True, exist_ok=True)
    share, shares = map(int, args.share.split("/"))
    path = args.out / (RUNS if shares == 1 else f"runs-{share}.jsonl")
    done = {json.loads(line)["key"] for file in args.out.glob("runs*.jsonl") for line in file.open()}
    every = [changes for cells in groups.values() for changes in cells.values()]
    fused = max((c.get("aligned.fused", "image") for c in every), key=len)
    variant = next((c["fusion.variant"] for c in every if c.get("fusion.variant", "none") != "none"), "none")
    bench = Bench.open(args.data, {"aligned.fused": fused, "fusion.variant": variant})
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        if seed % shares != share:
            continue
        for group, cells in groups.items():
            for cell, changes in cells.items():
                own = dict(changes)
                items, most = own.pop("items", None), own.pop("most_seeds", None)
                settings = cell_settings(args.data, own, seed)
                key = key_of(f"{group}/{cell}", changes, args.data, seed)
                if key in done or (most is not None and seed >= most):
                    continue
                record = {"key": key, "group": group, "cell": cell, "seed": seed} | bench.run(settings, items)
                with path.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                shown = record["scores"]
                print(
                    f"{group}/{cell} seed {seed}: val {100 * shown['val/mean R@1']:.2f} test i→t "
                    f"{100 * shown['test/i2t R@1']:.1f} t→i {100 * shown['test/t2i R@1']:.1f}, "
                    f"{record['core_seconds']} s",
                    flush=True,
                )


def page(args: argparse.Namespace) -> None:
    from bench.aligned_page import write_page

    write_page(args.out)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    runner = verbs.add_parser("run", help="make the missing runs")
    runner.add_argument("--data", required=True)
    runner.add_argument("--cells", nargs="+", required=True, help="groups of aligned_cells.toml")
    runner.add_argument("--seeds", type=int, default=3)
    runner.add_argument("--first-seed", type=int, default=0)
    runner.add_argument("--share", default="0/1", help="which seeds this process takes: 0/2 takes the even ones")
    runner.add_argument("--threads", type=int, default=1)
    runner.add_argument("--out", type=Path, required=True)
    runner.set_defaults(run=run)
    writer = verbs.add_parser("page", help="write the page of all runs")
    writer.add_argument("--out", type=Path, required=True)
    writer.set_defaults(run=page)
    args = parser.parse_args(argv)
    args.run(args)


if __name__ == "__main__":
    main()
