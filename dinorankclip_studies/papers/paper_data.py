"""Reads two data files of a paper: its printed numbers (`paper_values.json`), and the names of the scores that stand
for its benchmarks in each kind of study (`measures.toml`).

`paper_values.json` identifies each table or figure of the paper by its label:

    {"tab:main": {"title": …, "columns": ["T@1", …], "rows": {"clip": [9.06, …]},
                  "row_of_cell": {"rank-2": "2"}, "black": [{"rows": ["clip"], "columns": ["T@1"]}]}}

A row bears the name of the cell that stands for it in our studies; `row_of_cell` names the row where the two differ.
`black` selects the values that the paper prints as results (without `rows` or `columns`: all of them). All other values
are projections by the paper's own statement. Nothing may print a value without `dinorankclip.methods.LABEL`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from dinorankclip.formatting import MISSING
from dinorankclip.methods import LABEL

IN_BLACK = "‡"
Rows = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class PaperValue:
    """Holds one number of the paper. `black`: printed as a result. `place`: table, row and column; None for a number
    computed from several others."""

    value: float
    black: bool
    place: tuple[str, str, str] | None = None


class PaperValues(Mapping[str, Rows]):
    """Maps the printed numbers of a paper: label of the table → row → column → number."""

    def __init__(self, path: Path) -> None:
        self._tables: dict[str, Rows] = {}
        self.titles: dict[str, str] = {}
        self._row_of_cell: dict[str, Mapping[str, str]] = {}
        self._black: dict[str, list[Mapping[str, Sequence[str]]]] = {}
        for label, table in json.loads(path.read_text(encoding="utf-8")).items():
            columns, rows = table.pop("columns"), table.pop("rows")
            for row, numbers in rows.items():
                if len(numbers) != len(columns):
                    raise ValueError(f"{path}: {label}, {row}: {len(numbers)} numbers for {len(columns)} columns")
            self._tables[label] = {row: dict(zip(columns, map(float, numbers))) for row, numbers in rows.items()}
            self.titles[label], self._black[label] = table.pop("title"), table.pop("black")
            self._row_of_cell[label] = table.pop("row_of_cell", {})
            named = {name for part in self._black[label] for name in (*part.get("rows", ()), *part.get("columns", ()))}
            unknown = [*table, *(named | set(self._row_of_cell[label].values())) - {*rows, *columns}]
            if unknown:
                raise ValueError(f"{path}: {label}: unknown keys, rows or columns: {', '.join(sorted(unknown))}")

    def __getitem__(self, label: str) -> Rows:
        return self._tables[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def row_of(self, label: str, cell: str) -> str:
        """Return the row that stands beside a cell; the table need not have it."""
        return self._row_of_cell[label].get(cell, cell)

    def in_black(self, label: str, row: str, column: str) -> bool:
        return any(
            row in part.get("rows", (row,)) and column in part.get("columns", (column,)) for part in self._black[label]
        )

    def value(self, label: str, row: str, column: str) -> PaperValue:
        return PaperValue(self[label][row][column], self.in_black(label, row, column), (label, row, column))

    def beside(self, label: str, cell: str, columns: Mapping[str, str]) -> dict[str, PaperValue]:
        """Return the values beside a cell. `columns`: our heading → the paper's column, omitted if not printed."""
        row = self.row_of(label, cell)
        printed = self[label].get(row, {})
        return {heading: self.value(label, row, column) for heading, column in columns.items() if column in printed}

    def gain(self, label: str, column: str, row: str, over: str) -> float:
        """Return the difference of two printed rows, in the column's own unit."""
        return round(self[label][row][column] - self[label][over][column], 6)


def paper_words(value: PaperValue | None, digits: int | None = None) -> str:
    """Write a value as `11.30`, or `9.06 ‡` in black. Without `digits`, the value has as many as it needs."""
    if value is None:
        return MISSING
    number = f"{value.value:g}" if digits is None else f"{value.value:.{digits}f}"
    return f"{number} {IN_BLACK}" if value.black else number


def digits_for(values: Iterable[PaperValue | None]) -> int:
    """Return the number of decimals that the longest value of a column needs."""
    return max((len(f"{value.value:.6f}".rstrip("0").split(".")[1]) for value in values if value), default=0)


def about_paper(values: Iterable[PaperValue]) -> str:
    """Return the sentences that must stand below a table with these values."""
    colours = {value.black for value in values}
    sentences = [f"“{LABEL}”: the paper's numbers, of other data and models; none was measured here."]
    if False in colours:
        which = "Those without a mark" if True in colours else "They"
        sentences.append(
            f"{which} are projections by its own statement (red), “and will be replaced once the runs complete”."
        )
    if True in colours:
        sentences.append(f"{IN_BLACK}: printed as a result (black); of its baselines it says that they were retrained.")
    return " ".join(sentences)


# Scores of the image student, the same in every kind of study; runs without a teacher lack them.
COSINE = "fidelity/image cosine"
ABOVE_09 = "fidelity/image above 0.9"  # the share of items with a cosine above 0.9
CENTRED_COSINE = "fidelity/image centred cosine"
GRAM_DISTANCE = "fidelity/image gram distance"
OWN_COSINE = "fidelity/image own projector's cosine"  # exists only for criteria with a projector


