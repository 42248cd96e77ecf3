"""The linear probe as a scorer: on rows before and after the projection, C chosen on the set's own validation part
or on one carved from train.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from dinorankclip.data.labelled import carve_validation
from dinorankclip.scoring.bootstrap import interval
from dinorankclip.scoring.fine_grained import family_errors, family_of_class
from dinorankclip.scoring.probe import linear_probe
from dinorankclip.scoring.scores import Score, mean_score
from dinorankclip.scoring.seen import SeenSet
from dinorankclip.scoring.zero_shot import per_class_weights


class ProbeScorer:
    """Accuracy and mean per class recall on each kind of row; where classes form families, where the errors went."""

    name = "probe"
    version = 1

    def applies(self, seen: SeenSet) -> bool:
        return seen.kind == "classification" and "train" in seen.benchmark.splits and seen.split != "train"

    def __call__(self, seen: SeenSet) -> Iterator[Score]:
        labels, names = seen.labels(), seen.benchmark.class_names
        for kind in seen.kinds:
            train, train_labels, val, val_labels = probe_parts(seen, kind)
            found = linear_probe(
                train, train_labels, val, val_labels, seen.images(kind), labels, len(names), label=f"{seen.name}: probe"
            )
            largest = np.bincount(train_labels, minlength=len(names)).argmax()  # all that a probe of nothing learns
            yield mean_score(f"{kind} probe accuracy", found.correct, chance=float((labels == largest).mean()))
            weights = per_class_weights(labels)
            yield mean_score(f"{kind} probe mean per class", found.correct, weights=weights, chance=1 / len(names))
            if seen.benchmark.families:
                family = family_of_class(names, seen.benchmark.families)
                yield from _family_share(f"{kind} probe errors in family", found.predicted, labels, family)


def probe_parts(seen: SeenSet, kind: str) -> tuple[Tensor, np.ndarray, Tensor, np.ndarray]:
    """Rows and labels to learn from, and to choose C on: a part of its own, unless that is the one that is scored."""
    rows, labels = seen.images(kind, "train"), seen.labels("train")
    if "val" in seen.benchmark.splits and seen.split != "val":
        return rows, labels, seen.images(kind, "val"), seen.labels("val")
    train, val = carve_validation(seen.keys("train"), labels)
    return rows[train], labels[train], rows[val], labels[val]


def _family_share(name: str, predicted: np.ndarray, labels: np.ndarray, family: np.ndarray) -> Iterator[Score]:
    """Without items: models err on different images, so there is nothing to pair."""
    errors = family_errors(predicted, labels, family)
    if len(errors.inside):
        low, high = interval(errors.inside)
        yield Score(name, errors.share, len(errors.inside), low=low, high=high, chance=errors.chance)
