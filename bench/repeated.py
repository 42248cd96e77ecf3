"""Two runs of `bench.all` side by side, ratio by ratio: python -m bench.repeated docs/bench/first-run docs/bench

Says whether the ranges of the two runs overlap; writes repeated-DATE.md beside the second.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.all import RECORDS
from bench.harness import newest, written


def ratios(record: dict) -> dict[tuple[str, str], dict[str, float]]:
    """(what, side) → its ratio to the base."""
    return {
        (one["title"], side): seen["ratio"]
        for one in record["comparisons"]
        for side, seen in one["sides"].items()
        if side != one["base"]
    }


def table(first: Path, second: Path, note: str = "") -> str:
    lines = [
        "# The benches, run twice",
        "",
        f"Medians (ranges) over alternating rounds within one run. {note}".rstrip(),
        "",
        "| what | side | first | second | ranges overlap |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in RECORDS:
        before, after = ratios(newest(first, name)), ratios(newest(second, name))
        for (what, side), one in after.items():
            if (other := before.get((what, side))) is not None:
                overlap = one["least"] <= other["most"] and other["least"] <= one["most"]
                lines.append(f"| {what} | {side} | {written(other)} | {written(one)} | {'yes' if overlap else 'no'} |")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--note", default="", help="a sentence on the occasion, e.g. what else ran beside which run")
    asked = parser.parse_args(argv)
    text = table(asked.first, asked.second, asked.note)
    date = newest(asked.second, RECORDS[0])["date"]
    (asked.second / f"repeated-{date}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
