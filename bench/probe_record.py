"""What `bench.probe` found, in the terminal and as a page."""

from __future__ import annotations

import statistics

from bench.machine import in_words
from bench.ratios import written
from dinorankclip.evaluate.probe import GRID


def in_short(found: dict) -> str:
    """What the terminal says of a set as soon as it is done."""
    lines = [
        f"  objective off by at most {found['objective off by at most']:.1e} of it (wanted 1e-4)",
        f"  accuracy off by at most {found['accuracy off by at most']:.2f} points (wanted 0.3), "
        f"{found['accuracy off at the chosen C']:.2f} at the chosen C = {found['chosen C']:.3g}",
    ]
    for name, taken in found["seconds"].items():
        times = ", ".join(f"{each:.2f}" for each in taken)
        lines.append(f"  {name:<14} {times} s")
        if name in found["times faster"]:
            lines[-1] += f", ours {written(found['times faster'][name], digits=1)} times faster"
    return "\n".join(lines)


def as_markdown(record: dict) -> str:
    lines = [
        f"# Linear probe against scikit-learn, {record['date']}",
        "",
        f"{in_words(record['machine'])}; scikit-learn has as many threads. Features: {record['features']}.",
        f"The whole path of {len(GRID)} values of C, {GRID[0]:g} … {GRID[-1]:g}; ratios: median (range) over "
        "alternating rounds. The head of `bench/probe.py` says what the sides are.",
        "",
        "| set | items | ours s | same accuracy s | warm s | default s "
        "| ours faster than same accuracy (wanted 5) | than warm (wanted 5) | than default "
        "| objective off by at most (wanted 1e-4) | accuracy off by at most (wanted 0.3) | at the chosen C |",
        "| --- |" + " --- |" * 11,
    ]
    for name, found in record["results"].items():
        middle = [f"{statistics.median(taken):.2f}" for taken in found["seconds"].values()]
        faster = [written(ratio, digits=1) for ratio in found["times faster"].values()]
        off = [
            f"{found['objective off by at most']:.1e}",
            f"{found['accuracy off by at most']:.2f}",
            f"{found['accuracy off at the chosen C']:.2f} (C = {found['chosen C']:.3g})",
        ]
        lines.append(f"| {name} | {' | '.join([str(found['items']), *middle, *faster, *off])} |")
    for name, found in record["results"].items():
        lines += [
            "",
            f"## {name}",
            "",
            "| C | gradients | ours above least | certified | accuracy | least objective's accuracy "
            "| tol for same accuracy (warm) | default above least | default's accuracy |",
            "| --- |" + " --- |" * 8,
        ]
        for row in found["by C"]:
            tol = f"{row['tol']:.0e}{' double' if row['double'] else ''} ({row['warm tol']:.0e})"
            lines.append(
                f"| {row['C']:.3g} | {row['gradients']} | {row['ours above least']:.1e} | {row['certified']:.1e} "
                f"| {row['ours accuracy']:.2f} | {row['its accuracy']:.2f} | {tol} "
                f"| {row['default above least']:.1e} | {row['default accuracy']:.2f} |"
            )
    return "\n".join(lines) + "\n"
