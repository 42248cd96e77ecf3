"""The tables of the studies: which cells are rows, which scores are columns, what each is paired against."""

from __future__ import annotations

from .measures import FLICKR8K, SCENES
from .table_shapes import Column, Experiment, Row
from .tables import ablations, comparison, orders

__all__ = ["EXPERIMENTS", "FLICKR_CELLS", "FLICKR_EXPERIMENTS", "Column", "Experiment", "Row"]

EXPERIMENTS: tuple[Experiment, ...] = (
    comparison.main(SCENES),
    orders.plain(SCENES),
    orders.with_teacher(SCENES),
    orders.mixed(SCENES),
    orders.best_order(SCENES),
    orders.head_width(SCENES),
    orders.warm_start(SCENES),
    comparison.scaling(SCENES),
    comparison.shift(SCENES),
    comparison.fine_grained(SCENES),
    comparison.linear_probing(SCENES),
    ablations.components(SCENES),
    ablations.controls(SCENES),
    ablations.criterion(SCENES),
    ablations.students(SCENES),
    ablations.fusion(SCENES),
    ablations.teacher(SCENES),
    ablations.modality_gap(SCENES),
)

FLICKR_CELLS = ("clip", "cyclip", "alip", "rankclip", "rank-2", "rank-3", "full")

FLICKR_EXPERIMENTS: tuple[Experiment, ...] = (
    comparison.main(FLICKR8K),
    orders.plain(FLICKR8K, highest=3),
    comparison.shift(FLICKR8K),
    comparison.fine_grained(FLICKR8K),
    comparison.linear_probing(FLICKR8K),
    ablations.modality_gap(FLICKR8K),
)
