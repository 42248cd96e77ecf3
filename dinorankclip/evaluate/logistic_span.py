"""Finds the least objective among combinations of weights whose logits are known: no product with the data is needed.

The objective is that of logistic.py. Shapes: N items, K classes, W feature width, q directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MOST_STEPS = 20
LEAST_LENGTH = 1e-3  # a shorter step means that the model of the objective is of no use
ARMIJO = 0.1  # share of the promised decrease that a step must bring
RIDGES = (1e-6, 1e-3, 1.0)  # added to a unit diagonal, the first with which the matrix can be factored


class Softmax(NamedTuple):
    """Holds loss and probabilities of logits. `residual` is P - Y, `own` the probability of each item's own class."""

    loss: float  # Σ_i -log P[i, y_i]
    residual: Tensor  # [N, K]
    own: Tensor  # [N, 1]


class Targets:
    """Holds the classes that items belong to: int64 [N] with values below `classes`."""

    def __init__(self, labels: Tensor, classes: int) -> None:
        self.classes = classes
        self.counts = torch.bincount(labels, minlength=classes)  # [K]
        self._own = labels[:, None]

    def softmax(self, logits: Tensor) -> Softmax:
        """Compute the softmax in a form that stays exact when a model is almost certain. As loops:

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
        """Return P [N, K]."""
        return softmax.residual.scatter(1, self._own, softmax.own)

    def variances(self, softmax: Softmax, probabilities: Tensor) -> Tensor:
        """Return P·(1 - P) [N, K]."""
        of_own = softmax.own * -softmax.residual.gather(1, self._own)
        return torch.addcmul(probabilities, probabilities, probabilities, value=-1).scatter_(1, self._own, of_own)


class Point(NamedTuple):
    """Holds weights with their logits. Both are linear, so steps between points are points."""

    weight: Tensor  # [K, W + 1], the bias last
    logits: Tensor  # [N, K]

    def plus(self, other: Point) -> Point:
        return Point(self.weight + other.weight, self.logits + other.logits)


class Place(NamedTuple):
    """Holds a point with its softmax and objective."""

    point: Point
    softmax: Softmax
    objective: float


def place(targets: Targets, C: float, point: Point) -> Place:
    softmax = targets.softmax(point.logits)
    return Place(point, softmax, C * softmax.loss + 0.5 * point.weight[:, :-1].double().square().sum().item())


def rounding(there: Place) -> float:
    """Return a change of the objective that is lost in rounding; the errors of single items average out."""
    return 10 * torch.finfo(there.point.logits.dtype).eps * there.objective / len(there.point.logits) ** 0.5


def search(targets: Targets, C: float, here: Place, directions: Sequence[Point], enough: float) -> tuple[Place, Point]:
    """Return the best place in the span of `directions`, within `enough` of the least objective, and the step to it.

    A combination has one coefficient for each direction and class: row k of the weights, and with it column k of the
    logits, is here[k] + Σ_i c[i, k]·direction_i[k]. Newton's method in these q·K numbers costs passes over [N, K] and
    one product [q·K, N]·[N, q·K], with two directions a fraction of one product with the data. The second derivatives
    are computed anew only after a step that brought much less than they promised.
    """
    span = _Span(targets, C, here, directions)
    c, now = span.origin, here
    factor: Factor | None = None
    least = rounding(here)
    for steps in range(MOST_STEPS):
        fresh = factor is None
        if factor is None:
            factor = Factor(span.second_derivatives(now.softmax))
        gradient = span.gradient(c, now.softmax)
        change = -factor.solve(gradient)
        promised = -(gradient * change).sum().item()
        if promised / 2 <= (max(enough, least) if steps else least):
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
    """Computes the objective as a function of c [q, K], in double precision."""

    def __init__(self, targets: Targets, C: float, here: Place, directions: Sequence[Point]) -> None:
        self.targets, self.C, self.here, self.directions = targets, C, here, directions
        penalised = torch.stack([direction.weight[:, :-1] for direction in directions])
        self.cross = torch.einsum("ikw,jkw->ijk", penalised, penalised).double()
        self.linear = torch.einsum("ikw,kw->ik", penalised, here.point.weight[:, :-1]).double()
        self.base = here.objective - C * here.softmax.loss
        self.origin = torch.zeros_like(self.linear)

    def at(self, c: Tensor) -> Place:
        """Return the place at c, without its weights: only the last place needs them."""
        first, *others = zip(c.to(self.here.point.logits.dtype), self.directions)
        logits = torch.addcmul(self.here.point.logits, first[1].logits, first[0])
        for coefficients, direction in others:
            logits.addcmul_(direction.logits, coefficients)
        softmax = self.targets.softmax(logits)
        penalty = self.base + (c * self.linear).sum().item() + 0.5 * (c * self._times_cross(c)).sum().item()
        return Place(Point(self.here.point.weight, logits), softmax, self.C * softmax.loss + penalty)

    def step(self, c: Tensor) -> Point:
        """Return the step to c. The difference of two points would consist of rounding errors once steps are short."""
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
        """Return C·Σ_n (P_k·[k = l] - P_k·P_l)·z_ik·z_jl plus the penalty's curvature, [q·K, q·K]."""
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
    """Factors a symmetric matrix that should be positive: scales it to a unit diagonal and makes it safely positive.

    Rows with a zero on the diagonal are left out: the solution is zero there.
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
        """Return matrix⁻¹·right, for one column of any shape."""
        column = (self._scale * right.flatten().to(self._scale))[:, None]
        return (self._scale * torch.cholesky_solve(column, self._lower)[:, 0]).view_as(right)

    def inverse(self) -> Tensor:
        return self._scale * self._scale[:, None] * torch.cholesky_inverse(self._lower)
