"""What becomes of the captions that CLIP nearly gets right (App. H of the paper): found from single items of two runs,
and kept as a score of the full method's run, so that results.json tells it without the run folders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from dinorankclip.run_files import ITEMS

from .measures import Measures
from .results import RunRecord

BASE, OURS = "clip", "full"


def with_near_misses(folder: Path, runs: Sequence[RunRecord], measures: Measures) -> list[RunRecord]:
    """The runs, those of the full method with one score more where both runs of a seed have their items here."""
    base = {run.seed: run for run in runs if run.cell == BASE}
    found = []
    for run in runs:
        if run.cell == OURS and run.seed in base:
            share = recovered(folder / base[run.seed].folder, folder / run.folder, measures)
            if share is not None:
                run = replace(run, scores=run.scores | {measures.near_misses: share})
        found.append(run)
    return found


def recovered(base: Path, ours: Path, measures: Measures) -> float | None:
    """Of the captions whose image `base` misses at rank 1 but has among its first ten, the share that `ours` has at
    rank 1; None where items are not there, or there is no such caption."""
    if not ((base / ITEMS).is_file() and (ours / ITEMS).is_file()):
        return None
    with np.load(base / ITEMS) as theirs, np.load(ours / ITEMS) as mine:
        first, among_ten = measures.recall("t2i", 1), measures.recall("t2i", 10)
        if first not in theirs or among_ten not in theirs or first not in mine:
            return None
        near = (theirs[first] == 0) & (theirs[among_ten] > 0)
        return float(mine[first][near].mean()) if near.any() else None
