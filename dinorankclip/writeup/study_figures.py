"""The figures of a study in the order of its report. One that cannot be drawn becomes a sentence that says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from tqdm import tqdm

from dinorankclip.data.damage import Damage
from dinorankclip.study.table_shapes import Column
from dinorankclip.study.tables.columns import about_ranking, headline, mean_r1, ranking_quality
from dinorankclip.types import UserError
from dinorankclip.writeup.figures.cone_bars import cone_bars
from dinorankclip.writeup.figures.confusions import Probed, confusion_matrices, fine_cases, probe_models
from dinorankclip.writeup.figures.cost import cost_over_order
from dinorankclip.writeup.figures.drawn import Drawn, Unavailable
from dinorankclip.writeup.figures.grams import gram_heatmaps
from dinorankclip.writeup.figures.order_curves import order_curves
from dinorankclip.writeup.figures.overview import overview
from dinorankclip.writeup.figures.plane import embedding_planes
from dinorankclip.writeup.figures.scaling import data_scaling
from dinorankclip.writeup.figures.teacher_student import teacher_student_histogram
from dinorankclip.writeup.figures.transitions import transition_heatmaps
from dinorankclip.writeup.figures.won_and_lost import won_and_lost
from dinorankclip.writeup.study_material import StudyMaterial

PAIR = {"clip": "CLIP", "full": "full method"}
TRIO = {"clip": "CLIP", "rankclip": "RankCLIP", "full": "full"}


@dataclass(frozen=True)
class Missing:
    name: str
    title: str
    why: str


def study_figures(material: StudyMaterial) -> Iterator[Drawn | Missing]:
    """Drawn one after another, so that each can be written and forgotten."""
    makers = _makers(material)
    for (name, title), make in tqdm(makers.items(), desc="figures", unit="figure", leave=False):
        try:
            yield replace(make(), drawn_from=material.pictured)
        except (Unavailable, UserError, Damage, OSError) as error:
            yield Missing(name, title, str(error))


def _makers(material: StudyMaterial) -> dict[tuple[str, str], Callable[[], Drawn]]:
    results, measures, models = material.results, material.measures, material.models
    probed: list[Probed] = []  # two figures share the probes

    def probes() -> Probed:
        if not probed:
            probed.append(probe_models(models, measures.fine, TRIO))
        return probed[0]

    shares = measures.fine_errors_in_family
    return {
        ("overview", "The method"): overview,
        ("order-curves", "Scores over the order"): lambda: order_curves(
            results, _order_columns(material), about_ranking(measures)
        ),
        ("data-scaling", "Data scaling"): lambda: data_scaling(results, _headline(material), material.study.pairs),
        ("cost-over-order", "Cost over the order"): lambda: cost_over_order(material.bench),
        ("cone-separation", "Modality gap, four nodes"): lambda: cone_bars(results, measures.cone),
        ("embedding-plane", "Embeddings in two dimensions"): lambda: embedding_planes(models, measures.retrieval, PAIR),
        ("teacher-student", "Teacher and student"): lambda: teacher_student_histogram(
            models, material.teacher_sentence
        ),
        ("grams", "Patch Grams"): lambda: gram_heatmaps(models, material.teacher_sentence),
        ("transitions", "Transition heads"): lambda: transition_heatmaps(models, "rank-3"),
        ("retrieval", "Retrieval, won and lost"): lambda: won_and_lost(models, measures.retrieval, TRIO),
        ("confusions", "Fine-grained confusions"): lambda: confusion_matrices(probes(), results, shares, TRIO),
        ("fine-cases", "Fine-grained cases"): lambda: fine_cases(probes()),
    }


def _order_columns(material: StudyMaterial) -> tuple[Column, ...]:
    measures = material.measures
    return (*headline(measures), ranking_quality(measures))


def _headline(material: StudyMaterial) -> Column:
    return mean_r1(material.measures)
