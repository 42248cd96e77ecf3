"""Writes claims.md: every claim of the paper with its measurements, the rule, and the verdict.

The page is complete at any stage: a claim that has not been tested says so. `own_claims` judges by one study and stands
beside the study's report; `all_claims` judges by all committed studies and is docs/claims.md.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

from dinorankclip.formatting import MISSING
from dinorankclip.methods import LABEL
from dinorankclip.report.html import wrapped
from dinorankclip_studies.claim import AS_WELL, AT_CHANCE, INERT, EvidenceLine, Judged, caveat, in_unit, judged
from dinorankclip_studies.material import StudyMaterial
from dinorankclip_studies.papers import Paper, all_studies, measures_of, paper_of, papers
from dinorankclip_studies.results import RESULTS, Results
from dinorankclip_studies.run_times import Bench, duration, load_bench
from dinorankclip_studies.verdicts import ALPHA, SMALLEST, VERDICTS, Verdict, detectable_at

MOST_SHOWN = 3  # effects in one row of the overview; of more, only the deciding effect is shown

Link = Callable[[str, str], str]  # (study, experiment) → address of its table, from the page


def own_claims(material: StudyMaterial) -> str:
    """Judge by one study; links lead to the tables beside its report."""
    bench = load_bench(material.bench)
    return claims_markdown(
        [material.results], bench, machine=machine_of(material), link=lambda study, name: f"tables/{name}.md"
    )


def all_claims(paper: Paper, docs: Path, bench: Path, machine: str) -> str:
    """Judge by every judging study of the paper whose results are committed below `docs`."""
    paths = [docs / "study" / name / RESULTS for name in paper.judging]
    results = [Results.load(path) for path in paths if path.is_file()]
    return claims_markdown(results, load_bench(bench), machine=machine) + "\n".join(_aligned_section(docs))


def _aligned_section(docs: Path) -> list[str]:
    """Return the orders on real photos at a point where models work, from the summary of bench/aligned.py."""
    path = docs / "study" / "aligned" / "summary.json"
    if not path.is_file():
        return []
    orders = json.loads(path.read_text(encoding="utf-8")).get("orders", {})
    lines = [
        "",
        "## Orders on real photos: aligned models",
        "",
        "Heads on frozen towers, Flickr8k, lists of 32, reference RankCLIP. Mean test R@1; differences in points",
        "between runs of the same seed. A run takes seconds, so there are more seeds.",
        "[All tables](study/aligned/README.md).",
        "",
        "| order | seeds | R@1 | difference | detectable | verdict |",
        "| --- | --: | --: | --- | --: | --- |",
    ]
    for cell, row in orders.items():
        difference = detectable = "–"
        if row.get("low") is not None:
            difference = f"{100 * row['difference']:+.2f} [{100 * row['low']:.2f}, {100 * row['high']:.2f}]"
            detectable = f"{100 * row['detectable']:.2f}"
        number = cell.removeprefix("order-")
        verdict = row.get("verdict", "reference")
        lines.append(f"| {number} | {row['n']} | {100 * row['mean']:.2f} % | {difference} | {detectable} | {verdict} |")
    return [*lines, ""]


def machine_of(material: StudyMaterial) -> str:
    """Describe the machine that most runs were made on; empty for a copy without run folders."""
    environments = material.environments()
    if not environments:
        return ""
    about = environments[0][0]
    gpus = ", ".join(about["gpus"]) or "no GPU"
    return f"{about['system']}, {about['cores']} cores, {about['threads']} thread(s) a run, {gpus}"


def table_link(study: str, experiment: str) -> str:
    return f"study/{study}/tables/{experiment}.md"


def claims_markdown(
    results: Sequence[Results], bench: Bench | None = None, *, machine: str = "", link: Link = table_link
) -> str:
    """Return the whole page. `results`: the scenes study first, then others; they may be incomplete or empty."""
    bench = bench or Bench()
    studies = list(results) or [Results(papers()[0].judging[0], ())]
    verdicts = {study.name: judged(study, bench) for study in studies}
    parts = [
        "# The paper's claims, measured",
        "",
        "Generated from the studies' results; do not edit.",
        "",
        *_summary(studies, verdicts),
        *_sources(studies, bench, machine),
        _reading(),
        *(line for study in studies for line in _overview(study, verdicts[study.name])),
        *_details(verdicts, link),
        paper_of(studies[0].name).contradictions,
    ]
    return "\n".join(parts).rstrip() + "\n"


def _summary(studies: Sequence[Results], verdicts: Mapping[str, Sequence[Judged]]) -> list[str]:
    """Summarise the tests, their data and their verdicts, and state the limits of the verdicts."""
    count = len({each.claim.id for claims in verdicts.values() for each in claims if _counts_as_claim(each)})
    lines = ["## Summary", ""]
    lines += _paragraph(
        f"**What was tested.** {count} claims of the paper, each as a comparison of models that were trained here on "
        "the same pairs, with the same number of steps and the same seeds, unless a table says otherwise. A *cell* is "
        "one variant of the method, trained with several seeds. A verdict rests on differences of cells, seed by seed."
    )
    for study in studies:
        lines += _paragraph(_study_sentences(study))
    for study in studies:
        own = [each for each in verdicts[study.name] if _counts_as_claim(each)]
        lines += _verdict_lines(study.name, own, in_full=study is studies[0])
    lines += _limits(studies)
    lines += [f"| study | claims | {' | '.join(VERDICTS)} |", f"| --- | --: |{' --: |' * len(VERDICTS)}"]
    for name, claims in verdicts.items():
        for label, control in ((name, False), (f"{name}, premises and controls that the paper lacks", True)):
            counted = [each for each in claims if each.claim.control == control and not each.claim.same_as]
            counts = Counter(each.evidence.verdict for each in counted)
            if counts:
                cells = " | ".join(str(counts[verdict]) for verdict in VERDICTS)
                lines.append(f"| {label} | {counts.total()} | {cells} |")
    return [*lines, ""]


def _counts_as_claim(each: Judged) -> bool:
    """Return whether a verdict counts among the paper's claims: controls count apart, a second wording not at all."""
    return not each.claim.control and not each.claim.same_as


