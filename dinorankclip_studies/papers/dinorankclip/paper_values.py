"""The paper's own numbers, by the label of its table or figure, row and column.

Most are PROJECTIONS: the paper says of its red numbers (its macro TODO) that they are "projected from the trends
reported by RankCLIP and CLIP on CC3M and will be replaced once the runs complete". Red are all rows of its own method
and its variants, and CUB, Cars, Flowers and FG-avg of the baselines, too. What is black it prints as results; of the
baselines it says that they were retrained. Figures have no such colours: of the cone separations the text prints the
differences in red, of the scaling curves their ends are in tab:main. Nothing may print any of them without `LABEL`;
`in_black` tells the two apart. Shares are in percent, as printed; cone separations in degrees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dinorankclip.formatting import MISSING
from dinorankclip.methods import HEAD_MILLIONS, LABEL, STUDENT_MILLIONS

__all__ = ["LABEL", "PAPER", "PAPER_GPUS", "TITLES", "PaperValue", "gain", "in_black", "paper_value", "projected"]

PAPER_GPUS = 8  # of its one node

Rows = Mapping[str, Mapping[str, float]]


def _rows(columns: str, **values: str) -> Rows:
    """Columns split at |; a row's numbers split at blanks. An underscore in a row's name stands for a hyphen."""
    names = [name.strip() for name in columns.split("|")]
    found = {}
    for row, numbers in values.items():
        told = [float(number) for number in numbers.split()]
        if len(told) != len(names):
            raise ValueError(f"{row}: {len(told)} numbers for {len(names)} columns")
        found[row.replace("_", "-")] = dict(zip(names, told))
    return found


_MAIN = _rows(
    "T@1 | T@3 | T@5 | i2t R@1 | i2t R@5 | i2t R@10 | t2i R@1 | t2i R@5 | t2i R@10",
    clip="9.06 16.94 21.63 6.68 18.36 26.94 3.70 9.74 14.04",
    cyclip="9.40 17.32 21.72 6.50 19.34 29.14 3.72 11.16 16.06",
    alip="9.71 18.31 23.07 6.04 18.04 26.92 3.70 10.22 14.38",
    rankclip="10.16 19.57 24.01 7.18 19.46 28.48 3.74 10.28 14.18",
    full="11.30 21.10 25.70 8.05 21.20 30.40 4.35 11.80 16.20",
)

_SHIFT_AND_FINE = _rows(
    "V2-M | V2-T | V2-Top | InR | FGVC | DTD | CUB | Cars | Flow. | FG-avg",
    clip="7.53 8.89 10.76 9.36 22.6 43.2 34.5 29.4 72.1 40.4",
    cyclip="7.68 9.10 11.20 9.23 19.2 45.8 32.1 27.0 70.5 38.9",
    alip="7.82 9.65 11.43 10.92 17.4 47.1 30.5 25.8 69.2 38.0",
    rankclip="9.01 10.32 12.31 11.34 23.4 42.4 36.1 30.5 73.0 41.1",
    rank_3="9.65 10.95 12.95 12.10 24.0 43.0 37.2 31.1 73.6 41.8",
    full="10.40 11.80 13.80 13.50 26.5 47.0 40.8 34.0 76.2 44.9",
)

_LINEAR_PROBE = _rows(
    "C10 | C100 | DTD | FGVC | Food | GTSRB | Pets | SST2 | STL10 | SVHN | Avg",
    clip="77.6 56.2 43.2 22.6 39.7 60.0 40.4 51.0 79.0 50.5 52.0",
    cyclip="76.8 54.3 45.8 19.2 37.5 58.6 44.2 51.5 82.3 41.3 51.2",
    alip="71.1 49.1 47.1 17.4 36.1 51.5 41.9 53.3 81.0 38.3 48.7",
    rankclip="78.4 56.6 42.4 23.4 40.2 60.6 40.6 53.4 79.6 47.7 52.3",
    full="79.6 58.1 47.0 26.5 43.0 62.1 43.5 54.2 82.4 50.0 54.6",
)

_COMPONENTS = _rows(
    "T@1",
    clip="9.0",
    rankclip="10.0",
    rank_3="10.6",
    full_image_no_gate="10.9",
    full_no_gate="11.1",
    full="11.3",
)

_CRITERION = _rows(
    "T@1 | FG-avg",
    full_mse="9.8 40.5",
    full_cosine="10.1 41.0",
    full_rkd="10.4 42.5",
    full_crd="10.5 42.8",
    full="11.3 44.9",
)

_STUDENT = _rows(
    "params M | latency ms | T@1",
    full_resnet="25.6 12.4 10.4",
    full_mobilenet="5.4 5.1 10.6",
    full=f"{STUDENT_MILLIONS} 8.6 11.3",
)

_FUSION = _rows(
    "T@1",
    full_concat="10.2",
    full_additive="10.3",
    full_single_scale="10.6",
    full_spp="10.7",
    full_spp_cbam="10.9",
    full="11.3",
)

# Rows are orders. Orders 0 and 1 are CLIP and RankCLIP, the others the full recipe.
_ORDERS = _rows(
    "T@1 | InR | step ms | hours | head params M",
    **{
        "0": f"9.06 9.36 301 10.8 {HEAD_MILLIONS[0]}",
        "1": f"10.16 11.34 312 11.2 {HEAD_MILLIONS[1]}",
        "2": f"10.85 12.40 348 12.4 {HEAD_MILLIONS[2]}",
        "3": f"11.30 13.50 379 13.7 {HEAD_MILLIONS[3]}",
        "4": f"11.27 13.47 412 14.8 {HEAD_MILLIONS[4]}",
        "5": f"11.18 13.20 446 16.0 {HEAD_MILLIONS[5]}",
    },
)

# The last row of the cost table: gain over order 1 for each further GPU-hour.
_GAIN_PER_HOUR = _rows("T@1 / GPU-h", **{"1": "0.0", "2": "0.58", "3": "0.46", "4": "0.31", "5": "0.21"})

# Columns are millions of pairs.
_SCALING = _rows(
    "0.3 | 1 | 2 | 2.7",
    clip="4.10 6.85 8.40 9.06",
    rankclip="4.55 7.65 9.30 10.16",
    full="5.20 8.55 10.30 11.30",
)

_CONE = _rows("cone separation", clip="18.6", rankclip="17.2", rank_3="15.7", full="14.4")

_FIDELITY = _rows("cosine", full="0.93", full_rkd="0.87", full_mse="0.78")
_GRAM = _rows("Gram distance", full="0.31", full_mse="0.62")

_TEACHER = {
    "none": {"T@1": 10.6, "FG-avg": 41.8},
    "DINOv1": {"T@1": 10.9, "FG-avg": 42.7},
    "DINOv2": {"T@1": 11.2, "FG-avg": 44.1},
    "DINOv3": {"T@1": 11.3, "FG-avg": 44.9},
}

# Best order of each suite, and the score there.
_BEST_ORDER = _rows(
    "best order | score",
    **{
        "ImageNet1K": "3 11.30",
        "ImageNet-R": "3 13.50",
        "ImageNetV2 (avg)": "3 12.00",
        "COCO i2t R@1": "3 8.05",
        "COCO t2i R@1": "3 4.35",
        "CIFAR-10": "3 79.6",
        "CIFAR-100": "3 58.1",
        "DTD": "3 47.0",
        "FGVC-Aircraft": "3 26.5",
        "Food-101": "3 43.0",
        "GTSRB": "3 62.1",
        "OxfordPets": "3 43.5",
        "SST2": "3 54.2",
        "STL10": "2 82.5",
        "SVHN": "3 50.0",
        "CUB-200": "3 40.8",
        "StanfordCars": "3 34.0",
        "Flowers-102": "3 76.2",
    },
)

# Hours of the eight-GPU node.
_COMPUTE = _rows(
    "hours",
    **{
        "teacher features": "1.5",
        "main run": "14.0",
        "order sweep": "24.0",
        "Fine-grained Probe": "6.5",
        "scaling": "4.0",
        "components": "4.0",
        "students": "3.0",
        "criteria": "4.0",
        "fusion": "4.5",
        "teachers": "2.5",
        "evaluation": "3.0",
        "buffer": "1.0",
        "total printed": "72.0",
    },
)

PAPER: Mapping[str, Rows] = {
    "tab:main": _MAIN,
    "tab:ood-fg": _SHIFT_AND_FINE,
    "tab:lp-component (a)": _LINEAR_PROBE,
    "tab:lp-component (b)": _COMPONENTS,
    "tab:abl-3panel (a)": _CRITERION,
    "tab:abl-3panel (b)": _STUDENT,
    "tab:abl-3panel (c)": _FUSION,
    "tab:cost-accuracy": _ORDERS,
    "tab:cost-accuracy, last row": _GAIN_PER_HOUR,
    "fig:scaling": _SCALING,
    "fig:cone": _CONE,
    "fig:distill-fidelity": _FIDELITY,
    "fig:case-gram": _GRAM,
    "tab:teacher": _TEACHER,
    "tab:per-dataset-order": _BEST_ORDER,
    "tab:compute": _COMPUTE,
}

TITLES: Mapping[str, str] = {
    "tab:main": "Main comparison",
    "tab:ood-fg": "Natural shift and Fine-grained Probe",
    "tab:lp-component (a)": "Linear probing",
    "tab:lp-component (b)": "Component ablation",
    "tab:abl-3panel (a)": "Distillation criterion",
    "tab:abl-3panel (b)": "Student architecture",
    "tab:abl-3panel (c)": "Fusion module",
    "tab:cost-accuracy": "Cost and accuracy of an order",
    "tab:cost-accuracy, last row": "Gain over order 1 for each further hour",
    "fig:scaling": "T@1 by millions of pairs, drawn without colours",
    "fig:cone": "Cone separation in degrees, drawn without colours",
    "fig:distill-fidelity": "Mean cosine of teacher and student",
    "fig:case-gram": "Distance of the Grams of teacher and student",
    "tab:teacher": "Teacher",
    "tab:per-dataset-order": "Best order of each suite",
    "tab:compute": "Compute profile, hours of a node of eight H100",
}

_BASELINES = ("clip", "cyclip", "alip", "rankclip")
# (table, rows, columns) in black; None: all of them.
_BLACK: tuple[tuple[str, tuple[str, ...] | None, tuple[str, ...] | None], ...] = (
    ("tab:main", _BASELINES, None),
    ("tab:ood-fg", _BASELINES, ("V2-M", "V2-T", "V2-Top", "InR", "FGVC", "DTD")),
    ("tab:lp-component (a)", _BASELINES, None),
    ("tab:lp-component (b)", _BASELINES, None),
    ("tab:abl-3panel (b)", None, ("params M", "latency ms")),
    ("tab:cost-accuracy", ("0", "1"), ("T@1", "InR")),
    ("tab:cost-accuracy", None, ("step ms", "hours", "head params M")),
    ("tab:cost-accuracy, last row", ("1",), None),
    ("tab:per-dataset-order", None, ("best order",)),
    ("tab:compute", None, None),
    ("fig:scaling", _BASELINES, ("2.7",)),  # drawn, but the same as in tab:main
)


@dataclass(frozen=True)
class PaperValue:
    """`black`: printed as a result. `place`: table, row and column; None for what we worked out of several."""

    value: float
    black: bool
    place: tuple[str, str, str] | None = None


def in_black(table: str, row: str, column: str) -> bool:
    return any(
        name == table and (rows is None or row in rows) and (columns is None or column in columns)
        for name, rows, columns in _BLACK
    )


def paper_value(table: str, row: str, column: str) -> PaperValue:
    return PaperValue(PAPER[table][row][column], in_black(table, row, column), (table, row, column))


def projected(table: str, row: str, columns: Mapping[str, str]) -> dict[str, PaperValue]:
    """Values of a row under our own headings: `columns` says heading → the paper's column that it stands for.

    Rows that the paper's table does not have give nothing.
    """
    told = PAPER[table].get(row, {})
    return {heading: paper_value(table, row, column) for heading, column in columns.items() if column in told}


def gain(table: str, column: str, row: str, over: str) -> float:
    """The projected difference of two rows, in the column's own unit."""
    return round(PAPER[table][row][column] - PAPER[table][over][column], 6)


