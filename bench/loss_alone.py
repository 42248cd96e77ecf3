"""What the ranking loss alone costs beside InfoNCE: python -m bench.loss_alone [--quick]

Forward and backward by batch, order and list length, in seconds of one core: other programs on the machine do not
count, although they slow its memory. Each figure is the least of three runs, of one run where it takes seconds.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from bench.harness import in_words, machine_now, today, write_dated
from bench.ranking import DIM, whole_loss
from dinorankclip.losses import info_nce

ORDERS = range(1, 6)
LENGTHS = {"whole lists": None, "list_length=32": 32}
LONG = 5.0  # seconds; the next order would take longer, and is left out where a run takes half a minute
TOO_LONG = 30.0


def contrast(batch: int) -> Callable[[], None]:
    draw = torch.Generator().manual_seed(0)
    image, text = (torch.randn(batch, DIM, generator=draw).requires_grad_() for _ in range(2))
    return lambda: info_nce(image, text, 50.0).backward()


def core_seconds(run: Callable[[], None]) -> float:
    taken = []
    while not taken or (len(taken) < 3 and taken[0] < LONG):
        begin = time.process_time()
        run()
        taken.append(time.process_time() - begin)
    return min(taken)


def measure(batches: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """Row of the table → InfoNCE or order → seconds."""
    found: dict[str, dict[str, float]] = {}
    for batch in batches:
        for name, length in LENGTHS.items():
            row = found[f"{batch} pairs, {name}"] = {"InfoNCE": core_seconds(contrast(batch))}
            for order in ORDERS:
                row[str(order)] = core_seconds(whole_loss(batch, order, length))
                print(f"{batch} pairs, {name}, order {order}: {row[str(order)]:.3f} s", flush=True)
                if row[str(order)] > TOO_LONG:
                    break
    return found


def as_markdown(record: dict) -> str:
    how = f"Forward and backward, fp32, embeddings of width {DIM}, seconds of one core."
    lines = [
        f"# The ranking loss alone, {record['date']}", "", f"{in_words(record['machine'])}. {how}", "",
        "| a step of | InfoNCE | order 1 | 2 | 3 | 4 | 5 |", "| --- | --: | --: | --: | --: | --: | --: |",
    ]  # fmt: skip
    for name, row in record["seconds"].items():
        cells = [row.get(column) for column in ("InfoNCE", *map(str, ORDERS))]
        lines.append(f"| {name} | {' | '.join('–' if cell is None else f'{cell:.2g}' for cell in cells)} |")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/bench"), help="folder for the dated JSON and Markdown")
    parser.add_argument("--quick", action="store_true", help="small batches; not for the record")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")  # the loss warns of what is measured here
    torch.set_num_threads(1)
    record = {"date": today(), "machine": machine_now(1, ("torch",))}
    record["seconds"] = measure((128, 256) if options.quick else (128, 256, 512, 1024))
    write_dated(options.out, f"loss-alone{'-quick' * options.quick}", record["date"], record, as_markdown(record))


if __name__ == "__main__":
    main()