def _paragraph(text: str) -> list[str]:
    return [wrapped(text), ""]


def _study_sentences(study: Results) -> str:
    """Write the number of a study's runs, the time they took, and the quality of their models."""
    if not study.runs:
        return f"**Study {study.name}**: no finished run yet."
    first, means = study.runs[0], _mean_r1(study)
    seeds = _range(sorted(len(study.of(cell)) for cell in study.cells()))
    took = duration(median(run.seconds for run in study.runs))
    text = (
        f"**Study {study.name}**: {study.title or 'a study'}. {len(study.runs)} runs of {len(study.cells())} cells, "
        f"{seeds} seeds each; trunk {first.settings['model']['trunk']}, {first.settings['budget']['epochs']} "
        f"epochs and {first.pairs_seen:,} pairs seen by a run of {first.cell}; a run took {took} (median)."
    )
    if means:
        named = ", ".join(
            f"{cell} {_percent(means[cell])}" for cell in paper_of(study.name).main_cells if cell in means
        )
        worst, best = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
        text += f" Mean R@1 on held-out pairs, averaged over seeds: {named}" if named else " Mean R@1 on held-out pairs"
        text += f"; lowest {worst} with {_percent(means[worst])}, highest {best} with {_percent(means[best])}."
    return text


def _mean_r1(study: Results) -> dict[str, float]:
    """Return the mean R@1 of each cell over its seeds."""
    score = measures_of(study.name).mean_r1
    return {cell: mean(values.values()) for cell in study.cells() if (values := study.values(cell, score))}


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _verdict_lines(study: str, claims: Sequence[Judged], in_full: bool) -> list[str]:
    """Count the verdicts, and list supported and contradicted claims: `in_full` with their effect, else as links."""
    groups: dict[Verdict, list[Judged]] = {verdict: [] for verdict in VERDICTS}
    for each in claims:
        groups[each.evidence.verdict].append(each)
    counts = ", ".join(f"{len(groups[verdict])} {verdict}" for verdict in VERDICTS if groups[verdict])
    lines = [f"**Verdicts of study {study}** on {len(claims)} claims: {counts}.", ""]
    for verdict in ("supported", "contradicted"):
        if in_full:
            lines += [f"- *{verdict.capitalize()}:* {_sentence(each)}" for each in groups[verdict]]
        elif groups[verdict]:
            links = ", ".join(f"[{each.claim.id}](#{each.claim.id})" for each in groups[verdict])
            lines.append(f"- *{verdict.capitalize()}:* {links}")
    if group := groups["not supported"]:
        inert = sum(INERT in each.evidence.marks for each in group)
        lines.append(
            f"- *Not supported:* {len(group)} claims. No effect in the claimed direction was shown, although an effect "
            f"of the claimed size would have been{f'; in {inert} of them an order does nothing' if inert else ''}."
        )
    if group := groups["inconclusive"]:
        near_chance = sum(AT_CHANCE in each.evidence.marks for each in group)
        why = f"; in {near_chance} of them no compared model is clearly above chance" if near_chance else ""
        lines.append(f"- *Inconclusive:* {len(group)} claims. Seeds are too few, or differ too much, to tell{why}.")
    if group := groups["not run"]:
        lines.append(f"- *Not run:* {len(group)} claims. What they compare has not been measured.")
    return [*lines, ""]


