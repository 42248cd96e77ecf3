"""The loss at each of the first steps of small runs. `python -m tests.pretrain.golden_curves` records them anew, which
is right only after a change that is meant to change training."""

import json
import tempfile
from pathlib import Path

import torch

from dinorankclip.commands.train import parse, run
from tests.pretrain.running import small_pairs

RECORD = Path(__file__).with_suffix(".json")
METHODS = {
    "clip": ["--method", "clip"],
    "rank, order 3": ["--method", "rank"],
    "fusion without a teacher": ["--method", "dinorankclip", "--distil.cache", "none"],
}
STEPS = 24


def curve(method: str, pairs: Path, folder: Path) -> list[float]:
    flags = ["--data", pairs, "--run", folder, "--budget.batch", "16", "--budget.epochs", "4", "--budget.threads", "1"]
    flags += ["--record.log-every", "1", "--record.no-tensorboard", "--reading.workers", "0", *METHODS[method]]
    settings, *_ = parse([str(word) for word in flags])
    assert run(settings, restart=False, dry=False)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        pairs = small_pairs(Path(scratch) / "pairs")
        found = {method: curve(method, pairs, Path(scratch) / method) for method in METHODS}
    RECORD.write_text(json.dumps({method: [round(x, 6) for x in losses] for method, losses in found.items()}) + "\n")
