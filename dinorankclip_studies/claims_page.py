"""docs/claims.md: every claim of the paper with what was measured, the rule, and the verdict. Complete at any stage:
what has not run is said to be so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dinorankclip.formatting import MISSING
from dinorankclip.methods import LABEL
from dinorankclip_studies.claim import Claim, Shown, caveat, in_unit
from dinorankclip_studies.material import StudyMaterial
from dinorankclip_studies.papers.dinorankclip.all_claims import CLAIMS, Judged, judged
from dinorankclip_studies.papers.dinorankclip.contradictions import CONTRADICTIONS
from dinorankclip_studies.papers.dinorankclip.extra_tables import ORDER_COST
from dinorankclip_studies.papers.dinorankclip.measures import measures_of
from dinorankclip_studies.papers.dinorankclip.plans import STUDIES
from dinorankclip_studies.results import RESULTS, Results
from dinorankclip_studies.run_times import Bench, load_bench
from dinorankclip_studies.verdicts import ALPHA, SMALLEST, VERDICTS, detectable_at

SHOWN_AT_MOST = 3  # effects in one row of the overview; of more, the deciding one is shown

Link = Callable[[str, str], str]  # (study, experiment) → where its table is, from the page


def table_link(study: str, experiment: str) -> str:
    return f"study/{study}/tables/{experiment}.md"


def claims_markdown(
    results: Sequence[Results], bench: Bench | None = None, *, machine: str = "", link: Link = table_link
) -> str:
    """The whole page. `results`: the scenes study first, then others; they need not be complete, nor there at all."""
    bench = bench or Bench()
    studies = list(results) or [Results("full", ())]
    found = {study.name: judged(study, bench) for study in studies}
    parts = [
        *_head(studies, bench, machine),
        *_reading(),
        *_counts(found),
        *(line for study in studies for line in _overview(study, found[study.name])),
        *_details(found, link),
        *_contradictions(),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _head(studies: Sequence[Results], bench: Bench, machine: str) -> list[str]:
    lines = ["# The paper's claims, measured", "", "Generated from the studies' results; do not edit."]
    if not all(measures_of(study.name).dinov3 for study in studies):
        lines += [
            "Verdicts speak about the scale they were measured at: tiny trunks, thousands of pairs, minutes of",
            "training on two CPU cores. The paper speaks about CC3M, ViT-B/32 and DINOv3.",
        ]
    told = dict.fromkeys(caveat(study, study.cells()) for study in studies)
    lines += [f"Where a teacher has a part here: {one}." for one in told if one]
    lines += [
        "The paper prints numbers of its own method as projections, and most of its baselines as results; sizes that",
        f"are claimed are differences of the two, and stand here labelled “{LABEL}”.",
        "",
    ]
    for study in studies:
        lines.append(f"- **{study.name}**: {_about(study)}")
    lines.append(f"- **step costs**: {bench.title}; {bench.machine} ({bench.source})" if bench.seconds else
                 "- **step costs**: not measured yet")  # fmt: skip
    if machine:
        lines.append(f"- **machine of the studies**: {machine}")
    return [*lines, ""]


def _about(study: Results) -> str:
    if not study.runs:
        return "no finished run yet"
    seeds = sorted(len(study.of(cell)) for cell in study.cells())
    first = study.runs[0]
    told = [
        study.title or "a study",
        f"{len(study.runs)} runs of {len(seeds)} cells, {_range(seeds)} seeds each",
        f"trunk {first.settings['model']['trunk']}, {first.settings['budget']['epochs']} epochs, "
        f"{first.pairs_seen:,} pairs seen a run",
        f"revision {', '.join(sorted({str(run.revision)[:10] for run in study.runs}))}",
    ]
    return "; ".join(told)


def _reading() -> list[str]:
    return [
        "## How to read this",
        "",
        "Effects are differences paired by seed, with 95 % t-intervals over seeds; a point is a hundredth of a share.",
        "*Smallest detectable*: the true effect that so many seeds of this spread would have shown in 80 % of studies;",
        "of several comparisons that must all hold, at 5 % over their number. Of many, the one that decided is shown.",
        "",
        "- **supported**: the interval excludes 0 in the claimed direction; **contradicted**: in the other.",
        f"- **not supported**: it contains 0, although the claimed effect ({LABEL}) would have been detected, and",
        "  leaves that one out; **inconclusive**: it contains 0 and could be the claimed effect too, or n < 3.",
        "- *Smaller than claimed*: supported in its direction, while the interval leaves the claimed size out.",
        f"  Where the paper gives no size: {in_unit(SMALLEST['points'], 'points')}, "
        f"{in_unit(SMALLEST['degrees'], 'degrees')}, {SMALLEST['number']:g} of a plain number.",
        "- Claims of several comparisons (hierarchies, “best of six”, “on every benchmark”) hold only if all do, with",
        "  Holm's correction over the family; one that is shown to go the other way contradicts them (of several",
        "  bounds or equalities at 5 % over their number).",
        "- “Equal”, “saturates”, “additive”: two one-sided tests against the stated margin. Parts that are said",
        "  to be equal, or to add up, must first be shown to be there.",
        "- All cells share one learning rate; where it was tuned, it is the best on the average of all methods, on",
        "  validation pairs with a seed that is not reported.",
        "- An order whose relative spread ends below 1e-3 is *inert*; no claim that it helps, or saturates, is then",
        "  supported.",
        "- *Near chance*: no compared cell is shown to be a point above chance on a score that decides, so that it",
        "  tells nothing; the effect stands there without a say.",
        "- Costs are measured in rounds of a bench, sides alternating; their n counts rounds, not seeds.",
        "- Sizes “of” another comparison are borrowed from it: the paper prints none of this one. Controls that the",
        "  paper lacks are counted apart.",
        f"- There is no correction over claims: at {ALPHA:.0%} each, a few in a hundred would be wrong by chance. Nor",
        "  are they independent: claims on the modality gap, or on the order, share cells, and fall together.",
        "- These rules came after a first look at the scenes study: at least three seeds; nothing decided near chance;",
        "  inert orders do not saturate; a claimed size inside the interval is not refuted; one of several bounds or",
        "  equalities contradicts at a share of the level. They only take away. Two comparisons were added when their",
        "  results were known: `teacher-fine-alone`, and order 3 with RankCLIP in `order-quick`.",
        "- “Matched” is the number of pairs, steps and updates, not time: a step of the full method costs more. What",
        "  CLIP does with the same time is a claim of its own (equal-compute).",
        "- “Accuracy” is mean R@1 of both directions on held-out pairs where the paper has ImageNet1K top-1: zero-shot",
        "  accuracy of models this small is too near chance to tell them apart, and stands beside it. (A study of the",
        "  paper's own scale is judged by ImageNet1K top-1.)",
        "- Claimed sizes are taken as printed, in points, though the paper's accuracies are another task's.",
        "",
    ]


def _counts(found: Mapping[str, Sequence[Judged]]) -> list[str]:
    lines = [
        "## Summary",
        "",
        f"| study | claims | {' | '.join(VERDICTS)} |",
        f"| --- | --: |{' --: |' * len(VERDICTS)}",
    ]
    for study, claims in found.items():
        for name, control in ((study, False), (f"{study}, premises and controls that the paper lacks", True)):
            counts = Counter(one.evidence.verdict for one in claims if one.claim.control == control)
            if counts:
                told = " | ".join(str(counts[verdict]) for verdict in VERDICTS)
                lines.append(f"| {name} | {counts.total()} | {told} |")
    return [*lines, ""]


def _overview(study: Results, claims: Sequence[Judged]) -> list[str]:
    lines = [
        f"## Verdicts, study {study.name}",
        "",
        f"| claim | experiment | paired effect [95 %] | claimed, {LABEL} | n | smallest detectable | verdict |",
        "| --- | --- | --- | --- | --: | --- | --- |",
    ]
    for one in claims:
        shown = _telling(one)
        cells = [
            f"{one.claim.says} [↓](#{one.claim.id})",
            ", ".join(one.claim.experiments),
            "<br>".join(f"{line.label}: {effect_text(line)}" for line in shown) or MISSING,
            "<br>".join(_claimed(line) for line in shown) or MISSING,
            _n([line for line in one.evidence.shown if line.decisive]),
            "<br>".join(_detectable(line) for line in shown) or MISSING,
            "<br>".join((f"**{one.evidence.verdict}**", *map(_short, one.evidence.marks))),
        ]
        lines.append(f"| {' | '.join(_escaped(cell) for cell in cells)} |")
    return [*lines, ""]


def _short(mark: str) -> str:
    """A column is narrow: of what stands in brackets behind a teacher, the first word on it; the rest is told below."""
    return re.sub(r"\(([^,()]*),[^()]*\)", r"(\1)", mark)


def _details(found: Mapping[str, Sequence[Judged]], link: Link) -> list[str]:
    lines = ["## Claim by claim", ""]
    for claim in CLAIMS:
        of_claim = [one for claims in found.values() for one in claims if one.claim is claim]
        if of_claim:
            lines += _detail(claim, of_claim, link)
    return lines


def _detail(claim: Claim, of_claim: Sequence[Judged], link: Link) -> list[str]:
    lines = [f"### {claim.id}", "", f"{claim.says} *{claim.where}.* Rule: {claim.judge.rule}.", ""]
    for one in of_claim:
        tables = ", ".join(f"[{name}]({link(one.study, name)})" for name in _tables(one))
        remarks = f" {_sentences(one.evidence.remarks)}" if one.evidence.remarks else ""
        lines += [f"**{one.study}: {one.evidence.verdict}.**{remarks} Tables: {tables}.", ""]
        if any(line.effect.n for line in one.evidence.shown):
            lines += [
                f"| | effect [95 %] | claimed, {LABEL} | n | smallest detectable | scores |",
                "| --- | --- | --- | --: | --- | --- |",
                *(_line(line) for line in one.evidence.shown if line.decisive or line.effect.n),
                "",
            ]
    return lines


def _tables(one: Judged) -> list[str]:
    """Those that its study has; of what only a bench measures, the table of costs."""
    if not one.claim.cells:
        return [ORDER_COST]
    known = {experiment.name for experiment in STUDIES[one.study]().experiments}
    return [name for name in one.claim.experiments if name in known]


def _line(line: Shown) -> str:
    label = line.label if line.decisive else f"*beside:* {line.label}"
    cells = (label, effect_text(line), _claimed(line), _n([line]), _detectable(line), "; ".join(line.scores))
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _contradictions() -> list[str]:
    lines = [
        "## Where the paper contradicts itself",
        "",
        f"All numbers in this part are the paper's own: **{LABEL}**.",
        "",
    ]
    for title, group in CONTRADICTIONS:
        lines += [f"### {title}", "", f"| where | the paper says ({LABEL}) | but |", "| --- | --- | --- |"]
        lines += [f"| {_escaped(one.where)} | {_escaped(one.says)} | {_escaped(one.but)} |" for one in group]
        lines.append("")
    return lines


def effect_text(line: Shown) -> str:
    """`+1.23 [0.40, 2.06] points`"""
    effect, (factor, unit) = line.effect, _shown_unit(line)
    if effect.n == 0:
        return "not run"
    digits = 4 if line.unit == "number" else 2
    text = f"{factor * effect.mean:{'' if line.level else '+'}.{digits}f}"
    if effect.low is not None and effect.high is not None:
        text += f" [{factor * effect.low:.{digits}f}, {factor * effect.high:.{digits}f}]"
    return f"{text}{unit}"


def _shown_unit(line: Shown) -> tuple[float, str]:
    if line.unit in ("points", "points a step"):
        return 100.0, " %" if line.level else f" {line.unit}"
    return {"degrees": (1.0, "°"), "times": (1.0, "×")}.get(line.unit, (1.0, ""))


def _telling(one: Judged) -> list[Shown]:
    """The decisive effects, or of many the one that brought the verdict about."""
    decisive = [line for line in one.evidence.shown if line.decisive and line.effect.n]
    if len(decisive) <= SHOWN_AT_MOST:
        return decisive
    deciding = [replace(line, label=f"decides, of {len(decisive)}: {line.label}") for line in decisive if line.deciding]
    return deciding or decisive[:SHOWN_AT_MOST]


def _claimed(line: Shown) -> str:
    if line.size is None:
        return MISSING
    borrowed = f" (of {line.borrowed})" if line.borrowed else ""
    return in_unit(line.direction * line.size, line.unit) + borrowed


def _detectable(line: Shown) -> str:
    smallest = None if line.level else detectable_at(line.effect, ALPHA / line.family)
    return MISSING if smallest is None else in_unit(smallest, line.unit)


def _n(lines: Sequence[Shown]) -> str:
    """Of seeds, if nothing else is said."""
    if not lines:
        return MISSING
    return _range(sorted(line.effect.n for line in lines)) + (" rounds" if lines[0].rounds else "")


def _range(counts: Sequence[int]) -> str:
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]}–{counts[-1]}"


def _sentences(remarks: Sequence[str]) -> str:
    return " ".join(f"{remark[0].upper()}{remark[1:]}." for remark in remarks)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


# -------- study_claims
# Verdicts on the paper's claims: of one study beside its report, of all committed studies in docs/claims.md.

JUDGING = ("full", "flickr8k")  # studies large enough for verdicts in the docs, in the order of the page


def own_claims(material: StudyMaterial) -> str:
    """By this study alone; tables are linked as they lie beside the report."""
    bench = load_bench(material.bench)
    return claims_markdown(
        [material.results], bench, machine=machine_of(material), link=lambda study, name: f"tables/{name}.md"
    )


def all_claims(docs: Path, bench: Path, machine: str) -> str:
    """By every judging study whose results are committed below `docs`."""
    paths = [docs / "study" / name / RESULTS for name in JUDGING]
    return claims_markdown([Results.load(path) for path in paths if path.is_file()], load_bench(bench), machine=machine)


def machine_of(material: StudyMaterial) -> str:
    """The machine that most runs were made on; empty for a copy without run folders."""
    found = material.environments()
    if not found:
        return ""
    about = found[0][0]
    gpus = ", ".join(about["gpus"]) or "no GPU"
    return f"{about['system']}, {about['cores']} cores, {about['threads']} thread(s) a run, {gpus}"
