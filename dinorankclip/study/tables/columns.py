"""Columns that several tables share, and which of the paper's columns they stand beside."""

from __future__ import annotations

from collections.abc import Mapping

from ..measures import ABOVE_09, CENTRED_COSINE, COSINE, GRAM_DISTANCE, OWN_COSINE, Measures
from ..paper_values import PaperValue, projected
from ..table_shapes import Column

# Headings that stand for a column of the paper under the same name.
TOP1, FINE = "T@1", "fine probe"
AS_T1 = {TOP1: "T@1"}
AS_T1_AND_FINE = AS_T1 | {FINE: "FG-avg"}
AS_MAIN = {
    "T@1": "T@1", "T@3": "T@3", "T@5": "T@5",
    "i→t R@1": "i2t R@1", "i→t R@5": "i2t R@5", "i→t R@10": "i2t R@10",
    "t→i R@1": "t2i R@1", "t→i R@5": "t2i R@5", "t→i R@10": "t2i R@10",
}  # fmt: skip
SHIFT = "shift mean T@1"
_SHIFT_COLUMNS = ("V2-M", "V2-T", "V2-Top", "InR")


def zero_shot(measures: Measures) -> tuple[Column, ...]:
    return tuple(Column(measures.top(k), f"T@{k}") for k in (1, 3, 5))


def top1(measures: Measures) -> Column:
    return Column(measures.top1, TOP1)


def recalls(measures: Measures) -> tuple[Column, ...]:
    ways = (("i2t", "i→t"), ("t2i", "t→i"))
    return tuple(Column(measures.recall(way, k), f"{arrow} R@{k}") for way, arrow in ways for k in (1, 5, 10))


def mean_r1(measures: Measures) -> Column:
    return Column(measures.mean_r1, "mean R@1")


def shift(measures: Measures) -> Column:
    return Column(measures.shift, SHIFT)


def fine(measures: Measures) -> Column:
    return Column(measures.fine_probe, FINE)


def fine_features(measures: Measures) -> Column:
    return Column(measures.fine_probe_of_features, "fine probe, features")


def cone(measures: Measures) -> Column:
    return Column(measures.cone, "cone separation °", percent=False, better="lower")


def ranking_quality(measures: Measures) -> Column:
    return Column(measures.ranking_quality, "τ-b t→i" if measures.graded else "ranking τ-b", percent=False)


def ranking(measures: Measures) -> tuple[Column, ...]:
    """Both directions, where relevance is known: a loss may gain in one what it loses in the other."""
    if not measures.graded:
        return (ranking_quality(measures),)
    ways = (("t2i", "t→i"), ("i2t", "i→t"))
    return tuple(Column(f"{measures.retrieval}/{way} tau-b", f"τ-b {arrow}", percent=False) for way, arrow in ways)


def about_ranking(measures: Measures) -> str:
    if measures.graded:
        return "τ-b: Kendall's, between a query's order of all items and their true relevance, mean over queries."
    return "Ranking τ-b: Kendall's, between the orders that an image and its caption give all others, mean over pairs."


def headline(measures: Measures) -> tuple[Column, ...]:
    """What an ablation shows at least."""
    return (top1(measures), mean_r1(measures), shift(measures), fine(measures))


FIDELITY_COLUMNS = (
    Column(COSINE, "teacher–student cosine", percent=False),
    Column(CENTRED_COSINE, "… without the mean", percent=False),
    Column(GRAM_DISTANCE, "Gram distance", percent=False, better="lower"),
)

ABOVE = Column(ABOVE_09, "items above 0.9")
OWN_PROJECTOR = Column(OWN_COSINE, "cosine, own projector", percent=False)


def mean_shift(row: str) -> Mapping[str, PaperValue]:
    """The mean of the paper's four shift columns under our heading for the mean over renditions."""
    told = projected("tab:ood-fg", row, {name: name for name in _SHIFT_COLUMNS}).values()
    if not told:
        return {}
    mean = round(sum(one.value for one in told) / len(told), 2)
    return {SHIFT: PaperValue(mean, all(one.black for one in told))}
