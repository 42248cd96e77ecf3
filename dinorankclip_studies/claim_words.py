"""Writes the parts of a verdict as words: effects with intervals, claimed and detectable sizes, counts, scores."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from dinorankclip.formatting import MISSING
from dinorankclip_studies.claim import AT_CHANCE, EvidenceLine, Judged, in_unit
from dinorankclip_studies.papers import measures_of
from dinorankclip_studies.results import Results
from dinorankclip_studies.verdicts import ALPHA, SMALLEST, detectable_at, seeds_needed


def mean_r1(study: Results) -> dict[str, float]:
    """Return the mean R@1 of each cell over its seeds."""
    score = measures_of(study.name).mean_r1
    return {cell: mean(values.values()) for cell in study.cells() if (values := study.values(cell, score))}


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def table_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def effect_text(line: EvidenceLine) -> str:
    """Write an effect as `+1.23 [0.40, 2.06] points`."""
    effect = line.effect
    if effect.n == 0:
        return "not run"
    factor, unit = {"degrees": (1.0, "°"), "times": (1.0, "×")}.get(line.unit, (1.0, ""))
    if line.unit in ("points", "points a step"):
        factor, unit = 100.0, " %" if line.level else f" {line.unit}"
    digits = 4 if line.unit == "number" else 2
    text = f"{factor * effect.mean:{'' if line.level else '+'}.{digits}f}"
    if effect.low is not None and effect.high is not None:
        text += f" [{factor * effect.low:.{digits}f}, {factor * effect.high:.{digits}f}]"
    return f"{text}{unit}"


def deciding_line(each: Judged) -> EvidenceLine | None:
    """Return the line that decided a verdict; where the claim is contradicted, a line that opposes it. None if nothing
    decisive was measured."""
    decisive = [line for line in each.evidence.shown if line.decisive and line.effect.n]
    if each.evidence.verdict == "contradicted":
        opposing = [line for line in decisive if line.effect.shown and line.direction * line.effect.mean < 0]
        decisive = opposing or decisive
    return next((line for line in decisive if line.deciding), decisive[0] if decisive else None)


def claimed_text(line: EvidenceLine) -> str:
    if line.size is None:
        return MISSING
    borrowed = f" (of {line.borrowed})" if line.borrowed else ""
    return in_unit(line.direction * line.size, line.unit) + borrowed


def detectable_text(line: EvidenceLine) -> str:
    smallest = None if line.level else detectable_at(line.effect, ALPHA / line.family)
    return MISSING if smallest is None else in_unit(smallest, line.unit)


def seeds_text(claims: Sequence[Judged]) -> str:
    """Write how many seeds would decide inconclusive claims, by the spread of the difference that left each open. Left
    out are claims that seeds alone do not decide: near chance, of equality, of the level of one cell."""
    needed = []
    for each in claims:
        line = deciding_line(each)
        of_seeds = line is not None and line.deciding and not line.level and not line.rounds
        if line is None or not of_seeds or AT_CHANCE in each.evidence.marks or not line.effect.sd:
            continue
        size = abs(line.size) if line.size else SMALLEST[line.unit]
        needed.append(seeds_needed(line.effect.sd, size, ALPHA / line.family))
    if not needed:
        return ""
    groups = {"at most 8": 0, "9 to 30": 0, "31 to 200": 0, "more than 200": 0}
    for n in needed:
        groups["at most 8" if n <= 8 else "9 to 30" if n <= 30 else "31 to 200" if n <= 200 else "more than 200"] += 1
    counts = ", ".join(f"{name} in {count}" for name, count in groups.items() if count)
    rest = len(claims) - len(needed)
    others = f"; the other {rest} are near chance, or of another kind" if rest else ""
    return (
        f" At the spread measured here, an effect of the claimed size needs this many seeds to show: {counts}{others}."
    )


def n_text(lines: Sequence[EvidenceLine]) -> str:
    """Return the number of seeds, or of rounds of a bench."""
    if not lines:
        return MISSING
    return count_range(sorted(line.effect.n for line in lines)) + (" rounds" if lines[0].rounds else "")


def count_range(counts: Sequence[int]) -> str:
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]}–{counts[-1]}"
