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
from statistics import median

from dinorankclip.formatting import MISSING
from dinorankclip.methods import LABEL
from dinorankclip.report.html import wrapped
from dinorankclip_studies.claim import AS_WELL, AT_CHANCE, INERT, EvidenceLine, Judged, caveat, in_unit, judged
from dinorankclip_studies.claim_words import (
    claimed_text,
    count_range,
    deciding_line,
    detectable_text,
    effect_text,
    mean_r1,
    n_text,
    percent,
    seeds_text,
    table_row,
)
from dinorankclip_studies.material import StudyMaterial
from dinorankclip_studies.papers import Paper, all_studies, measures_of, paper_of, papers
from dinorankclip_studies.results import RESULTS, Results
from dinorankclip_studies.run_times import Bench, duration, load_bench
from dinorankclip_studies.verdicts import ALPHA, SMALLEST, VERDICTS, Verdict
from dinorankclip_studies.verdicts_beside import optimiser_of, verdicts_beside

MOST_SHOWN = 3  # effects in one row of the overview; of more, only the deciding effect is shown

Link = Callable[[str, str], str]  # (study, experiment) → address of its table, from the page


def own_claims(material: StudyMaterial) -> str:
    """Judge by one study; links lead to the tables beside its report."""
    if material.paper.own:
        from dinorankclip_studies.own_claims import own_claims_page

        return own_claims_page(material)
    bench = load_bench(material.bench)
    return claims_markdown(
        [material.results], bench, machine=machine_of(material), link=lambda study, name: f"tables/{name}.md"
    )


def all_claims(paper: Paper, docs: Path, bench: Path, machine: str) -> str:
    """Judge by every judging study of the paper whose results are committed below `docs`."""
    paths = [docs / "study" / name / RESULTS for name in paper.judging]
    stored = [Results.load(path) for path in paths if path.is_file()]
    results = [study for study in stored if study.runs]
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
        *verdicts_beside(studies, verdicts),
        *(line for study in studies for line in _overview(study, verdicts[study.name])),
        *_details(verdicts, link),
        paper_of(studies[0].name).contradictions,
    ]
    return "\n".join(parts).rstrip() + "\n"


def _summary(studies: Sequence[Results], verdicts: Mapping[str, Sequence[Judged]]) -> list[str]:
    """Summarise the tests, their data and their verdicts, and state the limits of the verdicts."""
    count = len({each.claim.id for claims in verdicts.values() for each in claims if each.counts})
    lines = ["## Summary", ""]
    lines += _paragraph(
        f"**What was tested.** {count} claims of the paper, each as a comparison of models that were trained here on "
        "the same pairs, with the same number of steps and the same seeds, unless a table says otherwise. A *cell* is "
        "one variant of the method, trained with several seeds. A verdict rests on differences of cells, seed by seed."
    )
    for study in studies:
        lines += _paragraph(_study_sentences(study))
    for study in studies:
        own = [each for each in verdicts[study.name] if each.counts]
        in_full = measures_of(study.name).kind == measures_of(studies[0].name).kind
        lines += _verdict_lines(study.name, own, in_full)
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


def _paragraph(text: str) -> list[str]:
    return [wrapped(text), ""]


def _study_sentences(study: Results) -> str:
    """Write the number of a study's runs, the time they took, and the quality of their models."""
    if not study.runs:
        return f"**Study {study.name}**: no finished run yet."
    first, means = study.runs[0], mean_r1(study)
    seeds = count_range(sorted(len(study.of(cell)) for cell in study.cells()))
    runs, took = len({run.key for run in study.runs}), duration(median(run.seconds for run in study.runs))
    text = (
        f"**Study {study.name}**: {study.title or 'a study'}. {runs} runs of {len(study.cells())} cells, "
        f"{seeds} seeds each; trunk {first.settings['model']['trunk']}, {first.settings['budget']['epochs']} "
        f"epochs and {first.pairs_seen:,} pairs seen by a run of {first.cell}; a run took {took} (median)."
    )
    if means:
        named = ", ".join(f"{cell} {percent(means[cell])}" for cell in paper_of(study.name).main_cells if cell in means)
        worst, best = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
        text += f" Mean R@1 on held-out pairs, averaged over seeds: {named}" if named else " Mean R@1 on held-out pairs"
        text += f"; lowest {worst} with {percent(means[worst])}, highest {best} with {percent(means[best])}."
    return text


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
        few = f"- *Inconclusive:* {len(group)} claims. Seeds are too few, or differ too much, to tell{why}."
        lines.append(few + seeds_text(group))
    if group := groups["not run"]:
        lines.append(f"- *Not run:* {len(group)} claims. What they compare has not been measured.")
    return [*lines, ""]


