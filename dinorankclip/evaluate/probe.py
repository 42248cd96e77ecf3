"""What the errors of a fine-grained probe are: classes that differ in small parts form families (`families.json`).

An error inside the right family missed the small parts, one outside missed the thing itself. The probes themselves are
linear ones (`probe`), and the Fine-grained Probe is their mean over sets (`suite`).

Shapes: N items, K classes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dinorankclip.data.benchmark_sets import carve_validation
from dinorankclip.evaluate.intervals import interval
from dinorankclip.evaluate.logistic import Fit, fit, fit_path
from dinorankclip.evaluate.scores import Score, SeenSet, mean_score
from dinorankclip.evaluate.zero_shot import per_class_weights
from dinorankclip.types import UserError


@dataclass(frozen=True)
class FamilyErrors:
    """`inside` has one entry an error: whether the class that was named is of the right family. Empty: no errors."""

    inside: np.ndarray  # bool [errors]
    chance: float  # the share that wrong classes drawn blindly would have

    @property
    def share(self) -> float:
        """NaN where there are no errors."""
        return float(self.inside.mean()) if len(self.inside) else float("nan")


def family_of_class(class_names: Sequence[str], families: Mapping[str, Sequence[str]]) -> np.ndarray:
    """int64 [K]: the number of each class's family. A class that no family names is a family of its own."""
    number: dict[str, int] = {}
    for at, (family, members) in enumerate(families.items()):
        for name in members:
            if name not in class_names:
                raise UserError(f"family '{family}' names the class '{name}', which the set does not have")
            if number.setdefault(name, at) != at:
                first = list(families)[number[name]]
                raise UserError(f"the class '{name}' is in two families, '{first}' and '{family}'")
    alone = iter(range(len(families), len(families) + len(class_names)))
    return np.array([number[name] if name in number else next(alone) for name in class_names], dtype=np.int64)


def family_errors(predicted: np.ndarray, labels: np.ndarray, family: np.ndarray) -> FamilyErrors:
    """`predicted` and `labels` are classes [N], `family` [K] is as of `family_of_class`.

    As loops:
        for each item with predicted != label:  inside.append(family[predicted] == family[label])
                                                chance += (size of family[label] - 1)/(K - 1)/errors
    """
    predicted, labels = np.asarray(predicted), np.asarray(labels)
    wrong = predicted != labels
    others = np.bincount(family)[family] - 1  # [K]
    chance = others[labels[wrong]].mean() / (len(family) - 1) if wrong.any() else float("nan")
    return FamilyErrors(family[predicted[wrong]] == family[labels[wrong]], float(chance))


# -------- probe
# The linear probe: how well a linear classifier on frozen features tells classes apart.
#
#  1. Features become rows of unit length, less the mean of the rows that are learned from, over one number that makes
#     their mean squared length 1. All of this is free of coordinates: rotating a model's features changes nothing, and a
#     value of C means the same for every model and width. (Scaling each channel by itself depends on coordinates that
#     no training fixes; on photos of things and of birds it scored 0 to 0.7 points lower.)
#  2. A logistic regression for every C of `GRID` learns from the training part.
#  3. The C with the highest accuracy on the validation part is kept; among equals the smallest, the strongest penalty.
#  4. One regression with that C learns from both parts, and the test part is touched once.
#
# Shapes: N items, W feature width.

log = logging.getLogger(__name__)

GRID = tuple(10 ** (half / 2) for half in range(-4, 9))  # 10^-2 … 10^4 in half decades

Labels = Tensor | np.ndarray | Sequence[int]


@dataclass(frozen=True)
class Scaling:
    """Step 1, as learned from some rows."""

    mean: Tensor  # [W]
    size: float

    @classmethod
    def of(cls, features: Tensor) -> Scaling:
        rows = F.normalize(features.float(), dim=1)
        mean = rows.mean(0)
        size = (rows - mean).square().sum(1).mean().sqrt().item()
        return cls(mean, size or 1.0)  # rows that are all alike stay zero

    def __call__(self, features: Tensor) -> Tensor:
        return (F.normalize(features.float(), dim=1) - self.mean) / self.size


@dataclass(frozen=True)
class ProbeResult:
    accuracy: float
    mean_per_class: float  # recall, mean over the classes that occur in the test part
    C: float
    correct: np.ndarray  # bool [N of the test part]
    predicted: np.ndarray  # int64 [N of the test part]
    val_accuracy: dict[float, float]  # by C
    fit: Fit  # on training and validation part, scaled features


def linear_probe(
    train_features: Tensor,
    train_labels: Labels,
    val_features: Tensor,
    val_labels: Labels,
    test_features: Tensor,
    test_labels: Labels,
    classes: int,
    Cs: Sequence[float] = GRID,
    label: str | None = "linear probe",
) -> ProbeResult:
    """Features are [N, W], labels class indices [N]. A `label` names the progress bar; None hides it."""
    train_labels = _checked("training", train_features, train_labels, classes)
    val_labels = _checked("validation", val_features, val_labels, classes)
    test_labels = _checked("test", test_features, test_labels, classes)
    scaling = Scaling.of(train_features)
    path = fit_path(scaling(train_features), train_labels, classes, Cs, label=label)
    scaled = scaling(val_features)
    val_accuracy = {each.C: _accuracy(each, scaled, val_labels) for each in path}
    best = max(sorted(path, key=lambda each: each.C), key=lambda each: val_accuracy[each.C])

    features, labels = torch.cat([train_features, val_features]), torch.cat([train_labels, val_labels])
    scaling = Scaling.of(features)
    final = fit(scaling(features), labels, classes, best.C, start=best)
    if not all(each.converged for each in (*path, final)):
        log.warning("%s: a regression has not converged; its accuracy may be off", label or "linear probe")
    predicted = final.logits(scaling(test_features)).argmax(1)
    correct = (predicted == test_labels).cpu().numpy()
    return ProbeResult(
        accuracy=float(correct.mean()),
        mean_per_class=_mean_per_class(correct, test_labels.cpu().numpy()),
        C=best.C,
        correct=correct,
        predicted=predicted.cpu().numpy(),
        val_accuracy=val_accuracy,
        fit=final,
    )


def _checked(part: str, features: Tensor, labels: Labels, classes: int) -> Tensor:
    """The labels as a tensor; `UserError` for what cannot be probed."""
    labels = torch.as_tensor(labels, dtype=torch.long, device=features.device)
    if not len(labels):
        raise UserError(f"the {part} part of a linear probe is empty")
    if len(labels) != len(features):
        raise ValueError(f"{len(features)} features and {len(labels)} labels in the {part} part")
    outside = labels[(labels < 0) | (labels >= classes)]
    if len(outside):
        raise UserError(f"{part} part: class index {outside[0].item()} is outside 0…{classes - 1}")
    return labels


def _accuracy(classifier: Fit, features: Tensor, labels: Tensor) -> float:
    return (classifier.logits(features).argmax(1) == labels).double().mean().item()


def _mean_per_class(correct: np.ndarray, labels: np.ndarray) -> float:
    counts = np.bincount(labels)
    there = counts > 0
    return float((np.bincount(labels, weights=correct)[there] / counts[there]).mean())


# -------- probe_scorer
# The linear probe as a scorer: on rows before and after the projection, C chosen on the set's own validation part
# or on one carved from train.


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
