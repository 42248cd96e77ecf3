"""Lists the figures of a report, each with the function that draws it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from dinorankclip.report.figures import Drawn
from dinorankclip_studies.material import StudyMaterial
from dinorankclip_studies.papers.dinorankclip.figures_examples import (
    Probed,
    confusion_matrices,
    fine_cases,
    probe_models,
    won_and_lost,
)
from dinorankclip_studies.papers.dinorankclip.figures_geometry import cone_bars, embedding_planes, transition_heatmaps
from dinorankclip_studies.papers.dinorankclip.figures_method import gram_heatmaps, overview, teacher_student_histogram
from dinorankclip_studies.papers.dinorankclip.figures_orders import cost_over_order, data_scaling, order_curves
from dinorankclip_studies.papers.dinorankclip.paper_tables import about_ranking, columns, headline, ranking_quality

PAIR = {"clip": "CLIP", "full": "full method"}
TRIO = {"clip": "CLIP", "rankclip": "RankCLIP", "full": "full"}


def figure_makers(material: StudyMaterial) -> dict[tuple[str, str], Callable[[], Drawn]]:
    """Return (name, title) → function, in the order of the report. A figure that cannot be drawn raises
    `Unavailable` with the reason."""
    results, measures, models = material.results, material.measures, material.models
    teacher, retrieval = material.teacher_sentence, measures.retrieval
    order_columns = (*headline(measures), ranking_quality(measures))
    (mean_r1,) = columns(measures, "mean R@1")

    @cache
    def probed() -> Probed:  # two figures share the probes
        return probe_models(models, measures.fine, TRIO)

    return {
        ("overview", "The method"): overview,
        ("order-curves", "Scores over the order"): partial(
            order_curves, results, order_columns, about_ranking(measures)
        ),
        ("data-scaling", "Data scaling"): partial(data_scaling, results, mean_r1, material.study.pairs),
        ("cost-over-order", "Cost over the order"): partial(cost_over_order, material.bench),
        ("cone-separation", "Modality gap, four nodes"): partial(cone_bars, results, measures.cone),
        ("embedding-plane", "Embeddings in two dimensions"): partial(embedding_planes, models, retrieval, PAIR),
        ("teacher-student", "Teacher and student"): partial(teacher_student_histogram, models, teacher),
        ("grams", "Patch Grams"): partial(gram_heatmaps, models, teacher),
        ("transitions", "Transition heads"): partial(transition_heatmaps, models, "rank-3"),
        ("retrieval", "Retrieval, won and lost"): partial(won_and_lost, models, retrieval, TRIO),
        ("confusions", "Fine-grained confusions"): lambda: confusion_matrices(
            probed(), results, measures.fine_errors_in_family, TRIO
        ),
        ("fine-cases", "Fine-grained cases"): lambda: fine_cases(probed()),
    }
