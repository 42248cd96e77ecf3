"""The tables of the studies: which cells are rows, which scores are columns, what each is paired against."""

from __future__ import annotations

from .measures import CC3M, FLICKR8K, SCENES, Measures
from .table_shapes import Column, Experiment, Row
from .tables import ablations, comparison, orders

__all__ = ["CC3M_EXPERIMENTS", "EXPERIMENTS", "FLICKR_CELLS", "FLICKR_EXPERIMENTS", "Column", "Experiment", "Row"]


def _all(measures: Measures) -> tuple[Experiment, ...]:
    return (
        comparison.main(measures),
        orders.plain(measures),
        orders.with_teacher(measures),
        orders.mixed(measures),
        orders.best_order(measures),
        orders.quick_heads(measures),
        orders.head_width(measures),
        orders.warm_start(measures),
        comparison.longer(measures),
        comparison.scaling(measures),
        comparison.shift(measures),
        comparison.fine_grained(measures),
        comparison.linear_probing(measures),
        ablations.components(measures),
        ablations.controls(measures),
        ablations.criterion(measures),
        ablations.students(measures),
        ablations.fusion(measures),
        ablations.teacher(measures),
        ablations.modality_gap(measures),
    )


EXPERIMENTS = _all(SCENES)
_OF_SHORT_RUNS = ("quick-heads", "longer")
CC3M_EXPERIMENTS = tuple(experiment for experiment in _all(CC3M) if experiment.name not in _OF_SHORT_RUNS)

FLICKR_CELLS = ("clip", "cyclip", "alip", "rankclip", "rank-2", "rank-3", "full")

FLICKR_EXPERIMENTS: tuple[Experiment, ...] = (
    comparison.main(FLICKR8K),
    orders.plain(FLICKR8K, highest=3),
    comparison.shift(FLICKR8K),
    comparison.fine_grained(FLICKR8K),
    comparison.linear_probing(FLICKR8K),
    ablations.modality_gap(FLICKR8K),
)
