"""Writes claims.md of a study file: what its seeds were planned to show, and the verdict on each claim."""

from __future__ import annotations

from dinorankclip.formatting import MISSING
from dinorankclip.report.html import wrapped
from dinorankclip_studies.claim import EvidenceLine, Judged, in_unit, judged
from dinorankclip_studies.claim_words import detectable_text, effect_text, table_row
from dinorankclip_studies.material import StudyMaterial
from dinorankclip_studies.own_study import OwnStudy, when_planned

ABOUT = (
    "Differences are paired by seed, with 95 % t-intervals. Supported: every difference is shown in the claimed "
    "direction (5 % after Holm). Contradicted: one is shown in the other direction. Not supported: the claimed effect "
    "would have been seen, and was not. Inconclusive: the runs cannot tell."
)


def own_claims_page(material: StudyMaterial) -> str:
    """Return the claims of an own study as Markdown."""
    own = material.paper
    assert isinstance(own, OwnStudy), "a study of a file"
    lines = [f"# Claims of study {material.study.name}", "", wrapped(when_planned(material.folder)), ""]
    if not own.claims:
        return "\n".join([*lines, "The file makes no claims.", ""])
    lines += ["## Power, as planned", "", *(f"- {planned.words()}" for planned in own.power), ""]
    lines += ["## Verdicts", "", wrapped(ABOUT), ""]
    heads = ("claim", "verdict", "difference", "effect [95 %]", "claimed", "n", "smallest detectable")
    lines += [table_row(heads), "| --- | --- | --- | --- | --: | --: | --: |"]
    for each in judged(material.results):
        lines += [table_row(_row(each, line)) for line in each.evidence.shown]
    remarks = [
        f"- `{each.claim.id}`: {remark}" for each in judged(material.results) for remark in each.evidence.remarks
    ]
    return "\n".join([*lines, "", *remarks, ""])


def _row(each: Judged, line: EvidenceLine) -> tuple[str, ...]:
    claimed = MISSING if line.size is None else in_unit(line.direction * line.size, line.unit)
    effect = effect_text(line) if line.effect.n else MISSING
    return (
        f"`{each.claim.id}`: {each.claim.says}",
        f"**{each.evidence.verdict}**",
        line.label,
        effect,
        claimed,
        str(line.effect.n),
        detectable_text(line),
    )