class _Name:
    """Builds a score name from fields of its `Measures`."""

    def __init__(self, template: str) -> None:
        self.template = template

    def __get__(self, measures: Measures, owner: type[Measures]) -> str:
        return self.template.format_map(vars(measures))


@dataclass(frozen=True)
class Measures:
    """Holds the score names of one kind of study and words of its tables.

    Probes use the embedding, which is equally wide in every cell. Features before the projection are wider where a
    student adds its class token; tables show them in a second column.
    `shift_base` is the unshifted set that the renditions belong to, `fine` a fine-grained set. `several_fine`: the
    Fine-grained Probe is the mean over all fine-grained sets that were scored. `coarse`: the set of kinds that is
    probed. `judged_by_top1`: "accuracy" is zero-shot top-1, as in the paper.
    """

    kind: str  # kind of study
    studies: tuple[str, ...]
    retrieval: str  # this and the next four fields name sets
    zero_shot: str
    shift_base: str
    fine: str
    coarse: str
    renditions: tuple[str, ...]
    zero_shot_kinds: int  # number of classes of `zero_shot`
    base_kinds: int  # number of classes of `shift_base`
    rendition_kinds: tuple[int, ...]  # number of classes of each rendition
    graded: bool  # relevance between any two items is known
    other_probes: tuple[str, ...] = ()  # sets with a column of their own in the table of linear probes
    several_fine: bool = False
    dinov3: bool = False  # the teacher is that of the paper
    judged_by_top1: bool = False
    items: str = "scenes"
    items_factor: int = 1  # a cell -n1000 has 1000 times this many different items
    scales: bool = False  # sweeps and ablations are trained at scales of their own
    average_of: str = "linear probe"  # the mean of probes that tables show
    family_sets: tuple[str, ...] = ()  # sets with families of classes, whose errors tables show
    suites: tuple[str, ...] = ()  # columns of the table of best orders, beside `paper_suites`
    paper_suites: tuple[str, ...] = ()  # the paper's names of these suites

    top1 = _Name("{zero_shot}/T@1")
    mean_r1 = _Name("{retrieval}/mean R@1")
    # Covers captions whose image CLIP's run of the same seed ranks 2nd to 10th.
    near_misses = _Name("{retrieval}/t2i R@1 of clip's near misses")
    base_top1 = _Name("{shift_base}/T@1")
    shift = _Name("shift from {shift_base}/mean T@1")
    relative_drop = _Name("shift from {shift_base}/relative drop")
    fine_errors_in_family = _Name("{fine}/embedding probe errors in family")
    coarse_probe = _Name("{coarse}/embedding probe accuracy")
    probe_average = _Name("averages/{average_of}: embedding")
    probe_average_of_features = _Name("averages/{average_of}: features")
    cone = _Name("{retrieval}/cone separation")

    def top(self, k: int) -> str:
        return f"{self.zero_shot}/T@{k}"

    def chance(self, score: str) -> float | None:
        """Return the chance level of an accuracy that small models may not raise above chance; else None."""
        if score == self.top1:
            return 1 / self.zero_shot_kinds
        if score == self.base_top1:
            return 1 / self.base_kinds
        # Each rendition has its own classes to choose from, and all renditions count alike.
        return mean(1 / kinds for kinds in self.rendition_kinds) if score == self.shift else None

    def recall(self, way: str, k: int) -> str:
        """Return the name of a recall; `way` is i2t or t2i."""
        return f"{self.retrieval}/{way} R@{k}"

    @property
    def accuracy(self) -> str:
        """Return the score that decides claims about "accuracy", by which the paper means ImageNet1K top-1: top-1 at
        the paper's scale, mean R@1 of both directions in small studies.

        In small studies zero-shot top-1 is too near to chance to tell models apart (5 % against 0.8 % on scenes after
        three times the study's training). This was chosen before any study had run.
        """
        return self.top1 if self.judged_by_top1 else self.mean_r1

    @property
    def accuracy_word(self) -> str:
        return "T@1" if self.judged_by_top1 else "R@1"

    @property
    def fine_probe(self) -> str:
        return self._fine_probe("embedding")

    @property
    def fine_probe_of_features(self) -> str:
        return self._fine_probe("features")

    def _fine_probe(self, kind: str) -> str:
        return f"averages/Fine-grained Probe: {kind}" if self.several_fine else f"{self.fine}/{kind} probe accuracy"

    @property
    def ranking_quality(self) -> str:
        """Return the name of τ-b between a caption's order of images and their relevance, or of both modalities."""
        return f"{self.retrieval}/{'t2i tau-b' if self.graded else 'cross-modal tau-b'}"


def load_measures(path: Path) -> dict[str, Measures]:
    """Read the kinds of study; an error names the wrong or missing key and its kind."""
    measures = {}
    for kind, entries in tomllib.loads(path.read_text(encoding="utf-8")).items():
        lists: dict[str, Any] = {name: tuple(value) for name, value in entries.items() if isinstance(value, list)}
        try:
            measures[kind] = Measures(kind, **entries | lists)
        except TypeError as error:
            raise ValueError(f"{path}: [{kind}]: {error}") from error
    return measures
