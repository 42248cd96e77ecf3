"""What the hashes of a checkpoint cost: saving with and without them, in turn.

    python -m bench.checksum_cost            # about a minute

A checkpoint of a small model and its optimiser is saved by `checkpoints.save`. The hashes are computed by a thread that
begins when the checkpoint is in its place, so `save` returns before they are done, and training goes on beside it. Both
sides are compared by the core-seconds of the thread that trains and by wall time, which says little on a busy machine.
The core-seconds of hashing are recorded beside those of saving: they are spent, but beside training.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bench.harness import in_words, machine, ratio, today, write_dated, written
from dinorankclip import checksums
from dinorankclip.train import checkpoints
from tests.train.test_checkpoints import trained

ROUNDS = 24
PACKAGES = ("torch", "numpy", "safetensors")


def timed(state: Any, folder: Path, hashes: bool) -> dict[str, float]:
    """Save one more checkpoint; return wall time and core-seconds until `save` returns, and those of hashing."""
    state.step += 1
    seal = checksums.sealing.start
    if not hashes:
        checksums.sealing.start = lambda folder: None  # type: ignore[method-assign]
    begun, thread, cores = time.perf_counter(), time.thread_time(), time.process_time()
    try:
        checkpoints.save(state, folder, keep=2)
    finally:
        checksums.sealing.start = seal  # type: ignore[method-assign]
    seconds, saving = time.perf_counter() - begun, time.thread_time() - thread
    checksums.sealing.wait()
    return {"seconds": seconds, "saving": saving, "hashing": time.process_time() - cores - saving}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=Path("docs/bench"))
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    state = trained()
    found: dict[str, list[dict[str, float]]] = {"with": [], "without": []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for number in range(options.rounds + 1):
            for side in ("with", "without") if number % 2 else ("without", "with"):
                measured = timed(state, folder, side == "with")
                if number:  # the first round warms up
                    found[side].append(measured)
        size = sum(path.stat().st_size for path in (folder / "last").iterdir())
    thread = ratio(*([each["saving"] for each in found[side]] for side in ("with", "without")))
    wall = ratio(*([each["seconds"] for each in found[side]] for side in ("with", "without")))
    cores = ratio(*([each[name] for each in found["with"]] for name in ("hashing", "saving")))
    about = machine(1, PACKAGES)
    text = f"""# What the hashes of a checkpoint cost

{options.rounds} rounds in turn, a checkpoint of {size / 1e6:.0f} MB; medians and ranges. Until `save` returns, with
hashes against without: {written(thread, 3)} times the core-seconds of the thread that trains,
{written(wall, 2)} times the wall time (wanted ≤ 1.02, or beside training). The hashes are
computed by another thread after that: {written(cores, 2)} core-seconds for each core-second of saving.

Machine: {in_words(about)}."""
    record = {"rounds": found, "bytes": size, "thread": thread, "wall": wall, "cores": cores, "machine": about}
    write_dated(options.out, "checksum-cost", today(), record, text)


if __name__ == "__main__":
    main()