def _sentence(each: Judged) -> str:
    """Return a claim with the effect that decided it: where a claim is contradicted, an effect that opposes it."""
    decisive = [line for line in each.evidence.shown if line.decisive and line.effect.n]
    if each.evidence.verdict == "contradicted":
        opposing = [line for line in decisive if line.effect.shown and line.direction * line.effect.mean < 0]
        decisive = opposing or decisive
    line = next((line for line in decisive if line.deciding), decisive[0])
    beside = [mark for mark in each.evidence.marks if mark == AS_WELL or mark.startswith("at equal pairs")]
    measured = "; ".join([f"{line.label}: {effect_text(line)}", *beside])
    return f"{each.claim.says} Measured: {measured}. [↓](#{each.claim.id})"


def _limits(studies: Sequence[Results]) -> list[str]:
    lines = []
    small = [study for study in studies if not measures_of(study.name).dinov3]
    if small:
        means = [value for study in small for value in _mean_r1(study).values()]
        stand = f"at {_percent(min(means))} to {_percent(max(means))} mean R@1" if means else "at no score yet"
        lines += _paragraph(
            "**What this does not show.** Verdicts speak about the scale they were measured at: tiny trunks, thousands "
            "of pairs, minutes of training on CPU cores. The paper speaks about CC3M, ViT-B/32 and DINOv3. The cells "
            f"here stand {stand}, and all were trained with AdamW at one learning rate for all methods of a study. "
            "Methods that this optimiser leaves on a plateau may be ordered otherwise by another optimiser, by larger "
            "models or by longer training."
        )
    caveats = dict.fromkeys(caveat(study, study.cells()) for study in studies)
    lines += [line for text in caveats if text for line in _paragraph(f"Where a teacher has a part here: {text}.")]
    return lines + _paragraph(
        "The paper prints numbers of its own method as projections, and most of its baselines as results; sizes that "
        f"are claimed are differences of the two, and stand here labelled “{LABEL}”."
    )


def _sources(studies: Sequence[Results], bench: Bench, machine: str) -> list[str]:
    lines = ["## Sources", ""]
    for study in studies:
        revisions = ", ".join(sorted({str(run.revision)[:10] for run in study.runs}))
        lines.append(f"- **{study.name}**: {f'revision {revisions}' if study.runs else 'no finished run yet'}")
    steps = f"{bench.title}; {bench.machine} ({bench.source})" if bench.seconds else "not measured yet"
    lines.append(f"- **step costs**: {steps}")
    if machine:
        lines.append(f"- **machine of the studies**: {machine}")
    return [*lines, ""]


def _reading() -> str:
    values = {"points": in_unit(SMALLEST["points"], "points"), "degrees": in_unit(SMALLEST["degrees"], "degrees")}
    text = (Path(__file__).parent / "reading_claims.md").read_text(encoding="utf-8")
    return text.format(label=LABEL, alpha=ALPHA, number=SMALLEST["number"], **values)


