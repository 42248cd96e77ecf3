"""The five benches of training and embedding, one after the other: python -m bench.all [--pairs DIR] [--quick]

They are those that take the same flags and record comparisons of sides; README.md in this folder has the others. Ends
with a summary of all that was wanted, dated like the records. Run it with nothing else running.
"""

from __future__ import annotations

import subprocess
import sys
import time

from bench.harness import arguments, newest, today, written

BENCHES = ("step", "end_to_end", "embedding", "orders", "scaling")
RECORDS = tuple(bench.replace("_", "-") for bench in BENCHES)


def summary(records: list[dict]) -> str:
    """One line for each ratio that something was wanted of."""
    lines = [
        f"# Benches, {records[0]['date']}",
        "",
        "Ratios are medians (ranges) over alternating rounds; noise is the spread of our side against itself.",
        "",
        "| what | side | ratio | noise | wanted | reached |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for record in records:
        for one in record["comparisons"]:
            for side, wanted in one["wanted"].items():
                seen, sign = one["sides"][side], "≤" if one["cost"] else "≥"
                cells = [one["title"], side, written(seen["ratio"]), f"{seen['noise']:.0%}", f"{sign} {wanted:g}"]
                lines.append(f"| {' | '.join(cells)} | {'yes' if seen['met'] else 'no'} |")
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> None:
    options = arguments(__doc__).parse_args(argv)
    words = ["--pairs", options.pairs, "--threads", str(options.threads), "--out", str(options.out)]
    words += ["--rounds", str(options.rounds)] if options.rounds else []
    words += ["--quick"] if options.quick else []
    begin, records, quick = time.perf_counter(), [], "-quick" * options.quick
    for bench, name in zip(BENCHES, RECORDS):
        subprocess.run([sys.executable, "-m", f"bench.{bench}", *words], check=True)
        records.append(newest(options.out, name + quick))
    text = summary(records)
    (options.out / f"summary{quick}-{today()}.md").write_text(text)
    print(f"\n{text}\n{(time.perf_counter() - begin) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