def _sentence(each: Judged) -> str:
    """Return a claim with the effect that decided it."""
    line = deciding_line(each)
    assert line is not None, "a verdict rests on a measurement"
    beside = [mark for mark in each.evidence.marks if mark == AS_WELL or mark.startswith("at equal pairs")]
    measured = "; ".join([f"{line.label}: {effect_text(line)}", *beside])
    return f"{each.claim.says} Measured: {measured}. [↓](#{each.claim.id})"


def _limits(studies: Sequence[Results]) -> list[str]:
    lines = []
    small = [study for study in studies if not measures_of(study.name).dinov3]
    if small:
        means = [value for study in small for value in mean_r1(study).values()]
        stand = f"at {percent(min(means))} to {percent(max(means))} mean R@1" if means else "at no score yet"
        lines += _paragraph(
            "**What this does not show.** Verdicts speak about the scale they were measured at: tiny trunks, thousands "
            "of pairs, minutes of training on CPU cores. The paper speaks about CC3M, ViT-B/32 and DINOv3. The cells "
            f"here stand {stand}, and {_optimisers(small)}"
        )
    caveats = dict.fromkeys(caveat(study, study.cells()) for study in studies)
    lines += [line for text in caveats if text for line in _paragraph(f"Where a teacher has a part here: {text}.")]
    return lines + _paragraph(
        "The paper prints numbers of its own method as projections, and most of its baselines as results; sizes that "
        f"are claimed are differences of the two, and stand here labelled “{LABEL}”."
    )


def _optimisers(studies: Sequence[Results]) -> str:
    """Return how the cells were trained, and what that leaves open."""
    trained: dict[str, list[str]] = {}
    for study in studies:
        if study.runs:
            trained.setdefault(optimiser_of(study), []).append(study.name)
    larger = "by larger models or by longer training."
    if len(trained) > 1:
        each = " and ".join(f"those of {', '.join(names)} with {name}" for name, names in trained.items())
        return (
            f"were trained at one learning rate for all methods of a study, {each}. AdamW leaves CLIP on a plateau "
            "here. Studies differ in epochs and lists, too, so a verdict that changed does not tell which of these "
            f"changed it. Methods may be ordered otherwise {larger}"
        )
    optimiser = next(iter(trained), "AdamW")
    left = "that this optimiser leaves on a plateau " if optimiser == "AdamW" else ""
    return (
        f"all were trained with {optimiser} at one learning rate for all methods of a study. Methods {left}may be "
        f"ordered otherwise by another optimiser, {larger}"
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
            "<br>".join(claimed_text(line) for line in shown) or MISSING,
            n_text([line for line in each.evidence.shown if line.decisive]),
            "<br>".join(detectable_text(line) for line in shown) or MISSING,
            "<br>".join((f"**{each.evidence.verdict}**", *map(_short, each.evidence.marks))),
        ]
        lines.append(table_row(cells))
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
    sizes = claimed_text(line), n_text([line]), detectable_text(line)
    return table_row((label, effect_text(line), *sizes, "; ".join(line.scores)))


def _most_telling(each: Judged) -> list[EvidenceLine]:
    """Return the decisive effects; of many, the effect that decided the verdict."""
    decisive = [line for line in each.evidence.shown if line.decisive and line.effect.n]
    if len(decisive) <= MOST_SHOWN:
        return decisive
    deciding = [replace(line, label=f"decides, of {len(decisive)}: {line.label}") for line in decisive if line.deciding]
    return deciding or decisive[:MOST_SHOWN]
