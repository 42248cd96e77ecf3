"""Multinomial logistic regression with an L2 penalty, for a whole path of penalties, to a certified accuracy.

    F(W, b) = C·Σ_i -log softmax(W·x_i + b)[y_i] + ½‖W‖²        (scikit-learn's objective; the bias is free)

With two classes this is the two-row softmax; scikit-learn's own binary form is the same problem at C/2.

How it works, and why it is fast:
 1. A product with the data costs fifty times a pass over the logits. So points are kept together with their logits, and
    whatever can be found in the span of known points is found there (`logistic_span`).
 2. The path goes from small to large C. Solutions move smoothly along it: the best combination, class by class, of
    the last two is within a per cent of the next, later within a hundredth of one.
 3. A step costs two products: one for the gradient, one for the logits of the new direction. The direction is the
    gradient divided by the mean curvature between classes, a K×K matrix; features need no rotation or whitening,
    since how far to go is then decided class by class, together with the last step (as conjugate gradients do).
 4. It stops by proof. The residuals C·(Y - P) are a point of the dual problem, and the distance between primal and
    dual value there is ½‖∂F/∂W‖²; the bias adds its own ½·g²/curvature. `Fit.gap` is that sum. Where the penalty is
    next to nothing beside the loss, the proof would need more digits than there are; there it stops at a standstill.

Shapes: N items, W feature width, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from dinorankclip.scoring.logistic_loss import Targets
from dinorankclip.scoring.logistic_span import Factor, Place, Point, place, search
from dinorankclip.types import UserError

TOLERANCE = 1e-4
SLACK = 0.1  # share of the tolerance that a search in a span may leave
STANDSTILL = 1e-3  # share of the tolerance; a step that gains less is the last
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

    `tolerance` bounds the gap relative to the objective. For a small C nearly all of F is there without features, and
    says little of the weights: there it is multiplied by the square of what features take off F, relative to F.
    Double precision is worth it from 1e-6 down. `converged` is False if `limit` gradients were not enough. With a
    `label` it shows how far it is.
    """
    _check(features, labels, classes, Cs)
    problem = _Problem(features, labels, classes)
    solution = problem.point_of(start) if start is not None else None
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


class _Problem:
    """The data, centred (the bias takes that up exactly) and with a column of ones for the bias."""

    def __init__(self, features: Tensor, labels: Tensor, classes: int) -> None:
        features = features if features.dtype == torch.float64 else features.float()
        self.mean = features.mean(0)
        self.items = torch.cat([features - self.mean, features.new_ones(len(features), 1)], 1)
        self.targets = Targets(labels.to(features.device, torch.long), classes)
        # Σ_i (x_i·d)²/‖d‖², first averaged over all directions d, later that of the last one taken
        self.spread = self.items[:, :-1].square().sum().item() / features.shape[1]

    def without_features(self) -> Point:
        """The best that the bias can do alone: the shares of the classes."""
        weight = self.items.new_zeros(self.targets.classes, self.items.shape[1])
        logarithms = self.targets.counts.to(weight).log()
        weight[:, -1] = logarithms - logarithms.mean()
        return Point(weight, weight[:, -1].expand(len(self.items), -1).contiguous())

    def point(self, weight: Tensor) -> Point:
        return Point(weight, self.items @ weight.T)

    def point_of(self, start: Fit) -> Point:
        shape = self.targets.classes, len(self.mean)
        if start.weight.shape != shape:
            raise ValueError(f"start has weights {list(start.weight.shape)}, the problem needs {list(shape)}")
        weight = start.weight.to(self.mean)
        return self.point(torch.cat([weight, (start.bias.to(self.mean) + weight @ self.mean)[:, None]], 1))

    def classifier(self, point: Point) -> tuple[Tensor, Tensor]:
        weight = point.weight[:, :-1].clone()
        return weight, point.weight[:, -1] - weight @ self.mean

    def unlearned(self, C: float) -> float:
        """The objective there."""
        counts = self.targets.counts.double()
        return -C * (counts * (counts / counts.sum()).log()).sum().item()

    def gradient(self, C: float, here: Place) -> Tensor:
        """[K, W + 1]"""
        gradient = C * (here.softmax.residual.T @ self.items)
        gradient[:, :-1] += here.point.weight[:, :-1]
        return gradient

    def curvature(self, C: float, here: Place) -> Tensor:
        """Between classes, as if all features were ones: C·Σ_i diag(p_i) - p_i·p_iᵀ, double [K, K]."""
        P = self.targets.probabilities(here.softmax)
        matrix = -C * (P.T @ P).double()
        diagonal = matrix.diagonal()
        diagonal -= matrix.sum(1)  # rows sum to zero, and are made to: so it is never indefinite
        return matrix

    def direction(self, gradient: Tensor, curvature: Tensor) -> Point:
        """gradient / (I + spread·curvature) for the weights, gradient / curvature for the bias.

        `curvature` does not see what all classes have in common, and no bias gradient has any of it: ones fill the gap.
        """
        spread = self.spread / len(self.items)
        inverse = Factor(torch.eye(len(curvature)).to(curvature) + spread * curvature).inverse()
        bias = Factor(curvature + curvature.diagonal().mean() / len(curvature)).solve(gradient[:, -1:])
        found = self.point(torch.cat([inverse.to(gradient.dtype) @ gradient[:, :-1], bias.to(gradient.dtype)], 1))
        length = found.weight[:, :-1].square().sum().item()
        if length:
            self.spread = found.logits.square().sum().item() / length
        return found


