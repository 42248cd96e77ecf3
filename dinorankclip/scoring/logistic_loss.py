"""The softmax loss of given logits, kept in a form that stays exact when a model is almost certain.

Shapes: N items, K classes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


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
