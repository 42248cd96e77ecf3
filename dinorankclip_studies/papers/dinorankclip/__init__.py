"""Describes the DinoRankCLIP paper: its cells, tables, claims, printed values, and the list of its figures (below).

studies/            a file for each study: seeds, sizes, sets, settings of all cells; cc3m is in plans.py
plans.py            studies and their cells (cells.toml), claims that the studies judge (claims.toml)
scales.py           pairs and epochs of the paper's main runs, sweeps and ablations
paper_tables.py     tables of the studies (tables.toml)
extra_tables.py     best orders, paired differences, costs, values of the paper alone
figures_orders.py   scores and costs over the order, data scaling
figures_geometry.py modality gap, embedding planes, transition heads
figures_method.py   diagram of the method, patch Grams, teacher and student
figures_examples.py confusions, fine-grained cases, retrieval won and lost
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING

from dinorankclip_studies.papers import Paper

if TYPE_CHECKING:
    from dinorankclip.report.figures import Drawn
    from dinorankclip_studies.material import StudyMaterial

PAPER = Paper(
    __name__,
    teacher="DINOv3",
    main_cells=("clip", "rankclip", "full"),
    judging=("full", "tuned", "flickr8k"),
    at_scale="cc3m",
    cost="order-cost",
)
PAIR = {"clip": "CLIP", "full": "full method"}
TRIO = {"clip": "CLIP", "rankclip": "RankCLIP", "full": "full"}


def figure_makers(material: StudyMaterial) -> dict[tuple[str, str], Callable[[], Drawn]]:
    """Return (name, title) → function, in the order of the report. A figure that cannot be drawn raises
    `Unavailable` with the reason."""
    from . import figures_examples as examples
    from . import figures_geometry as geometry
    from . import figures_method as method
    from . import figures_orders as orders
    from .paper_tables import about_ranking, columns, headline, ranking_quality, sweep_results

    results, measures, models = material.results, material.measures, material.models
    swept = sweep_results(results, measures)
    teacher, retrieval = material.teacher_sentence, measures.retrieval
    order_columns, about = (*headline(measures), ranking_quality(measures)), about_ranking(measures)
    (mean_r1,), errors = columns(measures, "mean R@1"), measures.fine_errors_in_family

    @cache
    def probed() -> examples.Probed:  # two figures share the probes
        return examples.probe_models(models, measures.fine, TRIO)

    return {
        ("overview", "The method"): method.overview,
        ("order-curves", "Scores over the order"): partial(orders.order_curves, swept, order_columns, about),
        ("data-scaling", "Data scaling"): partial(orders.data_scaling, swept, mean_r1, material.study.pairs),
        ("cost-over-order", "Cost over the order"): partial(orders.cost_over_order, material.bench),
        ("cone-separation", "Modality gap, four nodes"): partial(geometry.cone_bars, results, measures.cone),
        ("embedding-plane", "Embeddings in two dimensions"): partial(
            geometry.embedding_planes, models, retrieval, PAIR
        ),
        ("teacher-student", "Teacher and student"): partial(method.teacher_student_histogram, models, teacher),
        ("grams", "Patch Grams"): partial(method.gram_heatmaps, models, teacher),
        ("transitions", "Transition heads"): partial(geometry.transition_heatmaps, models, "rank-3"),
        ("retrieval", "Retrieval, won and lost"): partial(examples.won_and_lost, models, retrieval, TRIO),
        ("confusions", "Fine-grained confusions"): lambda: examples.confusion_matrices(probed(), results, errors, TRIO),
        ("fine-cases", "Fine-grained cases"): lambda: examples.fine_cases(probed()),
    }
