"""Pictures that outlive the models they were drawn from.

Numbers go from machine to machine in results.json, models do not. A committed picture says in its own file what it
shows and which runs it was drawn from; as long as the study's runs are those, it stays on the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image, UnidentifiedImageError
from tqdm import tqdm

from dinorankclip.data.damage import Damage
from dinorankclip.report.figures import CAPTION, DRAWN_FROM, Drawn, Unavailable
from dinorankclip.types import UserError
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
from dinorankclip_studies.papers.dinorankclip.tables_methods import about_ranking, headline, mean_r1, ranking_quality
from dinorankclip_studies.study import Column


@dataclass(frozen=True)
class KeptPicture:
    """Its file is where it was."""

    name: str
    title: str
    caption: str


def unless_kept(missing: Missing, folder: Path, drawn_from: str) -> Missing | KeptPicture:
    """The picture of this name in `folder`, if it was drawn from the same runs; else what lacks, as before."""
    try:
        with Image.open(folder / f"{missing.name}.png") as picture:
            words = dict(picture.info)
    except (OSError, UnidentifiedImageError):
        return missing
    if not words.get(DRAWN_FROM) or words[DRAWN_FROM] != drawn_from:
        return missing
    return KeptPicture(missing.name, missing.title, f"{words[CAPTION]} Drawn earlier, from models of the same runs.")


# -------- study_figures
# The figures of a study in the order of its report. One that cannot be drawn becomes a sentence that says why.

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
