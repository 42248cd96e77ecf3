"""The softmax loss of given logits, kept in a form that stays exact when a model is almost certain.

Shapes: N items, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from dinorankclip.types import UserError


class Softmax(NamedTuple):
    """What logits say of their items. `residual` is P - Y, `own` the probability of each item's own class."""

    loss: float  # Σ_i -log P[i, y_i]
    residual: Tensor  # [N, K]
    own: Tensor  # [N, 1]


class Targets:
    """The classes that items belong to: int64 [N] with values below `classes`."""

    def __init__(self, labels: Tensor, classes: int) -> None:
        self.classes = classes
        self.counts = torch.bincount(labels, minlength=classes)  # [K]
        self._own = labels[:, None]

    def softmax(self, logits: Tensor) -> Softmax:
        """As loops:

            others = Σ_{k ≠ y} exp(z_k - z_y)
            loss += log(1 + others)
            residual[y] = -others/(1 + others);  for k ≠ y: residual[k] = exp(z_k - z_y)/(1 + others)

        The own class never enters as 1 - P[y], which in single precision is zero long before training ends.
        """
        top = logits.amax(1, keepdim=True)
        parts = (logits - top).exp_()
        own = parts.gather(1, self._own)
        others = parts.scatter_(1, self._own, 0.0).sum(1, keepdim=True)
        total = own + others
        # log1p where the own class leads (then `own` is exactly 1), else the usual form, which cannot overflow.
        loss = torch.where(own == 1, others.log1p(), total.log() + top - logits.gather(1, self._own))
        residual = parts.div_(total).scatter_(1, self._own, -others / total)
        return Softmax(loss.double().sum().item(), residual, own / total)

    def probabilities(self, softmax: Softmax) -> Tensor:
        """P [N, K]"""
        return softmax.residual.scatter(1, self._own, softmax.own)

    def variances(self, softmax: Softmax, probabilities: Tensor) -> Tensor:
        """P·(1 - P) [N, K]"""
        of_own = softmax.own * -softmax.residual.gather(1, self._own)
        return torch.addcmul(probabilities, probabilities, probabilities, value=-1).scatter_(1, self._own, of_own)


# -------- logistic_problem
# The data of a logistic regression, its derivatives, and a model of its curvature to divide gradients by.
#
# Shapes: N items, W feature width, K classes.


