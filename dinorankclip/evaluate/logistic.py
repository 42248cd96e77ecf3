"""Fits multinomial logistic regression with an L2 penalty, for a whole path of penalties, to a certified accuracy.

    F(W, b) = C·Σ_i -log softmax(W·x_i + b)[y_i] + ½‖W‖²        (scikit-learn's objective; the bias is free)

With two classes scikit-learn's own binary form is the same problem at C/2. A product with the data costs fifty times a
pass over the logits. So points are stored with their logits, and the best point in the span of known points is found
without the data (logistic_span.py). The path goes from small to large C: the best combination, class by class, of the
last two solutions is within a per cent of the next. A step costs two products, for the gradient and for the logits of
the new direction: the gradient divided by a model of the curvature (`Problem.divided`). The length of the step is
chosen class by class, together with the last step, as conjugate gradients do.

A fit stops by proof of the value (`proven_gap`) and of the weights: the penalty alone curves F by 1, so the solution is
no farther than ‖∂F/∂W‖. For a small C only that helps: F is flat, and weights that are far off give nearly the least
objective. Moreover the model of the curvature must expect the solution closer still. Where the penalty is next to
nothing beside the loss, a proof would need more digits than there are: once the spread of the features is known in
every direction, a promise of the model of a tenth of the tolerance is enough (measured: gaps of 2 to 6 promises).

Shapes: N items, W feature width, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from dinorankclip.evaluate.logistic_span import Factor, Place, Point, Targets, place, rounding, search
from dinorankclip.types import UserError

TOLERANCE = 1e-4
LIMIT = 500  # largest number of gradients for one C
PATIENCE = 16  # number of gradients for one C after which the spread of the features is computed in every direction
SLACK = 0.1  # share of the tolerance that a search in a span may leave
SURE = 0.1  # share of the tolerance that the model of the curvature may still expect at the end


@dataclass(frozen=True)
class Fit:
    """Holds the classifier for one C. The least possible objective lies between `objective - gap` and `objective`."""

    C: float
    weight: Tensor  # [K, W]
    bias: Tensor  # [K]
    objective: float
    gap: float
    iterations: int  # number of gradients
    converged: bool

    def logits(self, features: Tensor) -> Tensor:
        return torch.addmm(self.bias, features.to(self.weight.dtype), self.weight.T)


@torch.no_grad()
def fit_path(
    features: Tensor,
    labels: Tensor,
    classes: int,
    Cs: Sequence[float],
    start: Fit | None = None,
    tolerance: float = TOLERANCE,
    limit: int = LIMIT,
    label: str | None = None,
) -> list[Fit]:
    """Return a fit for each of `Cs`, in their order: features [N, W], labels int64 [N], every class present.

    `start` is a fit to the same classes and width. `tolerance` bounds the gap relative to F and the squared distance
    from the solution relative to ‖W‖². A tenth of it bounds the expected distance, and that of the bias relative to the
    mean squared length of the logits W·x. Double precision is worth it from 1e-6 down. `converged` is False if `limit`
    gradients were not enough. A `label` names the progress bar.
    """
    _check(features, labels, classes, Cs)
    problem = Problem(features, labels, classes)
    solution = problem.point_of(start.weight, start.bias) if start is not None else None
    moved: Point | None = None
    fits: dict[float, Fit] = {}
    for C in tqdm(sorted(set(Cs)), desc=label, unit="fit", leave=False, disable=None if label else True):
        walk = _Walk(problem, C, solution or problem.without_features(), tolerance)
        directions = [point for point in (solution, moved) if point is not None]
        if directions:
            walk.go(directions)
        gap, iterations, converged = walk.descend(limit)
        solution, moved = walk.here.point, walk.moved
        fits[C] = Fit(C, *problem.classifier(solution), walk.here.objective, gap, iterations, converged)
    return [fits[C] for C in Cs]


class _Walk:
    """Descends to the solution for one C; holds the place it has reached and the distance from its start."""

    def __init__(self, problem: Problem, C: float, begin: Point, tolerance: float) -> None:
        self.problem, self.C, self.tolerance = problem, C, tolerance
        self.here = place(problem.targets, C, begin)
        self.moved: Point | None = None

    def go(self, directions: Sequence[Point]) -> tuple[Point, float]:
        """Go to the best place in the span of `directions`; return the step and the decrease of the objective."""
        before = self.here.objective
        enough = SLACK * self.tolerance * 0.5 * _squared(self.here.point.weight[:, :-1])
        self.here, step = search(self.problem.targets, self.C, self.here, directions, enough)
        self.moved = step if self.moved is None else self.moved.plus(step)
        return step, before - self.here.objective

    def descend(self, limit: int) -> tuple[float, int, bool]:
        """Descend until the accuracy is proven, or as far as rounding allows.

        Returns the proven gap, the number of gradients, and whether the descent converged.
        """
        last: Point | None = None
        standing = 0
        for iterations in range(1, limit + 1):
            if iterations > PATIENCE and self.problem.axes is None:
                self.problem.find_axes()
            gradient, curvature = self.problem.gradient(self.C, self.here), self.problem.curvature(self.C, self.here)
            step = self.problem.divided(gradient, curvature)
            gap = proven_gap(gradient, curvature.diagonal())
            if self._is_enough(gap, gradient, step) or standing == 2:
                if self._is_as_tracked():
                    return gap, iterations, True
                last, standing = None, 0
                continue
            direction = self.problem.direction(step)
            last, gained = self.go([direction] if last is None else [direction, last])
            standing = standing + 1 if gained <= rounding(self.here) else 0
        return gap, limit, False

    def _is_enough(self, gap: float, gradient: Tensor, step: Tensor) -> bool:
        """Return whether the descent may stop. The curvature's model expects the solution at `step` [K, W + 1].

        The expectation must be closer than the proof: for a small C they agree, and many items are near to a tie.
        """
        weight, logits = self.here.point
        length, expected = _squared(weight[:, :-1]), SURE * self.tolerance
        if _squared(step[:, :-1]) > expected * length:
            return False
        proven = gap <= self.tolerance * self.here.objective and _squared(gradient[:, :-1]) <= self.tolerance * length
        promise = 0.5 * (gradient.double() * step).sum().item()
        if not proven and (self.problem.axes is None or promise > expected * self.here.objective):
            return False
        by_features = _squared(logits - weight[:, -1]) / len(logits)  # the scale for errors of the bias
        return _squared(step[:, -1]) <= expected * by_features

    def _is_as_tracked(self) -> bool:
        """Compute the logits anew; return whether they agree with the logits that steps were added to."""
        tracked = self.here.objective
        self.here = place(self.problem.targets, self.C, self.problem.point(self.here.point.weight))
        least = 32 * torch.finfo(self.here.point.weight.dtype).eps
        return abs(self.here.objective - tracked) <= max(0.1 * self.tolerance, least) * tracked


def _squared(tensor: Tensor) -> float:
    return torch.linalg.vector_norm(tensor).item() ** 2


def _check(features: Tensor, labels: Tensor, classes: int, Cs: Sequence[float]) -> None:
    if features.ndim != 2 or labels.shape != features.shape[:1]:
        raise ValueError(f"features [N, W] and labels [N] are needed, not {list(features.shape)}, {list(labels.shape)}")
    if not Cs or not all(0 < C < math.inf for C in Cs):
        raise UserError(f"C must be a positive number, not {list(Cs)}")
    if classes < 2:
        raise UserError(f"a classifier needs at least 2 classes, not {classes}")
    if not torch.isfinite(features).all():
        raise UserError("some features are not finite: the model that made them is broken, or its weights are")
    outside = (labels < 0) | (labels >= classes)
    if outside.any():
        raise UserError(f"class index {labels[outside][0].item()} is outside 0…{classes - 1}")
    missing = (torch.bincount(labels, minlength=classes) == 0).nonzero()[:, 0].tolist()
    if missing:
        shown = ", ".join(map(str, missing[:5])) + (" …" if len(missing) > 5 else "")
        raise UserError(f"{len(missing)} of {classes} classes have no item to learn from: {shown}")


class Problem:
    """Holds the data, centred (the bias makes up for that exactly) and with a column of ones for the bias.

    It computes derivatives, and a model of the curvature to divide gradients by.
    """

    def __init__(self, features: Tensor, labels: Tensor, classes: int) -> None:
        features = features if features.dtype == torch.float64 else features.float()
        self.mean = features.mean(0)
        self.items = torch.cat([features - self.mean, features.new_ones(len(features), 1)], 1)
        self.targets = Targets(labels.to(features.device, torch.long), classes)
        # Mean of (x·d)²/‖d‖² over items: over all directions d at first, then of the last direction taken; or, once
        # `axes` are known, along each axis.
        self.spread: float | Tensor = self.items[:, :-1].square().mean().item()
        self.axes: Tensor | None = None  # [W, W]

    def without_features(self) -> Point:
        """Return the best point with weights of zero: the bias gives the shares of the classes."""
        weight = self.items.new_zeros(self.targets.classes, self.items.shape[1])
        logarithms = self.targets.counts.to(weight).log()
        weight[:, -1] = logarithms - logarithms.mean()
        return Point(weight, weight[:, -1].expand(len(self.items), -1).contiguous())

    def point(self, weight: Tensor) -> Point:
        return Point(weight, self.items @ weight.T)

    def point_of(self, weight: Tensor, bias: Tensor) -> Point:
        """Return the point of a classifier for features that are not centred: weight [K, W], bias [K]."""
        shape = self.targets.classes, len(self.mean)
        if weight.shape != shape:
            raise ValueError(f"start has weights {list(weight.shape)}, the problem needs {list(shape)}")
        weight = weight.to(self.mean)
        return self.point(torch.cat([weight, (bias.to(self.mean) + weight @ self.mean)[:, None]], 1))

    def classifier(self, point: Point) -> tuple[Tensor, Tensor]:
        """Return weight [K, W] and bias [K] of a point, for features that are not centred."""
        weight = point.weight[:, :-1].clone()
        return weight, point.weight[:, -1] - weight @ self.mean

    def gradient(self, C: float, here: Place) -> Tensor:
        """Return the gradient [K, W + 1]."""
        gradient = C * (here.softmax.residual.T @ self.items)
        gradient[:, :-1] += here.point.weight[:, :-1]
        return gradient

    def curvature(self, C: float, here: Place) -> Tensor:
        """Return C·Σ_i diag(p_i) - p_i·p_iᵀ, double [K, K]: the curvature between classes if all features were ones."""
        P = self.targets.probabilities(here.softmax)
        matrix = -C * (P.T @ P).double()
        diagonal = matrix.diagonal()
        diagonal -= matrix.sum(1)  # rows sum to exactly zero, so the matrix is never indefinite
        return matrix

    def find_axes(self) -> None:
        items = self.items[:, :-1]
        values, self.axes = torch.linalg.eigh(items.T @ items)
        self.spread = values.clamp_min(0) / len(items)

    def divided(self, gradient: Tensor, curvature: Tensor) -> Tensor:
        """Return gradient / (I + curvature ⊗ spread) for the weights, gradient / curvature for the bias: [K, W + 1].

        `curvature` is zero along a common change of all classes, and so is the gradient of the bias: ones fill the gap.
        """
        bias = Factor(curvature + curvature.diagonal().mean() / len(curvature)).solve(gradient[:, -1:])
        weights = gradient[:, :-1]
        if self.axes is None:
            inverse = Factor(torch.eye(len(curvature)).to(curvature) + self.spread * curvature).inverse()
            weights = inverse.to(weights) @ weights
        else:
            values, vectors = torch.linalg.eigh(curvature)
            values, vectors = values.clamp_min(0).to(weights), vectors.to(weights)
            turned = vectors.T @ weights @ self.axes
            weights = vectors @ (turned / (1 + values[:, None] * self.spread)) @ self.axes.T
        return torch.cat([weights, bias.to(weights)], 1)

    def direction(self, weight: Tensor) -> Point:
        """Return weights with their logits, and note the spread of the features in this direction."""
        point = self.point(weight)
        length = weight[:, :-1].square().sum().item()
        if self.axes is None and length:
            self.spread = point.logits.square().sum().item() / length / len(self.items)
        return point


def proven_gap(gradient: Tensor, bias_curvature: Tensor) -> float:
    """Return primal minus dual value at the residuals: ½‖g‖² for the weights, ½·g²/curvature [K] for the bias."""
    weights, bias = gradient[:, :-1].double().square().sum(), gradient[:, -1].double().square()
    return 0.5 * (weights + (bias / bias_curvature.clamp_min(1e-300)).sum()).item()
