"""Memory over a long run, and of a large index: does a process grow with its steps, and what do 10⁶ samples take?

    python -m bench.memory                   # both, about 10 minutes on a free core
    python -m bench.memory --part index

`steps`: `train` of a model of 0.8 M weights in a process of its own, whose resident memory is read after every
hundredth step that it logs. The slope is that of a line through the readings after the warm-up, in bytes a step.
`index`: shards with a million samples of a few bytes are indexed by a fresh process; the record is its largest resident
memory, and that of the largest of the processes that it starts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

STEPS, WARM_UP = 5000, 1000
SAMPLES, SHARD = 1_000_000, 20_000
PACKAGES = ("torch", "numpy")
BLOCK = 512
LEAST = "bench-least"
TRUNK = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "patch_size": 8, "width": 16, "layers": 1, "head_width": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 1, "layers": 1},
}


# --- steps


def train(words: list[str], scratch: Path) -> None:
    """Train as the command does, with a trunk that is small enough for thousands of steps in minutes."""
    from dinorankclip import device
    from dinorankclip.commands.entry import main as command

    device.declare_missing()
    import open_clip

    (scratch / f"{LEAST}.json").write_text(json.dumps(TRUNK))
    open_clip.add_model_config(scratch)
    command(["train", *words])


def measure_steps(steps: int, warm_up: int, scratch: Path) -> dict[str, Any]:
    from tests.train.running import small_pairs

    pairs, run = small_pairs(scratch / "pairs", train=1024), scratch / "run"
    words = [
        "--preset", "scenes", "--method", "clip", "--data", str(pairs), "--run", str(run), "--model.trunk",
        LEAST, "--model.image-size", "32", "--budget.batch", "4", "--budget.steps", str(steps),
        "--budget.threads", "1", "--reading.workers", "0", "--record.log-every", "100", "--record.save-every", "1000",
        "--record.no-tensorboard",
    ]  # fmt: skip
    command = [sys.executable, "-m", "bench.memory", "--train", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    readings: dict[int, int] = {}
    while process.poll() is None:
        step = _last_step(run / "metrics.jsonl")
        if step and step not in readings:
            readings[step] = _resident(process.pid)
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"the run ended with status {process.returncode}")
    kept = {step: size for step, size in readings.items() if step >= warm_up and size}
    slope = float(np.polyfit(list(kept), list(kept.values()), 1)[0])
    first, last = (np.median([kept[step] for step in part]) for part in (sorted(kept)[:5], sorted(kept)[-5:]))
    return {"steps": steps, "warm-up": warm_up, "bytes a step": slope, "first": int(first), "last": int(last),
            "readings": readings}  # fmt: skip


def _last_step(log: Path) -> int:
    lines = log.read_text().splitlines() if log.exists() else []
    try:
        return int(json.loads(lines[-1])["step"]) if lines else 0
    except ValueError:  # half a line
        return 0


def _resident(process: int) -> int:
    """Return the resident bytes of a process; 0 if it has just ended."""
    try:
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


# --- index


def write_shards(folder: Path, samples: int, shard: int) -> list[Path]:
    """Write tars of `shard` samples each: KEY.jpg and KEY.txt of a few bytes, all keys different."""
    from tools.plant_damage import member

    first = np.frombuffer(b"".join(
        member(f"00000{number:06d}.jpg", b"JPEG") + member(f"00000{number:06d}.txt", b"text") for number in range(shard)
    ), np.uint8).reshape(2 * shard, 2 * BLOCK)  # fmt: skip
    paths = []
    for number in range(samples // shard):
        blocks = first.copy()
        blocks[:, :5] = np.frombuffer(f"{number:05d}".encode(), np.uint8)
        blocks[:, 148:156] = ord(" ")
        sums = blocks[:, :BLOCK].sum(1, dtype=np.int64)
        for place in range(6):  # octal digits, then a zero byte
            blocks[:, 148 + place] = ord("0") + (sums >> 3 * (5 - place) & 7)
        blocks[:, 154] = 0
        paths.append(folder / f"{number:05d}.tar")
        paths[-1].write_bytes(blocks.tobytes() + bytes(2 * BLOCK))
    return paths


def index_shards(folder: Path) -> None:
    """Index all shards of a folder, and print the memory that this took, as a process of its own."""
    from dinorankclip.data.tar_shards import ShardSource

    before = _largest()
    begun = time.process_time()
    source = ShardSource(sorted(folder.glob("*.tar")))
    assert source.key(len(source) - 1).endswith(f"{SHARD - 1:06d}")
    helper = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(json.dumps({"samples": len(source), "before": before, "process": _largest(), "helper": helper,
                      "core-seconds": time.process_time() - begun}))  # fmt: skip


def _largest() -> int:
    """Return the largest resident memory of this process; getrusage would count the process that started it, too."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def measure_index(scratch: Path) -> dict[str, Any]:
    shards = scratch / "shards"
    shards.mkdir()
    write_shards(shards, SAMPLES, SHARD)
    found = {}
    for name in ("indexed", "opened again"):  # the second time the index is stored
        command = [sys.executable, "-m", "bench.memory", "--index", str(shards)]
        environment = os.environ | {"DINORANKCLIP_HOME": str(scratch / "built")}
        found[name] = json.loads(subprocess.run(command, check=True, capture_output=True, env=environment).stdout)
    return found


# --- record


def text_of(record: dict[str, Any]) -> str:
    from bench.harness import in_words

    parts = ["# Memory of a long run, and of a large index"]
    if "steps" in record:
        found = record["steps"]
        parts.append(
            f"**{found['steps']:,} steps** of `train` (batch 4, no workers, {len(found['readings'])} readings): "
            f"resident memory grows by {found['bytes a step']:.0f} bytes a step after the first {found['warm-up']:,} "
            f"(wanted < 1,000): {found['first'] / 1e6:.1f} MB then, {found['last'] / 1e6:.1f} MB at the end."
        )
    for name, found in record.get("index", {}).items():
        parts.append(
            f"**{found['samples']:,} samples, {name}:** at most {found['process'] / 1e6:.0f} MB in the process "
            f"({found['before'] / 1e6:.0f} MB before it began) and {found['helper'] / 1e6:.0f} MB in a helper (wanted "
            f"< 400), {found['core-seconds']:.1f} core-seconds of the process itself."
        )
    return "\n\n".join([*parts, f"Machine: {in_words(record['machine'])}."])


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("steps", "index", "both"), default="both")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--warm-up", type=int, default=WARM_UP)
    parser.add_argument("--out", type=Path, default=Path("docs/bench"))
    parser.add_argument("--index", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--train", nargs=argparse.REMAINDER, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.train is not None:
        with tempfile.TemporaryDirectory() as scratch:
            train(options.train, Path(scratch))
        return
    if options.index is not None:
        index_shards(options.index)
        return
    from bench.harness import machine, today, write_dated  # not in the processes that are measured

    record: dict[str, Any] = {"machine": machine(1, PACKAGES)}
    with tempfile.TemporaryDirectory() as scratch:
        if options.part != "index":
            record["steps"] = measure_steps(options.steps, options.warm_up, Path(scratch))
        if options.part != "steps":
            record["index"] = measure_index(Path(scratch))
    write_dated(options.out, "memory", today(), record, text_of(record))


if __name__ == "__main__":
    main()
