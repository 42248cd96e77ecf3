"""Record and check the losses and the final weights of short runs of every method.

    python -m tests.golden_curves --record    write golden_files/curves.json anew; right only after a change that is
                                              meant to change training
    python -m tests.golden_curves --check     compare bit for bit on the machine that recorded; exit status 1 if
                                              anything differs

Losses in metrics.jsonl are not rounded, so they are compared as they are. The hash of a run covers its last checkpoint:
weights of model and loss, and the optimiser's state. The hash of the teacher's cache covers all of its files.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from tests.command_line import run_all

FILES = Path(__file__).parent / "golden_files"
RECORD = FILES / "curves.json"
PAIRS = FILES / "pairs"  # 48 training, 16 validation and 16 test pairs: random colour patches, random captions
STEPS = 12
CACHE = "teacher cache"
TAUGHT = ["--distil.cache", "cache"]
METHODS: dict[str, list[str]] = {
    "clip": ["--method", "clip"],
    "cyclip": ["--method", "cyclip"],
    "alip": ["--method", "alip"],
    "rankclip": ["--method", "rankclip"],
    "rank, order 3": ["--method", "rank", "--loss.order", "3"],
    "dinorankclip without a teacher": ["--method", "dinorankclip", "--distil.cache", "none"],
    "dinorankclip": ["--method", "dinorankclip", *TAUGHT],
    "clip, teacher into trunk": ["--method", "clip", "--distil.into", "trunk", *TAUGHT],
    "clip, muon": ["--method", "clip", "--optim.name", "muon"],
    "distil": ["--method", "distil", "--distil.branches", "image+text", *TAUGHT],
}
TEACHERS = ["--teacher", "random-vit:0", "--text-teacher", "random-text:0", "--input-size", "64"]


def cache_command(out: str = "cache", data: object = PAIRS) -> list[object]:
    return ["teacher", "cache", "--data", data, "--out", out, "--threads", "1", "--device", "cpu", *TEACHERS]


def train_command(run: str, *flags: str) -> list[object]:
    budget = ["--budget.batch", "16", "--budget.epochs", "4", "--budget.threads", "1", "--budget.device", "cpu"]
    record = ["--record.log-every", "1", "--record.save-every", "1000", "--record.keep", "1", "--record.no-tensorboard"]
    # The curves were recorded with the plain L1 of gates, the plain loss and, unless a method names another, AdamW.
    loss = ["--loss.gate-l1-size", "plain", "--loss.no-several-positives"]
    optimiser = [] if "--optim.name" in flags else ["--optim.name", "adamw"]
    return [
        "train",
        "--data",
        PAIRS,
        "--run",
        run,
        "--reading.workers",
        "0",
        *budget,
        *record,
        *loss,
        *optimiser,
        *flags,
    ]


def measure(folder: Path) -> dict[str, Any]:
    """Run every method in `folder`; return the losses and a hash of the weights by method, and the cache's hash."""
    runs = {method: f"run-{number}" for number, method in enumerate(METHODS)}
    run_all([cache_command(), *(train_command(runs[method], *flags) for method, flags in METHODS.items())], folder)
    found: dict[str, Any] = {CACHE: hash_of(sorted((folder / "cache").iterdir()))}
    for method, run in runs.items():
        found[method] = {"losses": losses_of(folder / run), "weights": hash_of_checkpoint(folder / run)}
    return found


def losses_of(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def hash_of(paths: list[Path]) -> str:
    """Return one SHA-256 of the names and bytes of files."""
    whole = hashlib.sha256()
    for path in paths:
        whole.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()


def hash_of_checkpoint(run: Path) -> str:
    """Return one SHA-256 of all tensors in the last checkpoint, apart from the state of the random generators."""
    whole = hashlib.sha256()
    for name in ("model.safetensors", "training.safetensors"):
        for entry, tensor in sorted(load_file(run / "checkpoints" / "last" / name).items()):
            if not entry.startswith("random/"):
                array = tensor.numpy()
                whole.update(f"{name} {entry} {array.dtype} {array.shape}".encode() + array.tobytes())
    return whole.hexdigest()


def stored() -> dict[str, Any]:
    return json.loads(RECORD.read_text())


def differences(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, str]:
    """Return for each name what differs; an empty text if nothing does."""
    report = {CACHE: "" if found[CACHE] == wanted[CACHE] else "files differ"}
    for method in METHODS:
        now, then = found[method], wanted[method]
        unequal = [step for step, (a, b) in enumerate(zip(now["losses"], then["losses"]), 1) if a != b]
        parts = [f"losses differ from step {unequal[0]} on"] if unequal else []
        parts += ["number of steps differs"] if len(now["losses"]) != len(then["losses"]) else []
        parts += ["weights differ"] if now["weights"] != then["weights"] else []
        report[method] = ", ".join(parts)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_mutually_exclusive_group(required=True)
    ways.add_argument("--record", action="store_true")
    ways.add_argument("--check", action="store_true")
    record = parser.parse_args().record
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(Path(scratch))
    if record:
        RECORD.write_text(json.dumps(found, indent=1) + "\n")
        return
    report = differences(found, stored())
    for name, text in report.items():
        print(f"{name:<32}{text or 'equal, bit for bit'}")
    sys.exit(any(report.values()))


if __name__ == "__main__":
    main()
