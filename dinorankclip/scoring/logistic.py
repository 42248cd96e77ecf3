"""Multinomial logistic regression with an L2 penalty, for a whole path of penalties, to a certified accuracy.

    F(W, b) = C·Σ_i -log softmax(W·x_i + b)[y_i] + ½‖W‖²        (scikit-learn's objective; the bias is free)

With two classes this is the two-row softmax; scikit-learn's own binary form is the same problem at C/2.

How it works, and why it is fast:
 1. A product with the data costs fifty times a pass over the logits. So points are kept together with their logits, and
    whatever can be found in the span of known points is found there (`logistic_span`).
 2. The path goes from small to large C. Solutions move smoothly along it: the best combination, class by class, of
    the last two is within a per cent of the next, later within a hundredth of one.
 3. A step costs two products: one for the gradient, one for the logits of the new direction. The direction is the
    gradient divided by a model of the curvature: mean curvature between classes (K×K) times spread of the features.
    How far to go is then decided class by class, together with the last step (as conjugate gradients do).
    Good features spread evenly enough for one number to stand for their spread. If progress is slow, the spread in
    every direction is found out, once (`logistic_problem`): with weak features steps would run to many hundreds.
 4. It stops by proof, of the value and of the weights. The residuals C·(Y - P) are a point of the dual problem, and
    the distance between primal and dual value there is ½‖∂F/∂W‖²; the bias adds its own ½·g²/curvature. `Fit.gap` is
    that sum. The penalty alone curves F by 1, so the solution is no farther than ‖∂F/∂W‖. For a small C only that
    helps: F is flat, and weights that are far off give nearly the least objective. The model of the curvature, which
    knows more than the penalty, must expect the solution closer still.
    Where the penalty is next to nothing beside the loss, a proof would need more digits than there are: once the
    spread is known, it is enough that the model also promises no more than a tenth of the tolerance (measured: gaps of
    2 to 6 promises).

Shapes: N items, W feature width, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from dinorankclip.scoring.logistic_problem import Problem, proven_gap
from dinorankclip.scoring.logistic_span import Point, place, rounding, search
from dinorankclip.types import UserError

TOLERANCE = 1e-4
SLACK = 0.1  # share of the tolerance that a search in a span may leave
PATIENCE = 16  # gradients for one C after which the spread of the features is found out
SURE = 0.1  # share of the tolerance that the model of the curvature may still see ahead at the end
LIMIT = 500  # gradients for one C


@dataclass(frozen=True)
class Fit:
    """The classifier for one C. The least objective there is lies between `objective - gap` and `objective`."""

    C: float
    weight: Tensor  # [K, W]
    bias: Tensor  # [K]
    objective: float
    gap: float
    iterations: int  # gradients
    converged: bool

    def logits(self, features: Tensor) -> Tensor:
        return torch.addmm(self.bias, features.to(self.weight.dtype), self.weight.T)


def fit(
    features: Tensor,
    labels: Tensor,
    classes: int,
    C: float,
    start: Fit | None = None,
    tolerance: float = TOLERANCE,
    limit: int = LIMIT,
) -> Fit:
    """The least F for one C; see `fit_path`. `start` is a fit to the same classes and width, say for a nearby C."""
    return fit_path(features, labels, classes, [C], start, tolerance, limit)[0]


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
    """A fit for each of `Cs`, in their order: features [N, W], labels int64 [N], every class present.

    `tolerance` bounds the gap relative to F and the squared distance from the solution relative to ‖W‖²; a tenth of it
    the expected one, and that of the bias relative to the mean squared length of the logits W·x. Double precision is
    worth it from 1e-6 down. `converged` is False if `limit` gradients were not enough. With a `label` it shows how far
    it is.
    """
    _check(features, labels, classes, Cs)
    problem = Problem(features, labels, classes)
    solution = problem.point_of(start.weight, start.bias) if start is not None else None
    moved: Point | None = None
    found: dict[float, Fit] = {}
    for C in tqdm(sorted(set(Cs)), desc=label, unit="fit", leave=False, disable=None if label else True):
        walk = _Walk(problem, C, solution or problem.without_features(), tolerance)
        known = [point for point in (solution, moved) if point is not None]
        if known:
            walk.go(known)
        gap, iterations, converged = walk.descend(limit)
        solution, moved = walk.here.point, walk.moved
        found[C] = Fit(C, *problem.classifier(solution), walk.here.objective, gap, iterations, converged)
    return [found[C] for C in Cs]


class _Walk:
    """The way down to the solution for one C: where it is now, and how far it has moved from where it began."""

    def __init__(self, problem: Problem, C: float, begin: Point, tolerance: float) -> None:
        self.problem, self.C, self.tolerance = problem, C, tolerance
        self.here = place(problem.targets, C, begin)
        self.moved: Point | None = None

    def go(self, directions: Sequence[Point]) -> tuple[Point, float]:
        """To the best place in the span of `directions`: the step taken, and what it gained."""
        before = self.here.objective
        enough = SLACK * self.tolerance * 0.5 * _squared(self.here.point.weight[:, :-1])
        self.here, step = search(self.problem.targets, self.C, self.here, directions, enough)
        self.moved = step if self.moved is None else self.moved.plus(step)
        return step, before - self.here.objective

    def descend(self, limit: int) -> tuple[float, int, bool]:
        """Down to where it may stop, or as far as rounding lets it: the gap that is proven, the number of gradients,
        and whether it got there."""
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
        """`step` is where the model of the curvature expects the solution, [K, W + 1] as the gradient.

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
        given = _squared(logits - weight[:, -1]) / len(logits)  # by the features: the measure for the bias
        return _squared(step[:, -1]) <= expected * given

    def _is_as_tracked(self) -> bool:
        """Logits were only ever added to; compute them anew, and see whether rounding has led them astray."""
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
