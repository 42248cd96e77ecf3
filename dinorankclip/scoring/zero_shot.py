"""Zero-shot classification: each class is the mean of its prompts, an image belongs to the nearest class.

Protocol: embeddings of all prompts of a class (one a template) are normalised, averaged, normalised again. T@k counts
an image as right when its class is among the k nearest. Equal similarities cannot favour a model: where the right
class ties with others, the share of their orders that put it among the first k counts, so a collapsed model scores
exactly k / K.

Shapes: N images, K classes, P templates, D embedding width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dinorankclip.scoring.scores import Score, mean_score

if TYPE_CHECKING:
    from dinorankclip.scoring.seen import SeenSet

KS = (1, 3, 5)
SAME = 1e-6  # cosines closer than this are equal: fp32 tells them apart by rounding alone
_AT_ONCE = 4096  # images


def prompts(class_names: Sequence[str], templates: Sequence[str]) -> list[str]:
    """All prompts, class by class: K·P texts."""
    return [template.replace("{c}", name) for name in class_names for template in templates]


def class_embeddings(prompt_rows: Tensor, classes: int) -> Tensor:
    """Rows of `prompts` [K·P, D] → [K, D], unit-norm."""
    rows = F.normalize(prompt_rows, dim=-1).reshape(classes, -1, prompt_rows.shape[1])
    return F.normalize(rows.mean(1), dim=-1)


def standing(images: Tensor, classes: Tensor, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each image: how many classes are nearer than its own, how many as near, its own included. [N] both."""
    own = torch.as_tensor(labels)
    above, equal = torch.empty(len(images), dtype=torch.long), torch.empty(len(images), dtype=torch.long)
    for start in range(0, len(images), _AT_ONCE):
        similarity = images[start : start + _AT_ONCE] @ classes.T
        right = similarity.gather(1, own[start : start + _AT_ONCE, None])
        nearer = (similarity > right + SAME).sum(1)
        above[start : start + _AT_ONCE] = nearer
        equal[start : start + _AT_ONCE] = (similarity >= right - SAME).sum(1) - nearer
    return above.numpy(), equal.numpy()


def hits(above: np.ndarray, equal: np.ndarray, k: int) -> np.ndarray:
    """[N]: 1 if the right class is among the first k, 0 if not, and in between where it depends on breaking a tie."""
    return np.clip((k - above) / equal, 0, 1)


def predictions(images: Tensor, classes: Tensor) -> np.ndarray:
    """The nearest class of each image, int64 [N]; of equally near ones the first."""
    parts = [(images[at : at + _AT_ONCE] @ classes.T).argmax(1) for at in range(0, len(images), _AT_ONCE)]
    return torch.cat(parts).numpy()


def per_class_weights(labels: np.ndarray) -> np.ndarray:
    """[N]: weights under which every class that occurs counts alike."""
    return 1.0 / np.bincount(labels)[labels]


class ZeroShotScorer:
    """T@1, T@3, T@5 (as far as there are more classes than that) and mean per class recall."""

    name = "zero-shot"
    version = 1

    def applies(self, seen: SeenSet) -> bool:
        return seen.kind == "classification"

    def __call__(self, seen: SeenSet) -> Iterator[Score]:
        classes, labels = set_classes(seen), seen.labels()
        above, equal = standing(seen.images(), classes, labels)
        for k in KS:
            if k < len(classes):
                yield mean_score(f"T@{k}", hits(above, equal, k), chance=k / len(classes))
        first, alike = hits(above, equal, 1), per_class_weights(labels)
        yield mean_score("mean per class", first, weights=alike, chance=1 / len(classes))


def set_classes(seen: SeenSet) -> Tensor:
    """The classes of a classification set as the model embeds them, [K, D]."""
    names = seen.benchmark.class_names
    return class_embeddings(seen.texts(prompts(names, seen.benchmark.templates)), len(names))
