"""Compares a step of LoRA with a step of full fine-tuning: core-seconds, peak memory, parameters, merged weights.

    python -m bench.finetune_cost --trunks drc-small:64 ViT-B-32:16 --out docs/study/finetune

Steps of both alternate in one process; the clock is the core-seconds of that process, and the result the median ratio
over rounds. Memory is the peak of a process of its own that takes three steps. Pairs are random; weights, too.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from bench.finetune import COST
from dinorankclip.config import LossSettings, OptimSettings, TuneSettings
from dinorankclip.device import Placement
from dinorankclip.io import write_json
from dinorankclip.losses.objective import Objective
from dinorankclip.models.joint import JointModel
from dinorankclip.models.lora import correct
from dinorankclip.models.trunk import trunk_config
from dinorankclip.system import peak_memory
from dinorankclip.train.step import Updater, backward
from dinorankclip.types import Batch, Progress, View

RANK, WORDS, STEPS = 8, 12, 3
PLACEMENT = Placement(torch.device("cpu"), "fp32", "bench")


class Side:
    """Takes steps of one way to train a trunk with random weights."""

    def __init__(self, trunk: str, batch: int, way: str) -> None:
        torch.manual_seed(0)
        self.model = JointModel(trunk_config(trunk))
        if way == "lora":
            correct(self.model, RANK, None, TuneSettings().lora_targets, 0)
        objective = Objective(self.model.dim, "clip", LossSettings(order=0), 0)
        self.updater = Updater({"model": self.model, "objective": objective}, OptimSettings("adamw", lr=1e-4), 100)
        self.objective = objective
        size = self.model.image_spec.size
        texts = torch.randint(1, 49000, (batch, WORDS))
        texts[:, 0], texts[:, -1] = 49406, 49407
        images = torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8)
        self.batch = Batch(images, texts, [str(i) for i in range(batch)], [View()] * batch, [""] * batch)

    def step(self) -> float:
        begin = time.process_time()
        backward(self.model, self.objective, self.batch, progress := Progress(20, 100, 1.0), PLACEMENT)
        self.updater.step(progress, self.model.logit_scale)
        return time.process_time() - begin

    @property
    def trained(self) -> int:
        return sum(parameter.numel() for parameter in self.updater.parameters.values())


def memory(trunk: str, batch: int, way: str) -> float:
    """Return the peak resident memory in MB of a process that takes a few steps."""
    command = [sys.executable, "-m", "bench.finetune_cost", "--one", trunk, str(batch), way]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def merged_difference(side: Side) -> float:
    """Return the largest difference between embeddings of a trained model and of its merged weights."""
    plain = JointModel(side.model.trunk.config)
    plain.load_state_dict(side.model.own_state())
    rows = [model.eval().encode_image(side.batch.images) for model in (side.model, plain)]
    texts = [model.encode_text(side.batch.texts) for model in (side.model, plain)]
    return max(float((a - b).abs().max()) for a, b in (rows, texts))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trunks", nargs="+", default=["drc-small:64", "ViT-B-32:16"], help="TRUNK:BATCH …")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--one", nargs=3, metavar=("TRUNK", "BATCH", "WAY"), help="print the memory of one side")
    parser.add_argument("--out", type=Path, default=Path("docs/study/finetune"))
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    if args.one:
        side = Side(args.one[0], int(args.one[1]), args.one[2])
        for _ in range(STEPS):
            side.step()
        print((peak_memory() or 0) / 1e6)
        return
    rows, worst = [], 0.0
    for text in args.trunks:
        trunk, _, batch = text.partition(":")
        full, lora = (Side(trunk, int(batch), way) for way in ("full", "lora"))
        full.step(), lora.step()
        times = [(full.step(), lora.step()) for _ in range(args.rounds)]
        ratios = sorted(b / a for a, b in times)
        worst = max(worst, merged_difference(lora))
        seconds = [statistics.median(side) for side in zip(*times)]
        del full
        peaks = [memory(trunk, int(batch), way) for way in ("full", "lora")]
        cells = [
            f"{100 * lora.trained / sum(p.numel() for p in JointModel(trunk_config(trunk)).parameters()):.2f} %",
            *(f"{value:.3f} s" for value in seconds),
            f"{statistics.median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]",
            *(f"{peak:.0f} MB" for peak in peaks),
        ]  # fmt: skip
        rows.append({"trunk": f"{trunk}, {batch}", "cells": cells})
        print(rows[-1], flush=True)
        words = (
            f"Rank {RANK}, default targets, AdamW, {args.rounds} alternating rounds, one thread, captions of {WORDS} "
            "tokens, random weights. Ratio: median and range of core-seconds. Memory: peak of a process. "
            f"Embeddings of the merged weights differ by at most {worst:.1e}."
        )
        args.out.mkdir(parents=True, exist_ok=True)
        write_json(args.out / COST, {"words": words, "rows": rows})


if __name__ == "__main__":
    main()