# -------- paper_words
# The paper's own values in words: which are projections by its own statement, and which it prints as results.

IN_BLACK = "‡"


def paper_words(value: PaperValue | None, digits: int | None = None) -> str:
    """`11.30`, `9.06 ‡`; the paper prints percent as such, so that nothing is multiplied. Without `digits`, as many as
    the value needs."""
    if value is None:
        return MISSING
    number = f"{value.value:g}" if digits is None else f"{value.value:.{digits}f}"
    return f"{number} {IN_BLACK}" if value.black else number


def digits_for(values: Iterable[PaperValue | None]) -> int:
    """Digits behind the point that the longest of a column's values needs."""
    return max((_digits(value.value) for value in values if value is not None), default=0)


def about_paper(values: Iterable[PaperValue]) -> str:
    """The sentences that must stand below a table with these values."""
    colours = {value.black for value in values}
    found = [f"“{LABEL}”: the paper's numbers, of other data and models; none was measured here."]
    if False in colours:
        which = "Those without a mark" if True in colours else "They"
        found.append(
            f"{which} are projections by its own statement (red), “and will be replaced once the runs complete”."
        )
    if True in colours:
        found.append(f"{IN_BLACK}: printed as a result (black); of its baselines it says that they were retrained.")
    return " ".join(found)


def _digits(value: float) -> int:
    return len(f"{value:.6f}".rstrip("0").split(".")[1])
