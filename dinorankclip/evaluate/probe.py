"""Scores the linear probe: how well a linear classifier on frozen features tells classes apart.

 1. Features become rows of unit length, minus the mean of the rows to learn from, over one number that makes their mean
    squared length 1. This is free of coordinates: rotating a model's features changes nothing, and a value of C means
    the same for every model and width. (Scaling each channel by itself scored 0 to 0.7 points lower.)
 2. A logistic regression for every C of `GRID` learns from the training part.
 3. The C with the highest accuracy on the validation part is chosen; among equals the smallest, the strongest penalty.
 4. One regression with that C learns from both parts, and the test part is used once.

Classes that differ in small parts form families (`families.json`). An error inside the right family missed the small
parts, an error outside missed the thing itself. The Fine-grained Probe is the mean over such sets (suite.py).

Shapes: N items, W feature width, K classes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dinorankclip.data.splits import carve_validation
from dinorankclip.evaluate.intervals import interval
from dinorankclip.evaluate.logistic import Fit, fit_path
from dinorankclip.evaluate.scores import EmbeddedSet, Score, mean_score
from dinorankclip.evaluate.zero_shot import per_class_weights
from dinorankclip.types import UserError

log = logging.getLogger(__name__)

GRID = tuple(10 ** (half / 2) for half in range(-4, 9))  # 10^-2 … 10^4 in half decades

Labels = Tensor | np.ndarray | Sequence[int]


@dataclass(frozen=True)
class Scaling:
    """Scales features as in step 1, as learned from some rows."""

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
    val_accuracy: dict[float, float]  # C → accuracy
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
    """Run steps 1 to 4 on features [N, W] and class indices [N]. A `label` names the progress bar; None hides it."""
    train_labels = _checked("training", train_features, train_labels, classes)
    val_labels = _checked("validation", val_features, val_labels, classes)
    test_labels = _checked("test", test_features, test_labels, classes)
    scaling = Scaling.of(train_features)
    path = fit_path(scaling(train_features), train_labels, classes, Cs, label=label)
    scaled = scaling(val_features)
    val_accuracy = {each.C: (each.logits(scaled).argmax(1) == val_labels).double().mean().item() for each in path}
    best = max(sorted(path, key=lambda each: each.C), key=lambda each: val_accuracy[each.C])

    features, labels = torch.cat([train_features, val_features]), torch.cat([train_labels, val_labels])
    scaling = Scaling.of(features)
    final = fit_path(scaling(features), labels, classes, [best.C], start=best)[0]
    if not all(each.converged for each in (*path, final)):
        log.warning("%s: a regression has not converged; its accuracy may be off", label or "linear probe")
    predicted = final.logits(scaling(test_features)).argmax(1)
    correct = (predicted == test_labels).cpu().numpy()
    recall = float(np.average(correct, weights=per_class_weights(test_labels.cpu().numpy())))
    return ProbeResult(float(correct.mean()), recall, best.C, correct, predicted.cpu().numpy(), val_accuracy, final)


def _checked(part: str, features: Tensor, labels: Labels, classes: int) -> Tensor:
    """Return the labels as a tensor; raises `UserError` for a part that cannot be probed."""
    labels = torch.as_tensor(labels, dtype=torch.long, device=features.device)
    if not len(labels):
        raise UserError(f"the {part} part of a linear probe is empty")
    if len(labels) != len(features):
        raise ValueError(f"{len(features)} features and {len(labels)} labels in the {part} part")
    outside = labels[(labels < 0) | (labels >= classes)]
    if len(outside):
        raise UserError(f"{part} part: class index {outside[0].item()} is outside 0…{classes - 1}")
    return labels


class ProbeScorer:
    """Takes accuracy and mean per class recall of each kind of row; with families also the share of errors inside."""

    name = "probe"
    version = 1

    def applies(self, embedded: EmbeddedSet) -> bool:
        return embedded.kind == "classification" and "train" in embedded.benchmark.splits and embedded.split != "train"

    def __call__(self, embedded: EmbeddedSet) -> Iterator[Score]:
        labels, names = embedded.labels(), embedded.benchmark.class_names
        for kind in embedded.kinds:
            train, train_labels, val, val_labels = probe_parts(embedded, kind)
            test, title = embedded.images(kind), f"{embedded.name}: probe"
            result = linear_probe(train, train_labels, val, val_labels, test, labels, len(names), label=title)
            largest = np.bincount(train_labels, minlength=len(names)).argmax()  # the answer of an untrained probe
            yield mean_score(f"{kind} probe accuracy", result.correct, chance=float((labels == largest).mean()))
            weights = per_class_weights(labels)
            yield mean_score(f"{kind} probe mean per class", result.correct, weights=weights, chance=1 / len(names))
            if embedded.benchmark.families:
                family = family_of_class(names, embedded.benchmark.families)
                errors = family_errors(result.predicted, labels, family)
                if count := len(errors.inside):  # without items: models err on different images, nothing to pair
                    low, high = interval(errors.inside)
                    name = f"{kind} probe errors in family"
                    yield Score(name, errors.share, count, low=low, high=high, chance=errors.chance)


def probe_parts(embedded: EmbeddedSet, kind: str) -> tuple[Tensor, np.ndarray, Tensor, np.ndarray]:
    """Return rows and labels to learn from and to choose C on.

    C is chosen on the set's own validation part, or on items carved from train if that part is absent or is scored.
    """
    rows, labels = embedded.images(kind, "train"), embedded.labels("train")
    if "val" in embedded.benchmark.splits and embedded.split != "val":
        return rows, labels, embedded.images(kind, "val"), embedded.labels("val")
    train, val = carve_validation(embedded.keys("train"), labels)
    return rows[train], labels[train], rows[val], labels[val]


@dataclass(frozen=True)
class FamilyErrors:
    inside: np.ndarray  # bool [errors]: the predicted class is of the right family
    chance: float  # the share of `inside` for wrong classes drawn blindly

    @property
    def share(self) -> float:
        """Return the share of errors inside the right family; NaN where there are no errors."""
        return float(self.inside.mean()) if len(self.inside) else float("nan")


def family_of_class(class_names: Sequence[str], families: Mapping[str, Sequence[str]]) -> np.ndarray:
    """Return the number of each class's family, int64 [K]. A class outside all families is its own family."""
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
    """Collect the errors among `predicted` and `labels`, classes [N]; `family` [K] comes from `family_of_class`.

    As loops:
        for each item with predicted != label:  inside.append(family[predicted] == family[label])
                                                chance += (size of family[label] - 1)/(K - 1)/errors
    """
    predicted, labels = np.asarray(predicted), np.asarray(labels)
    wrong = predicted != labels
    others = np.bincount(family)[family] - 1  # [K]
    chance = others[labels[wrong]].mean() / (len(family) - 1) if wrong.any() else float("nan")
    return FamilyErrors(family[predicted[wrong]] == family[labels[wrong]], float(chance))
