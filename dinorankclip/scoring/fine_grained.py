"""What the errors of a fine-grained probe are: classes that differ in small parts form families (`families.json`).

An error inside the right family missed the small parts, one outside missed the thing itself. The probes themselves are
linear ones (`probe`), and the Fine-grained Probe is their mean over sets (`suite`).

Shapes: N items, K classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

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
