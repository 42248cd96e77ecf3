"""The parts of `bench/gpu.sh`, each a process of its own: python -m bench.gpu_parts PART --out FOLDER

Each part writes part-NAME.json; `report` joins them in report.json and report.md. `--tiny` takes sizes of seconds on a
CPU. Pixels and captions are made up but for `loader`. Times are medians over steps between two waits for the device.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from bench.harness import PACKAGES, machine, today
from bench.sides import LATE, made_up_pairs, training_loader
from dinorankclip import device, distributed
from dinorankclip.config import LossSettings, OptimSettings
from dinorankclip.losses import Objective, RankingLoss
from dinorankclip.models.joint import JointModel
from dinorankclip.models.trunk import trunk_config
from dinorankclip.train.compiled import compile_towers
from dinorankclip.train.step import NonFinite, Updater, backward
from dinorankclip.types import Placement, UserError

Result = Any
METHODS = ("clip", "siglip", "cyclip", "rankclip", "rank")
LIST_LENGTH = 32


class Trainer:
    def __init__(self, trunk: str, method: str, placement: Placement, order: int = 3, compiled: bool = False):
        torch.manual_seed(0)
        self.model = JointModel(trunk_config(trunk)).to(placement.device)
        loss = LossSettings(order=order, list_length=LIST_LENGTH) if method == "rank" else None
        if method == "siglip":
            self.model.trunk.start_sigmoid()
        self.objective = Objective(self.model.dim, method, loss).to(placement.device)
        if compiled:
            compile_towers(self.model)
        settings = OptimSettings(name="adamw")
        self.updater = Updater({"model": self.model, "objective": self.objective}, settings, LATE.total_steps)
        self.placement = placement

    def pairs(self, count: int) -> Any:
        batch = made_up_pairs(self.model, count, distributed.world().rank)
        return batch.pin_memory() if self.placement.device.type == "cuda" else batch

    def step(self, batch: Any, during: bool = True, chunk: int | None = None) -> torch.Tensor:
        updater = self.updater if during else None
        terms = backward(self.model, self.objective, batch, LATE, self.placement, chunk, updater=updater)
        self.updater.step(LATE, self.model.logit_scale)
        return terms.total


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed(run: Callable[[], object], least: float, most: int = 200) -> dict[str, float]:
    """Seconds of a call, the median of three measurements of `least` seconds; peak memory of the GPU."""
    run(), run(), wait()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    run(), wait()
    count = max(1, min(most, int(least / max(time.perf_counter() - begun, 1e-6))))
    taken = []
    for _ in range(3):
        begun = time.perf_counter()
        for _ in range(count):
            run()
        wait()
        taken.append((time.perf_counter() - begun) / count)
    memory = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return {"seconds": statistics.median(taken), "spread": (max(taken) - min(taken)) / min(taken), "bytes": memory}


def placements(tiny: bool) -> Iterable[Placement]:
    for precision in ("fp32",) if tiny else ("bf16", "fp32"):
        yield device.choose("auto", precision)


def tried(run: Callable[[], dict]) -> dict:
    """The result, or the error in words: a size that does not fit ends its row alone."""
    try:
        return run()
    except (RuntimeError, ValueError, UserError) as error:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}


def environment(options: argparse.Namespace) -> Result:
    gpus = []
    for number in range(torch.cuda.device_count()):
        known = torch.cuda.get_device_properties(number)
        gpus.append({"name": known.name, "bytes": known.total_memory, "processors": known.multi_processor_count})
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if gpus else None
    about = machine(torch.get_num_threads(), PACKAGES)
    return about | {"gpus": gpus, "cuda": torch.version.cuda, "nccl": nccl, "python": platform.python_version()}


def agreement(options: argparse.Namespace) -> Result:
    """Losses of ten steps on this device and on the CPU; whether a bad step is left out here as it is there."""
    trunk, found = "drc-tiny", {}
    sides = {"cpu fp32": device.choose("cpu", "fp32")}
    sides |= {f"{p.device.type} {p.precision}": p for p in placements(options.tiny)}
    for method in ("clip", "rank"):
        for name, placement in sides.items():
            trainer = Trainer(trunk, method, placement)
            batch = trainer.pairs(32)
            found[f"{method}, {name}"] = [float(trainer.step(batch).detach()) for _ in range(10)]
    placement = device.choose("auto", "fp32")
    trainer = Trainer(trunk, "clip", placement)
    batch = trainer.pairs(16)
    trainer.step(batch)
    before = trainer.model.trunk.towers.visual.proj.detach().clone()
    good = trainer.objective.forward
    trainer.objective.forward = lambda *a, **k: _spoilt(good(*a, **k))  # type: ignore[method-assign]
    message = "none"
    try:
        trainer.step(batch)
        trainer.updater.look()
    except NonFinite as error:
        message = str(error)
    same = torch.equal(before, trainer.model.trunk.towers.visual.proj)
    return {"losses": found, "a bad step": {"weights unchanged": same, "message": message}}


def _spoilt(terms: Any) -> Any:
    terms.terms = {name: value * float("nan") for name, value in terms.terms.items()}
    terms.total = terms.total * float("nan")
    return terms


def waits(options: argparse.Namespace) -> Result:
    """Warnings of torch about waits for the GPU in a step that is not logged; none are wanted."""
    if not torch.cuda.is_available():
        return {"note": "no GPU: tests/train/test_host_waits.py counts them without one"}
    found = {}
    for method in METHODS:
        trainer = Trainer("ViT-B-32", method, device.choose("cuda"))
        batch = trainer.pairs(64)
        trainer.step(batch), wait()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            trainer.step(batch)
            torch.cuda.set_sync_debug_mode("default")
        found[method] = [str(one.message).splitlines()[0] for one in caught]
    return found


def steps(options: argparse.Namespace) -> Result:
    found = {}
    cells = {"drc-tiny": 16} if options.tiny else {"drc-small": 1024, "ViT-B-32": 512, "ViT-B-16": 256, "ViT-L-14": 64}
    for trunk, batch in cells.items():
        for placement in placements(options.tiny):
            for method in METHODS[:: 4 if options.tiny else 1]:
                name = f"{trunk}, {placement.precision}, {method}"
                found[name] = tried(lambda t=trunk, m=method, p=placement, b=batch: _step(Trainer(t, m, p), b, options))
    return found


def _step(trainer: Trainer, count: int, options: argparse.Namespace, **how: Any) -> dict:
    batch = trainer.pairs(count)
    found = timed(lambda: trainer.step(batch, **how), 0.2 if options.tiny else 3)
    return found | {"pairs/s": count / found["seconds"], "batch": count}


def batches(options: argparse.Namespace) -> Result:
    """Larger and larger batches, in one pass and in chunks, until one does not fit."""
    found: dict[str, dict] = {}
    placement = next(iter(placements(options.tiny)))
    trunk, sizes = ("drc-tiny", (8, 16)) if options.tiny else ("ViT-B-32", tuple(2**n for n in range(6, 15)))
    for chunk in (None, 8 if options.tiny else 512):
        for size in sizes:
            name = f"{trunk}, {size}" + (f", chunks of {chunk}" if chunk else "")
            found[name] = tried(lambda s=size, c=chunk: _step(Trainer(trunk, "rank", placement), s, options, chunk=c))
            if "error" in found[name]:
                break
    return found


def compile_(options: argparse.Namespace) -> Result:
    found = {}
    placement = next(iter(placements(options.tiny)))
    for trunk, batch in {"drc-tiny": 16}.items() if options.tiny else {"ViT-B-32": 512, "ViT-L-14": 64}.items():
        for compiled in (False, True):
            name = f"{trunk}{', compiled' * compiled}"
            found[name] = tried(
                lambda t=trunk, b=batch, c=compiled: _step(Trainer(t, "clip", placement, compiled=c), b, options)
            )
    return found


def loss(options: argparse.Namespace) -> Result:
    """The ranking loss alone, forward and backward: time and memory by order, batch and list length."""
    found, where = {}, device.choose("auto", "fp32").device
    for size in (64,) if options.tiny else (512, 1024, 4096, 16384):
        for length in (LIST_LENGTH, None) if size <= 4096 else (LIST_LENGTH,):
            for order in (1, 3) if options.tiny else (1, 2, 3, 4, 5):

                def one(size: int = size, length: int | None = length, order: int = order) -> dict:
                    ranking = RankingLoss(512, order=order, list_length=length).to(where)
                    rows = [torch.randn(size, 512, device=where, requires_grad=True) for _ in range(2)]
                    scale = torch.tensor(20.0, device=where)
                    return timed(lambda: ranking(*rows, scale).total.backward(), 0.1 if options.tiny else 1)

                found[f"{size} pairs, order {order}, {length or 'whole'} lists"] = tried(one)
    return found


def loader(options: argparse.Namespace) -> Result:
    from dinorankclip.config import ReadingSettings
    from dinorankclip.data.open_data import open_pairs

    found = {}
    source = open_pairs(options.pairs, ReadingSettings(), "train")
    model = JointModel(trunk_config("drc-tiny" if options.tiny else "ViT-B-32"))
    for workers in (0, 2) if options.tiny else (0, 2, 4, 8, 16):
        batch, count = (16, 10) if options.tiny else (256, 60)
        with closing(iter(training_loader(model, source, batch, workers))) as running:
            for _ in range(max(2, workers)):
                next(running)
            begun = time.perf_counter()
            for _ in range(count):
                next(running)
            seconds = time.perf_counter() - begun
        found[f"{workers} workers"] = {"pairs/s": batch * count / seconds}
    return found


def teacher(options: argparse.Namespace) -> Result:
    from dinorankclip.teachers.registry import open_teacher

    found, where = {}, device.choose("auto", "fp32").device
    for name, size in (
        (("efficientnet-lite0", 96),) if options.tiny else (("efficientnet-lite0", 224), ("random-vit", 112))
    ):

        def one(name: str = name, size: int = size) -> dict:
            network = open_teacher(name, size).to(where)
            images = torch.randint(0, 256, (8 if options.tiny else 256, 3, size, size), dtype=torch.uint8).to(where)
            with torch.inference_mode():
                measured = timed(lambda: network.dense(images), 0.1 if options.tiny else 2)
            return measured | {"images/s": len(images) / measured["seconds"]}

        found[f"{name}, {size} px"] = tried(one)
    return found


def scaling(options: argparse.Namespace) -> Result:
    """Run by torchrun: a step with the exchange of gradients after backward and during it."""
    world, found = distributed.join("auto"), {}
    placement = device.choose("auto", "auto", world.local_rank)
    for trunk, batch in {"drc-tiny": 8}.items() if options.tiny else {"ViT-B-32": 512, "ViT-L-14": 64}.items():
        trainer = Trainer(trunk, "clip", placement)
        own = trainer.pairs(batch)
        count = 3 if options.tiny else 20
        for during in (False, True):
            for _ in range(3):
                trainer.step(own, during)
            distributed.wait_for_all(), wait()
            begun = time.perf_counter()
            for _ in range(count):
                trainer.step(own, during)
            wait()
            seconds = (time.perf_counter() - begun) / count
            name = f"{trunk}, {batch} a process, exchange {'during' if during else 'after'} backward"
            found[name] = {"seconds": seconds, "pairs/s": batch * world.size / seconds}
        del trainer
    distributed.leave()
    return {"processes": world.size, "steps": found} if world.leads else None


PARTS = {"environment": environment, "agreement": agreement, "waits": waits, "steps": steps, "batches": batches,
         "compile": compile_, "loss": loss, "loader": loader, "teacher": teacher, "scaling": scaling}  # fmt: skip


def report(out: Path, tiny: bool) -> str:
    """Join the parts; a part without a result shows how it ended."""
    found: dict[str, Any] = {"date": today(), "tiny": tiny, "parts": {}}
    lines = [f"# Report of bench/gpu.sh, {found['date']}", ""]
    if tiny:
        lines += ["Tiny sizes on a CPU: this shows that the script works. No GPU was measured.", ""]
    names = sorted({path.stem.removeprefix("part-").removesuffix("-status") for path in out.glob("part-*.json")})
    for name in names:
        status, result = (_read(out / f"part-{name}{end}.json") for end in ("-status", ""))
        found["parts"][name] = {"ended": status, "result": result}
        good = status is not None and status["status"] == 0
        ended = f"finished in {status['seconds']} s" if good else f"failed: {status}; see logs/{name}.txt"
        lines += [f"## {name}", ended, ""]
        lines += [*_rows(result), ""]
    (out / "report.json").write_text(json.dumps(found, indent=1) + "\n")
    text = "\n".join(lines)
    (out / "report.md").write_text(text)
    return text


def _rows(result: Any) -> list[str]:
    if not isinstance(result, dict):
        return []
    flat = result.get("steps", result)
    if not all(isinstance(value, dict) for value in flat.values()):
        return [f"- {name}: {json.dumps(value)}" for name, value in result.items()]
    columns = list(dict.fromkeys(key for row in flat.values() for key in row))
    lines = [f"| | {' | '.join(columns)} |", f"| --- |{' --: |' * len(columns)}"]
    for name, row in flat.items():
        cells = [f"{row[c]:.4g}" if isinstance(row.get(c), float | int) else json.dumps(row.get(c)) for c in columns]
        lines.append(f"| {name} | {' | '.join(cells).replace('null', '–')} |")
    return lines


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.is_file() else None


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "report"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", default="scenes")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args(argv)
    if options.part == "report":
        print(report(options.out, options.tiny))
        return
    result = PARTS[options.part](options)
    if result is not None:
        name = options.part + (f"-{result['processes']}" if options.part == "scaling" else "")
        (options.out / f"part-{name}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