class Problem:
    """The data, centred (the bias takes that up exactly) and with a column of ones for the bias."""

    def __init__(self, features: Tensor, labels: Tensor, classes: int) -> None:
        features = features if features.dtype == torch.float64 else features.float()
        self.mean = features.mean(0)
        self.items = torch.cat([features - self.mean, features.new_ones(len(features), 1)], 1)
        self.targets = Targets(labels.to(features.device, torch.long), classes)
        # Mean of (x·d)²/‖d‖² over items: over all directions d at first, then that of the last one taken; or, once
        # `axes` are known, along each of them.
        self.spread: float | Tensor = self.items[:, :-1].square().mean().item()
        self.axes: Tensor | None = None  # [W, W]

    def without_features(self) -> Point:
        """The best that the bias can do alone: the shares of the classes."""
        weight = self.items.new_zeros(self.targets.classes, self.items.shape[1])
        logarithms = self.targets.counts.to(weight).log()
        weight[:, -1] = logarithms - logarithms.mean()
        return Point(weight, weight[:, -1].expand(len(self.items), -1).contiguous())

    def point(self, weight: Tensor) -> Point:
        return Point(weight, self.items @ weight.T)

    def point_of(self, weight: Tensor, bias: Tensor) -> Point:
        """Where a classifier for features as they were given stands: weight [K, W], bias [K]."""
        shape = self.targets.classes, len(self.mean)
        if weight.shape != shape:
            raise ValueError(f"start has weights {list(weight.shape)}, the problem needs {list(shape)}")
        weight = weight.to(self.mean)
        return self.point(torch.cat([weight, (bias.to(self.mean) + weight @ self.mean)[:, None]], 1))

    def classifier(self, point: Point) -> tuple[Tensor, Tensor]:
        """The other way."""
        weight = point.weight[:, :-1].clone()
        return weight, point.weight[:, -1] - weight @ self.mean

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

    def find_axes(self) -> None:
        items = self.items[:, :-1]
        values, self.axes = torch.linalg.eigh(items.T @ items)
        self.spread = values.clamp_min(0) / len(items)

    def divided(self, gradient: Tensor, curvature: Tensor) -> Tensor:
        """gradient / (I + curvature ⊗ spread) for the weights, gradient / curvature for the bias: [K, W + 1].

        `curvature` does not see what all classes have in common, and no bias gradient has any of it: ones fill the gap.
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
        """Weights with their logits; what is seen of the spread of the features on the way is kept."""
        found = self.point(weight)
        length = weight[:, :-1].square().sum().item()
        if self.axes is None and length:
            self.spread = found.logits.square().sum().item() / length / len(self.items)
        return found


def proven_gap(gradient: Tensor, bias_curvature: Tensor) -> float:
    """Primal less dual value at the residuals: ½‖g‖² for the weights, ½·g²/curvature [K] for the bias."""
    weights, bias = gradient[:, :-1].double().square().sum(), gradient[:, -1].double().square()
    return 0.5 * (weights + (bias / bias_curvature.clamp_min(1e-300)).sum()).item()


# -------- logistic_span
# The least objective among combinations of weights whose logits are known: no product with the data is needed.
#
# A combination has one coefficient for each direction and class: row k of the weights, and with it column k of the
# logits, is here[k] + Σ_i c[i, k]·direction_i[k]. Newton's method in these q·K numbers costs passes over [N, K] and one
# product [q·K, N]·[N, q·K]; with two directions that is a fraction of one product with the data.
#
# Shapes: N items, K classes, W feature width, q directions.

MOST_STEPS = 20
LEAST_LENGTH = 1e-3  # a shorter step means that the model of the objective is of no use
ARMIJO = 0.1  # share of the promised decrease that a step must bring
RIDGES = (1e-6, 1e-3, 1.0)  # added to a unit diagonal, the first with which it can be factored


class Point(NamedTuple):
    """Weights with the logits they give. Both are linear, so steps between points are points."""

    weight: Tensor  # [K, W + 1], the bias last
    logits: Tensor  # [N, K]

    def plus(self, other: Point) -> Point:
        return Point(self.weight + other.weight, self.logits + other.logits)


class Place(NamedTuple):
    """A point and what the objective is there."""

    point: Point
    softmax: Softmax
    objective: float


def place(targets: Targets, C: float, point: Point) -> Place:
    softmax = targets.softmax(point.logits)
    return Place(point, softmax, C * softmax.loss + 0.5 * point.weight[:, :-1].double().square().sum().item())


def rounding(there: Place) -> float:
    """A change of the objective that is lost in rounding; the errors of single items average out."""
    return 10 * torch.finfo(there.point.logits.dtype).eps * there.objective / len(there.point.logits) ** 0.5


def search(targets: Targets, C: float, here: Place, directions: Sequence[Point], enough: float) -> tuple[Place, Point]:
    """The best place, within `enough` of the least objective, and the step to it; `here` if no step goes down.

    The second derivatives are computed anew only after a step that brought much less than they promised.
    """
    span = _Span(targets, C, here, directions)
    c, now = span.origin, here
    factor: Factor | None = None
    least = rounding(here)
    for taken in range(MOST_STEPS):
        fresh = factor is None
        if factor is None:
            factor = Factor(span.second_derivatives(now.softmax))
        gradient = span.gradient(c, now.softmax)
        change = -factor.solve(gradient)
        promised = -(gradient * change).sum().item()
        if promised / 2 <= (max(enough, least) if taken else least):
            break
        length, then = 1.0, span.at(c + change)
        while not then.objective <= now.objective - ARMIJO * length * promised and length > LEAST_LENGTH:
            length /= 2
            then = span.at(c + length * change)
        if length <= LEAST_LENGTH:
            if fresh:
                break
            factor = None
            continue
        if now.objective - then.objective < 0.4 * promised:  # a quadratic would have given half
            factor = None
        c, now = c + length * change, then
    step = span.step(c)
    return now._replace(point=Point(here.point.weight + step.weight, now.point.logits)), step


class _Span:
    """The objective as a function of c [q, K], double precision."""

    def __init__(self, targets: Targets, C: float, here: Place, directions: Sequence[Point]) -> None:
        self.targets, self.C, self.here, self.directions = targets, C, here, directions
        penalised = torch.stack([direction.weight[:, :-1] for direction in directions])
        self.cross = torch.einsum("ikw,jkw->ijk", penalised, penalised).double()
        self.linear = torch.einsum("ikw,kw->ik", penalised, here.point.weight[:, :-1]).double()
        self.base = here.objective - C * here.softmax.loss
        self.origin = torch.zeros_like(self.linear)

    def at(self, c: Tensor) -> Place:
        """The weights are left where they were: only the last place needs them."""
        first, *others = zip(c.to(self.here.point.logits.dtype), self.directions)
        logits = torch.addcmul(self.here.point.logits, first[1].logits, first[0])
        for coefficients, direction in others:
            logits.addcmul_(direction.logits, coefficients)
        softmax = self.targets.softmax(logits)
        penalty = self.base + (c * self.linear).sum().item() + 0.5 * (c * self._times_cross(c)).sum().item()
        return Place(Point(self.here.point.weight, logits), softmax, self.C * softmax.loss + penalty)

    def step(self, c: Tensor) -> Point:
        """Not the difference of two points: that would be made of their rounding errors once steps are short."""
        first, *others = zip(c.to(self.here.point.logits.dtype), self.directions)
        weight, logits = first[1].weight * first[0][:, None], first[1].logits * first[0]
        for coefficients, direction in others:
            weight.addcmul_(direction.weight, coefficients[:, None])
            logits.addcmul_(direction.logits, coefficients)
        return Point(weight, logits)

    def gradient(self, c: Tensor, softmax: Softmax) -> Tensor:
        slopes = torch.stack([(softmax.residual * direction.logits).sum(0) for direction in self.directions])
        return self.C * slopes.double() + self.linear + self._times_cross(c)

    def second_derivatives(self, softmax: Softmax) -> Tensor:
        """[q·K, q·K]: C·Σ_n (P_k·[k = l] - P_k·P_l)·z_ik·z_jl, and the penalty's."""
        count, classes = self.linear.shape
        P = self.targets.probabilities(softmax)
        variances = self.targets.variances(softmax, P)
        weighted = torch.empty(len(P), count, classes, dtype=P.dtype, device=P.device)
        same = torch.empty_like(self.cross)
        for i, direction in enumerate(self.directions):
            torch.mul(P, direction.logits, out=weighted[:, i])
            half = variances * direction.logits
            for j in range(i + 1):
                same[i, j] = same[j, i] = (half * self.directions[j].logits).sum(0)
        flat = weighted.flatten(1)
        between = -self.C * (flat.T @ flat).double()
        k = torch.arange(classes, device=P.device)
        # Where k = l the two terms nearly cancel; `same` has their difference.
        between.view(count, classes, count, classes)[:, k, :, k] = (self.C * same + self.cross).permute(2, 0, 1)
        return between

    def _times_cross(self, c: Tensor) -> Tensor:
        return torch.einsum("ijk,jk->ik", self.cross, c)


