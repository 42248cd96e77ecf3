"""The data of a logistic regression, its derivatives, and a model of its curvature to divide gradients by.

Shapes: N items, W feature width, K classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dinorankclip.scoring.logistic_loss import Targets
from dinorankclip.scoring.logistic_span import Factor, Place, Point


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