class _Walk:
    """The way down to the solution for one C: where it is now, and how far it has moved from where it began."""

    def __init__(self, problem: _Problem, C: float, begin: Point, tolerance: float) -> None:
        self.problem, self.C, self.tolerance = problem, C, tolerance
        self.unlearned = problem.unlearned(C)
        self.here = place(problem.targets, C, begin)
        self.moved: Point | None = None

    def allowed(self) -> float:
        """How far above the least objective it may end."""
        learned = min(1.0, max(0.0, self.unlearned / self.here.objective - 1))
        return self.tolerance * self.here.objective * learned**2

    def go(self, directions: Sequence[Point]) -> tuple[Point, float]:
        """To the best place in the span of `directions`: the step taken, and what it gained."""
        before = self.here.objective
        self.here, step = search(self.problem.targets, self.C, self.here, directions, SLACK * self.allowed())
        self.moved = step if self.moved is None else self.moved.plus(step)
        return step, before - self.here.objective

    def descend(self, limit: int) -> tuple[float, int, bool]:
        """Down to an allowed gap or a standstill: the gap, the number of gradients, whether it got there."""
        last: Point | None = None
        standing = 0
        for iterations in range(1, limit + 1):
            gradient = self.problem.gradient(self.C, self.here)
            curvature = self.problem.curvature(self.C, self.here)
            gap = _gap(gradient, curvature.diagonal())
            if gap <= self.allowed() or standing == 2:
                if self._is_as_tracked():
                    return gap, iterations, True
                last, standing = None, 0
                continue
            direction = self.problem.direction(gradient, curvature)
            last, gained = self.go([direction] if last is None else [direction, last])
            standing = standing + 1 if gained <= STANDSTILL * self.allowed() else 0
        return gap, limit, False

    def _is_as_tracked(self) -> bool:
        """Logits were only ever added to; compute them anew, and see whether rounding has led them astray."""
        tracked = self.here.objective
        self.here = place(self.problem.targets, self.C, self.problem.point(self.here.point.weight))
        rounding = 32 * torch.finfo(self.here.point.weight.dtype).eps
        return abs(self.here.objective - tracked) <= max(0.1 * self.tolerance, rounding) * tracked


def _gap(gradient: Tensor, bias_curvature: Tensor) -> float:
    weights, bias = gradient[:, :-1].double().square().sum(), gradient[:, -1].double().square()
    return 0.5 * (weights + (bias / bias_curvature.clamp_min(1e-300)).sum()).item()


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