class Factor:
    """A symmetric matrix that should be positive, scaled to a unit diagonal, made safely positive and factored.

    Rows with nothing on the diagonal are left out: what is solved for is zero there.
    """

    def __init__(self, matrix: Tensor) -> None:
        diagonal = matrix.diagonal()
        self._scale = torch.where(diagonal > 0, diagonal.clamp_min(1e-300).rsqrt(), 0.0)
        scaled = matrix * self._scale * self._scale[:, None]
        for ridge in RIDGES:
            scaled.diagonal().add_(ridge)
            self._lower, failed = torch.linalg.cholesky_ex(scaled)
            if not failed:
                return
        raise FloatingPointError("logistic regression: the second derivatives are not finite")

    def solve(self, right: Tensor) -> Tensor:
        """matrix⁻¹·right, for one column of any shape."""
        column = (self._scale * right.flatten().to(self._scale))[:, None]
        return (self._scale * torch.cholesky_solve(column, self._lower)[:, 0]).view_as(right)

    def inverse(self) -> Tensor:
        return self._scale * self._scale[:, None] * torch.cholesky_inverse(self._lower)


# -------- logistic
# Multinomial logistic regression with an L2 penalty, for a whole path of penalties, to a certified accuracy.
#
#     F(W, b) = C·Σ_i -log softmax(W·x_i + b)[y_i] + ½‖W‖²        (scikit-learn's objective; the bias is free)
#
# With two classes this is the two-row softmax; scikit-learn's own binary form is the same problem at C/2.
#
# How it works, and why it is fast:
#  1. A product with the data costs fifty times a pass over the logits. So points are kept together with their logits, and
#     whatever can be found in the span of known points is found there (`logistic_span`).
#  2. The path goes from small to large C. Solutions move smoothly along it: the best combination, class by class, of
#     the last two is within a per cent of the next, later within a hundredth of one.
#  3. A step costs two products: one for the gradient, one for the logits of the new direction. The direction is the
#     gradient divided by a model of the curvature: mean curvature between classes (K×K) times spread of the features.
#     How far to go is then decided class by class, together with the last step (as conjugate gradients do).
#     Good features spread evenly enough for one number to stand for their spread. If progress is slow, the spread in
#     every direction is found out, once (`logistic_problem`): with weak features steps would run to many hundreds.
#  4. It stops by proof, of the value and of the weights. The residuals C·(Y - P) are a point of the dual problem, and
#     the distance between primal and dual value there is ½‖∂F/∂W‖²; the bias adds its own ½·g²/curvature. `Fit.gap` is
#     that sum. The penalty alone curves F by 1, so the solution is no farther than ‖∂F/∂W‖. For a small C only that
#     helps: F is flat, and weights that are far off give nearly the least objective. The model of the curvature, which
#     knows more than the penalty, must expect the solution closer still.
#     Where the penalty is next to nothing beside the loss, a proof would need more digits than there are: once the
#     spread is known, it is enough that the model also promises no more than a tenth of the tolerance (measured: gaps of
#     2 to 6 promises).
#
# Shapes: N items, W feature width, K classes.

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
