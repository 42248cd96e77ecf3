"""Writes the part of claims.md that has the verdicts of several studies of the same cells side by side.

The studies differ in what all their cells share, such as the optimiser. Each column is judged by the same rules from
its own runs. A study that is not finished has its verdicts so far, with the number of seeds they rest on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dinorankclip.formatting import MISSING
from dinorankclip.report.html import wrapped
from dinorankclip.stored_settings import BEFORE_SETTING
from dinorankclip_studies.claim import Judged
from dinorankclip_studies.claim_words import deciding_line, detectable_text, effect_text, mean_r1, percent, table_row
from dinorankclip_studies.papers import all_studies, measures_of, paper_of
from dinorankclip_studies.results import Results
from dinorankclip_studies.verdicts import VERDICTS

HEADING = "Verdicts side by side"
OPTIMISERS = {"adamw": "AdamW", "muon": "Muon"}


def verdicts_beside(studies: Sequence[Results], verdicts: Mapping[str, Sequence[Judged]]) -> list[str]:
    """Return the section as lines of Markdown; empty unless two studies of the first study's kind have runs."""
    kind = measures_of(studies[0].name).kind
    compared = [study for study in studies if study.runs and measures_of(study.name).kind == kind]
    if len(compared) < 2:
        return []
    heads = [f"{study.name}: {about_study(study)}" for study in compared]
    planned = [all_studies()[study.name]().seeds for study in compared]
    columns = [{each.claim.id: each for each in verdicts[study.name]} for study in compared]
    lines = [f"## {HEADING}", "", wrapped(_explained(compared, columns)), ""]
    lines += [table_row(("claims of the paper", *heads)), f"| --- |{' --: |' * len(heads)}"]
    counts = [Counter(each.evidence.verdict for each in column.values() if each.counts) for column in columns]
    lines += [table_row((verdict, *(str(count[verdict]) for count in counts))) for verdict in VERDICTS]
    lines += [table_row(("all", *(str(count.total()) for count in counts))), ""]
    lines += [table_row(("claim", *heads)), f"| --- |{' --- |' * len(heads)}"]
    for name, first in columns[0].items():
        if not first.claim.same_as:
            control = " *A control that the paper lacks.*" if first.claim.control else ""
            cells = [_verdict(column[name], seeds) for seeds, column in zip(planned, columns)]
            lines.append(table_row((f"{first.claim.says}{control} [↓](#{name})", *cells)))
    return [*lines, ""]


def about_study(study: Results) -> str:
    """Describe what all runs of a study share: `with Muon, 8 epochs, CLIP at 38.0 %`."""
    base = paper_of(study.name).main_cells[0]
    run = next(iter(study.of(base).values()), study.runs[0])
    stands = f"CLIP at {percent(mean_r1(study)[base])}" if base in mean_r1(study) else "CLIP not run yet"
    return f"with {optimiser_of(study)}, {run.settings['budget']['epochs']} epochs, {stands}"


def optimiser_of(study: Results) -> str:
    """Return the name of the optimiser of a study's runs; runs from before the setting had AdamW."""
    name = study.runs[0].settings.get("optim", {}).get("name", BEFORE_SETTING["optim.name"])
    return OPTIMISERS.get(name, name)


def _explained(compared: Sequence[Results], columns: Sequence[Mapping[str, Judged]]) -> str:
    first, *others = compared
    text = (
        "The same claims, judged by the same rules on different runs. Each cell has the verdict, the effect that "
        "decided it with its 95 % interval, and the smallest effect that so many seeds would have shown. Costs of a "
        "step are a bench's and the same in all columns."
    )
    for study, column in zip(others, columns[1:]):
        both = [
            (before.evidence.verdict, column[name].evidence.verdict)
            for name, before in columns[0].items()
            if before.counts and "not run" not in (before.evidence.verdict, column[name].evidence.verdict)
        ]
        changed = sum(before != after for before, after in both)
        text += (
            f" Of {len(both)} claims that {first.name} and {study.name} have both measured, {changed} have another "
            f"verdict in {study.name}."
        )
    for study in compared:
        there, whole = {run.key for run in study.runs}, {run.key for run in all_studies()[study.name]().runs()}
        if len(there) < len(whole):
            text += f" Study {study.name} has {len(there)} of {len(whole)} runs so far; verdicts may change."
    return text


def _verdict(each: Judged, planned: Mapping[str, int]) -> str:
    verdict, line = f"**{each.evidence.verdict}**", deciding_line(each)
    if line is None:
        return verdict
    if so_far := _so_far(each, planned):
        verdict += f": {so_far}"
    detectable = detectable_text(line)
    words = f"{line.label}: {effect_text(line)}" + (f", detectable {detectable}" if detectable != MISSING else "")
    return f"{verdict}<br>{words}"


def _so_far(each: Judged, planned: Mapping[str, int]) -> str:
    """Return words such as `2 of 8 seeds so far`; empty if every planned seed of the claim's cells is there."""
    seeds = [planned[cell] for cell in each.claim.cells if cell in planned]
    there = min(line.effect.n for line in each.evidence.shown if line.decisive)
    return f"{there} of {min(seeds)} seeds so far" if seeds and there < min(seeds) else ""
