"""Two runs of the benches side by side, ratio by ratio: python -m bench.repeated docs/bench/first-run docs/bench

Says whether the ranges of the two runs overlap; writes repeated-DATE.md beside the second.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench.all import BENCHES
from bench.ratios import written


def newest(folder: Path, bench: str) -> dict:
    kept = sorted(folder.glob(f"{bench.replace('_', '-')}-2*.json"))
    if not kept:
        raise SystemExit(f"no record of {bench} in {folder}")
    return json.loads(kept[-1].read_text())


def ratios(record: dict) -> dict[tuple[str, str], dict[str, float]]:
    """(what, side) → its ratio to the base."""
    return {
        (one["title"], side): seen["ratio"]
        for one in record["comparisons"]
        for side, seen in one["sides"].items()
        if side != one["base"]
    }


def table(first: Path, second: Path) -> str:
    lines = [
        "# The benches, run twice",
        "",
        "Medians (ranges) over alternating rounds within one run. The machine is shared: the first run had other jobs "
        "beside it now and then, the second had none of ours.",
        "",
        "| what | side | first | second | ranges overlap |",
        "| --- | --- | --- | --- | --- |",
    ]
    for bench in BENCHES:
        before, after = ratios(newest(first, bench)), ratios(newest(second, bench))
        for (what, side), one in after.items():
            if (other := before.get((what, side))) is not None:
                overlap = one["least"] <= other["most"] and other["least"] <= one["most"]
                lines.append(f"| {what} | {side} | {written(other)} | {written(one)} | {'yes' if overlap else 'no'} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    asked = parser.parse_args()
    text = table(asked.first, asked.second)
    date = newest(asked.second, BENCHES[0])["date"]
    (asked.second / f"repeated-{date}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
