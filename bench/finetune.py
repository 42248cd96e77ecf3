"""Fine-tunes trunks that were trained here on other data, and compares the ways to do it: own data and a general set.

    python -m bench.finetune start --data DIR                       # the two starting models, about ten core-minutes each
    python -m bench.finetune run   --data DIR --cells main --seeds 3 --out docs/study/finetune
    python -m bench.finetune page  --out docs/study/finetune
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import dinorankclip
from bench.finetune_data import BUILT, MIXTURES, prepare

START: dict[str, Any] = {
    "preset": "flickr8k", "recipe": "taught", "model.trunk": "drc-small", "distil.cache": "auto",
    "distil.teacher_size": 128, "budget.batch": 256, "budget.core_seconds": 480, "budget.threads": 1,
    "record.score_every": 10, "record.tensorboard": False,
}  # fmt: skip


def start(name: str, data: Path) -> Path:
    """Train a starting model; the same call goes on with it."""
    folder = prepare(data)[name]
    return dinorankclip.train(**START | {"data": str(folder), "run": str(BUILT / "starts" / name)}).folder


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("start", "run", "page"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--names", nargs="*", default=tuple(MIXTURES))
    args = parser.parse_args(argv)
    for name in args.names:
        start(name, args.data)


if __name__ == "__main__":
    main()