def _overview(study: Results, claims: Sequence[Judged]) -> list[str]:
    lines = [
        f"## Verdicts, study {study.name}",
        "",
        f"| claim | experiment | paired effect [95 %] | claimed, {LABEL} | n | smallest detectable | verdict |",
        "| --- | --- | --- | --- | --: | --- | --- |",
    ]
    for each in claims:
        shown = _most_telling(each)
        cells = [
            f"{each.claim.says} [↓](#{each.claim.id})",
            ", ".join(each.claim.experiments),
            "<br>".join(f"{line.label}: {effect_text(line)}" for line in shown) or MISSING,
            "<br>".join(_claimed(line) for line in shown) or MISSING,
            _n([line for line in each.evidence.shown if line.decisive]),
            "<br>".join(_detectable(line) for line in shown) or MISSING,
            "<br>".join((f"**{each.evidence.verdict}**", *map(_short, each.evidence.marks))),
        ]
        lines.append(_row(cells))
    return [*lines, ""]


def _short(mark: str) -> str:
    """Shorten a teacher's remark for a narrow column: keep the first phrase in brackets; details give the rest."""
    return re.sub(r"\(([^,()]*),[^()]*\)", r"(\1)", mark)


def _details(verdicts: Mapping[str, Sequence[Judged]], link: Link) -> list[str]:
    """List every claim with the evidence of all studies, in the paper's order."""
    by_id: dict[str, list[Judged]] = {}
    for claim in paper_of(next(iter(verdicts))).claims:
        by_id[claim.id] = [each for claims in verdicts.values() for each in claims if each.claim.id == claim.id]
    lines = ["## Claim by claim", ""]
    for judgements in filter(None, by_id.values()):
        claim = judgements[0].claim
        lines += [f"### {claim.id}", "", f"{claim.says} *{claim.where}.* Rule: {claim.judge.rule}.", ""]
        for each in judgements:
            tables = ", ".join(f"[{name}]({link(each.study, name)})" for name in _tables(each))
            remarks = "".join(f" {remark[0].upper()}{remark[1:]}." for remark in each.evidence.remarks)
            lines += [f"**{each.study}: {each.evidence.verdict}.**{remarks} Tables: {tables}.", ""]
            if any(line.effect.n for line in each.evidence.shown):
                lines += [
                    f"| | effect [95 %] | claimed, {LABEL} | n | smallest detectable | scores |",
                    "| --- | --- | --- | --: | --- | --- |",
                    *(_evidence_row(line) for line in each.evidence.shown if line.decisive or line.effect.n),
                    "",
                ]
    return lines


def _tables(each: Judged) -> list[str]:
    """Return the claim's tables that its study has."""
    if not each.claim.cells:
        return [paper_of(each.study).cost]
    known = {experiment.name for experiment in all_studies()[each.study]().experiments}
    return [name for name in each.claim.experiments if name in known]


def _evidence_row(line: EvidenceLine) -> str:
    label = line.label if line.decisive else f"*beside:* {line.label}"
    return _row((label, effect_text(line), _claimed(line), _n([line]), _detectable(line), "; ".join(line.scores)))


def _row(cells: Sequence[str]) -> str:
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


def _most_telling(each: Judged) -> list[EvidenceLine]:
    """Return the decisive effects; of many, the effect that decided the verdict."""
    decisive = [line for line in each.evidence.shown if line.decisive and line.effect.n]
    if len(decisive) <= MOST_SHOWN:
        return decisive
    deciding = [replace(line, label=f"decides, of {len(decisive)}: {line.label}") for line in decisive if line.deciding]
    return deciding or decisive[:MOST_SHOWN]


def _claimed(line: EvidenceLine) -> str:
    if line.size is None:
        return MISSING
    borrowed = f" (of {line.borrowed})" if line.borrowed else ""
    return in_unit(line.direction * line.size, line.unit) + borrowed


def _detectable(line: EvidenceLine) -> str:
    smallest = None if line.level else detectable_at(line.effect, ALPHA / line.family)
    return MISSING if smallest is None else in_unit(smallest, line.unit)


def _n(lines: Sequence[EvidenceLine]) -> str:
    """Return the number of seeds, or of rounds of a bench."""
    if not lines:
        return MISSING
    return _range(sorted(line.effect.n for line in lines)) + (" rounds" if lines[0].rounds else "")


def _range(counts: Sequence[int]) -> str:
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]}–{counts[-1]}"
