"""What `bench.ranking` found, as a page."""

from __future__ import annotations

from bench.machine import in_words
from bench.ratios import written


def as_markdown(record: dict) -> str:
    head = f"{in_words(record['machine'])}. Forward and backward, fp32."
    loads = ", ".join(f"{part} {busy}" for part, busy in record["load"].items())
    lines = [f"# Ranking benchmark, {record['date']}", "", head]
    lines += [f"Ratios: median (range) over alternating rounds. Load when each part began: {loads}."]
    for part, figures in record["results"].items():
        lines += ["", *_TABLES[part](figures)]
    return "\n".join(lines) + "\n"


def _lists_table(figures: dict) -> list[str]:
    lines = [
        "| B, H = 64 | dense s | blocked s | dense / blocked (wanted ≥ 3 at 512) | dense MB | blocked MB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for batch, f in figures.items():
        a, b = f["reference"], f["blocked"]
        lines.append(
            f"| {batch} | {a['seconds']:.3f} | {b['seconds']:.3f} | {written(f['speedup'])} "
            f"| {a['bytes'] / 1e6:.0f} | {b['bytes'] / 1e6:.0f} |"
        )
    return lines


def _limit_table(figures: dict) -> list[str]:
    lines = [
        "| B | blocked s | multiple of the matmul limit (wanted ≤ 3) | MB above inputs (wanted < 2000 at 1024) |",
        "| --- | --- | --- | --- |",
    ]
    for batch, f in figures.items():
        lines.append(f"| {batch} | {f['seconds']:.3f} | {written(f['multiple'])} | {f['bytes'] / 1e6:.0f} |")
    return lines


def _loss_table(figures: dict) -> list[str]:
    lines = ["| whole loss, s (MB) | order 1 | 2 | 3 | 4 | 5 |", "| --- | --- | --- | --- | --- | --- |"]
    for batch in dict.fromkeys(key.split("/")[0] for key in figures):
        cells = [figures.get(f"{batch}/{order}") for order in range(1, 6)]
        row = " | ".join(f"{c['seconds']:.3f} ({c['bytes'] / 1e6:.0f})" if c else "–" for c in cells)
        lines.append(f"| {batch} pairs | {row} |")
    return lines


def _step_table(figures: dict) -> list[str]:
    lines = ["| step of 256 pairs | order 1 s | order 3 s | ratio | wanted |", "| --- | --- | --- | --- | --- |"]
    for (name, f), wanted in zip(figures.items(), (1.6, 1.21)):
        s = f["seconds"]
        lines.append(f"| {name} | {s['1']:.3f} | {s['3']:.3f} | {written(f['ratio'])} | ≤ {wanted} |")
    return lines


_TABLES = {"lists": _lists_table, "limit": _limit_table, "loss": _loss_table, "step": _step_table}
