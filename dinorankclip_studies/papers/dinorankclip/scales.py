"""Defines the scales of the paper's plan: how many pairs and epochs its main runs, its sweeps and its ablations have.

The paper (Sec. 5, tab. hparams, tab. compute) trains its main comparison on the whole corpus for 64 epochs, sweeps
orders and amounts of data for 32 epochs, and makes its ablations on 1M pairs for 32 epochs. A cell that tables of
several scales show is a cell of each: `full`, `full-sweep`, `full-ablation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dinorankclip_studies.study import Numbers


@dataclass(frozen=True)
class Scale:
    """Holds the numbers of one scale; `pairs` is None for the whole corpus, `suffix` ends the names of its cells."""

    epochs: int
    pairs: int | None = None
    suffix: str = ""

    def changes(self) -> dict[str, Any]:
        """Return the settings that bring a cell of the base to this scale."""
        return {"budget.epochs": self.epochs} | pairs_change(self.pairs)


CC3M_PAIRS = 2_710_000  # pairs of CC3M that resolve, by the paper
MAIN, SWEEP, ABLATION = "main", "sweep", "ablation"
PAPER_SCALES: Mapping[str, Scale] = {
    MAIN: Scale(64),
    SWEEP: Scale(32, suffix="-sweep"),
    ABLATION: Scale(32, 1_000_000, "-ablation"),
}


def cell_at(scale: str, cell: str) -> str:
    """Return the name of a cell at a scale."""
    return cell + PAPER_SCALES[scale].suffix


def scales_with(numbers: Numbers) -> dict[str, Scale]:
    """Return the paper's scales with the numbers of the command line in place of its own."""
    epochs = {SWEEP: numbers.sweep_epochs, ABLATION: numbers.ablation_epochs}
    scales = {}
    for name, scale in PAPER_SCALES.items():
        pairs = numbers.ablation_pairs or scale.pairs if name == ABLATION else scale.pairs
        scales[name] = replace(scale, epochs=epochs.get(name) or numbers.epochs or scale.epochs, pairs=pairs)
    return scales


def pairs_change(pairs: int | None) -> dict[str, Any]:
    """Return the settings of a run on fewer pairs than the corpus has; its epochs are as short as its data."""
    return {} if pairs is None or pairs >= CC3M_PAIRS else {"reading.train_items": pairs, "reading.short_epochs": True}
