"""The differences that matter most, paired by seed: what each step of the method adds, and what its controls leave."""

from __future__ import annotations

from collections.abc import Mapping

from dinorankclip.study.effects import Effect, paired
from dinorankclip.study.table_shapes import Column
from dinorankclip.study.tables.columns import about_ranking, cone, fine, mean_r1, ranking
from dinorankclip.writeup.numbers import MISSING, Form, form_of
from dinorankclip.writeup.plain_table import PlainTable
from dinorankclip.writeup.study_material import StudyMaterial

# Row → (cell that is taken off, cell it is taken off from).
DIFFERENCES: Mapping[str, tuple[str, str]] = {
    "CyCLIP − CLIP": ("clip", "cyclip"),
    "ALIP-style − CLIP": ("clip", "alip"),
    "RankCLIP − CLIP": ("clip", "rankclip"),
    "order 2 − RankCLIP": ("rankclip", "rank-2"),
    "order 3 − RankCLIP": ("rankclip", "rank-3"),
    "order 3 with fast heads − RankCLIP": ("rankclip", "rank-3-quick"),
    "full − CLIP": ("clip", "full"),
    "full − RankCLIP": ("rankclip", "full"),
    "full − order 3 without a teacher": ("rank-3", "full"),
    "full without a teacher − CLIP": ("clip", "control-no-teacher"),
    "full − full without a teacher": ("control-no-teacher", "full"),
    "full − full with a random teacher": ("control-random-teacher", "full"),
    "full − order 3 with a trunk of its size": ("control-large-trunk", "full"),
    "full − order 3, teacher distilled into the trunk": ("control-trunk-distil", "full"),
    "full − CLIP at equal time": ("control-clip-longer", "full"),
    "full with fast heads − full": ("full", "full-quick"),
    "trained longer: RankCLIP − CLIP": ("control-clip-longer", "rankclip-longer"),
    "trained longer: order 3 − RankCLIP": ("rankclip-longer", "rank-3-longer"),
    "trained longer: full − CLIP": ("control-clip-longer", "full-longer"),
    "trained longer: full − RankCLIP": ("rankclip-longer", "full-longer"),
}


def paired_differences(material: StudyMaterial) -> list[PlainTable]:
    """None where no two of these cells share a seed."""
    measures, results = material.measures, material.results
    columns = (mean_r1(measures), fine(measures), *ranking(measures), cone(measures))
    rows = {}
    for label, (less, more) in DIFFERENCES.items():
        effects = [paired(results.values(less, column.score), results.values(more, column.score)) for column in columns]
        if any(effect.n for effect in effects):
            rows[label] = effects
    if not rows:
        return []
    forms = [_form(column, [effects[place] for effects in rows.values()]) for place, column in enumerate(columns)]
    return [
        PlainTable(
            "differences",
            "Paired differences",
            ("", "n", *(column.heading for column in columns)),
            tuple(
                (label, str(max(effect.n for effect in effects)), *map(_told, effects, forms))
                for label, effects in rows.items()
            ),
            "Mean over the n seeds that both cells have of the difference at each seed, with its 95 % interval where "
            f"n ≥ 3; shares in percentage points. {about_ranking(measures)} A smaller cone separation is a smaller gap "
            f"between the modalities. Intervals are not corrected for their number. {material.teacher_sentence}",
        )
    ]


def _form(column: Column, effects: list[Effect]) -> Form:
    return form_of([effect.mean for effect in effects if effect.n], column.percent)


def _told(effect: Effect, form: Form) -> str:
    if not effect.n:
        return MISSING
    if effect.low is None or effect.high is None:
        return form.signed(effect.mean)
    return f"{form.signed(effect.mean)} [{form.end(effect.low)}, {form.end(effect.high)}]"
