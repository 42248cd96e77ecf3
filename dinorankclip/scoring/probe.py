"""The linear probe: how well a linear classifier on frozen features tells classes apart.

 1. Features become rows of unit length, less the mean of the rows that are learned from, over one number that makes
    their mean squared length 1. All of this is free of coordinates: rotating a model's features changes nothing, and a
    value of C means the same for every model and width. (Scaling each channel by itself depends on coordinates that
    no training fixes; on photos of things and of birds it scored 0 to 0.7 points lower.)
 2. A logistic regression for every C of `GRID` learns from the training part.
 3. The C with the highest accuracy on the validation part is kept; among equals the smallest, the strongest penalty.
 4. One regression with that C learns from both parts, and the test part is touched once.

Shapes: N items, W feature width.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dinorankclip.scoring.logistic import Fit, fit, fit_path
from dinorankclip.types import UserError

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
